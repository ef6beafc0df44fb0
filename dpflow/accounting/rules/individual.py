"""Individual accounting: every person has a running sum and a budget of their own.

What the ledger sees is public: the bound (order, B) that no person may exceed, reserved
in full, once. The sums per person are private data and live in `dpflow.people`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.notions import exact_order
from dpflow.accounting.curves.conversions import gdp_budget, rdp_epsilon_allowed
from dpflow.accounting.curves.prices import (
    approx_zcdp,
    gdp_mu_squared,
    refuse,
    renyi,
    renyi_divergence,
)
from dpflow.accounting.rules.groups import scale_to_group
from dpflow.accounting.rules.rdp import RdpOdometer, best_order
from dpflow.accounting.rules.rule import ThresholdFilter
from dpflow.accounting.rules.tally import Tally
from dpflow.accounting.rules.zcdp import one_of
from dpflow.exceptions import InvalidCost
from dpflow.rounding import (
    RHO_LOW,
    Number,
    exact_delta,
    exact_epsilon,
    exact_rho,
    float_up,
    from_units,
    number_text,
    units_down,
    units_up,
)

MEASURES = ("rdp", "gdp")


@dataclass(frozen=True, init=False, repr=False)
class IndividualBound(Cost):
    """Any number of steps in which no person's own costs sum to more than a bound.

    A ledger reserves the bound before the first of these steps, in full and once,
    because each person's remaining budget is private. The steps are then checked
    against the people's tallies (`dpflow.people`), not against the ledger.

    Args:
        measure: "rdp" (divergences of one order add up) or "gdp" (squared mus).
        bound: Limit of each person's sum, in that measure; positive.
        order: The order, above 1; for the RDP measure only.

    Raises:
        InvalidCost: If a number is out of range or the order is missing or too much.
    """

    #: A replaced person is two people here: one removed, another added.
    relations: ClassVar[tuple[str, ...]] = ("add-or-remove",)

    noise_powers = (("bound", -2),)

    measure: str
    bound: Fraction
    order: Fraction | None

    def __init__(
        self, *, measure: str, bound: Number, order: Number | None = None
    ) -> None:
        values = {
            "measure": one_of("measure", measure, MEASURES),
            "bound": exact_rho(bound, name="bound"),
            "order": _order_of(measure, order),
        }
        if measure == "rdp" and order is None:
            msg = "a bound in the rdp measure needs order="
            raise InvalidCost(msg, name="order", value=None)
        for name, value in values.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True, repr=False)
class PersonBudgets(Cost):
    """One of any number of steps, run after run, that people pay from their budgets.

    The first step takes the whole remaining budget of the dataset and opens a store of
    each person's remaining budget; later steps take nothing, and use the store.

    Source: docs/derivations/individual.md#from-run-to-run.

    Assumes: the step draws by `person_sum` and by nothing else.
    """

    paid_by_people: ClassVar[bool] = True
    #: A replaced person is two people here: one removed, another added.
    relations: ClassVar[tuple[str, ...]] = ("add-or-remove",)

    def noisier(self, factor: Fraction) -> Cost:
        """Refuse: how much noise there is, the body says.

        Raises:
            UnsupportedCost: Always.
        """
        del factor
        raise refuse(self, "a noise of its own", "Give person_sum a larger sigma.")


def _order_of(measure: str, order: Number | None) -> Fraction | None:
    if order is None:
        return None
    if measure != "rdp":
        msg = f"the {measure} measure has no order, got order={order!r}; leave it out"
        raise InvalidCost(msg, name="order", value=repr(order))
    return exact_order(order)


# Renyi divergence grows with the order, so a bound at one order covers those below;
# mu-GDP says everything at every order (Dong, Roth, Su 2022, Cor. B.6).
@renyi_divergence.register
def _(cost: IndividualBound, order: Fraction) -> Fraction:
    if cost.order is None:
        return order * cost.bound / 2
    if order > cost.order:
        hint = f"It bounds orders up to {number_text(cost.order)} only."
        raise refuse(cost, f"Renyi DP of order {float(order):g}", hint)
    return cost.bound


@gdp_mu_squared.register
def _(cost: IndividualBound) -> Fraction:
    if cost.order is not None:
        raise refuse(cost, "Gaussian DP", "Open it with measure: gdp.")
    return cost.bound


@approx_zcdp.register
def _(cost: IndividualBound) -> tuple[Fraction, Fraction]:
    if cost.order is not None:
        raise refuse(cost, "zCDP", "Open it with measure: gdp.")
    return cost.bound / 2, Fraction(0)


@scale_to_group.register
def _(cost: IndividualBound, size: int) -> Cost:
    if cost.order is not None:
        hint = "Open it with measure: gdp."
        raise refuse(cost, f"a bound for a group of {size} units", hint)
    # mu-GDP for one is (size mu)-GDP for a group.
    return IndividualBound(measure="gdp", bound=cost.bound * size**2)


class IndividualFilter(ThresholdFilter):
    """Admit while no person can exceed B, where (order, B) or mu**2 = B is public.

    The first step opens the people's tallies with `opening()`, whose price is B: the
    ledger reserves it in full. Afterwards each step charges each person their own cost
    and excludes the people whose bound it exceeds (`dpflow.people.PrivateTally`). That
    does not change the public tally, and nothing returns. A step charged here directly
    costs every person its worst case.

    Source: Feldman, Zrnic 2021 (arXiv 2008.11193) Thm 2.1, Alg. 1 and Thm 2.2;
    gdp: Koskela, Tobaben, Honkela 2022 (arXiv 2209.15596). Proof:
    docs/derivations/individual.md#individual-filter. With direct steps mixed in, every
    person's costs still sum to at most B on every path, as Thm 2.1 requires.

    Assumes: neighbours add or remove one person's record (or null it), not replace it;
    a person's cost depends on their own record and on outputs released before, on
    nothing else; people are excluded before the step runs; the excluded people and
    their number are never released. `PersonBudgets` costs nothing once the budget is
    empty, which is sound only for steps that draw from a store that an earlier charge
    of the account has paid (`dpflow.people.store`).

    Rounding: the threshold down to 36 decimals, prices up.

    Checked by: tests/accounting/rules/test_groups.py,
    tests/adversaries/test_individual_filter.py.

    Args:
        epsilon: Budget, positive.
        delta: Budget, in (0, 1).
        measure: "rdp" (default) or "gdp".
        order: The one order, above 1. Default: the order at which (epsilon, delta)
            allows most Gaussian steps.
    """

    theorem = "individual"
    made_from = ("epsilon", "delta", "measure", "order")
    # A replaced person is two people here: one removed, another added.
    relations = ("add-or-remove",)
    settlements = frozenset({"full"})
    steady: bool = False
    per_person = True

    def __init__(
        self,
        *,
        epsilon: Number,
        delta: Number,
        measure: str = "rdp",
        order: Number | None = None,
    ) -> None:
        self.epsilon: Fraction = exact_epsilon(epsilon)
        self.delta: Fraction = exact_delta(delta, zero=False)
        self.measure = one_of("measure", measure, MEASURES)
        self.order = _order_of(self.measure, order)
        if self.measure == "gdp":
            self.components = ("mu_squared",)
            allowed = gdp_budget(self.epsilon, self.delta)
        else:
            self.components = ("rdp",)
            if self.order is None:
                self.order = best_order(self.epsilon, self.delta)
            allowed = rdp_epsilon_allowed(self.epsilon, self.delta, self.order)
        if allowed < RHO_LOW:
            msg = (
                f"epsilon {number_text(self.epsilon)} with delta "
                f"{number_text(self.delta)} allows nothing in the rdp measure"
                f"{'' if order is None else f' at order {order}'}; omit the order, "
                "use measure: gdp, or raise epsilon."
            )
            raise InvalidCost(msg, name="order", value=str(order))
        self.thresholds = (units_down(allowed),)

    @property
    def bound(self) -> Fraction:
        """The B that the budget allows."""
        return from_units(self.thresholds[0])

    def opening(self, bound: Number | None = None) -> IndividualBound:
        """Return the reservation before the first individual step.

        Args:
            bound: Limit of each person's sum. Default: all of the budget.
        """
        return IndividualBound(
            measure=self.measure,
            order=self.order,
            bound=self.bound if bound is None else bound,
        )

    def step_price(self, cost: Cost) -> Tally:
        """Return the worst case of the step over all people."""
        return Tally((_amount(cost, self.order),))

    def price(self, cost: Cost, used: Tally | None = None) -> Tally:
        """Return the worst case of the step; of `PersonBudgets`, the whole rest."""
        if isinstance(cost, PersonBudgets):
            spent = 0 if used is None else used.amounts[0]
            return Tally((max(self.thresholds[0] - spent, 0),))
        return super().price(cost, used)

    def bound_of(self, amounts: tuple[int, ...]) -> IndividualBound:
        """Return the bound of each person's sum that these charged amounts pay."""
        return self.opening(from_units(amounts[0]))


def _amount(cost: Cost, order: Fraction | None) -> int:
    worst = gdp_mu_squared(cost) if order is None else renyi(cost, order)
    return units_up(worst)


class IndividualOdometer(RdpOdometer):
    """Read R + log(1 / delta) / (order - 1), for all people or for one person.

    With the public tally, R is the worst case over people. With one person's private
    sum, it bounds that person's own loss, and only that person may see it.

    Source: docs/derivations/individual.md#individual-odometer, Ville's inequality for
    the supermartingale exp((order - 1)(L - R)) of one person's add-or-remove pair,
    where R sums that person's costs. In the gdp measure R = order * sum of mu**2
    / 2.

    Assumes: a person's cost depends on their own record and on outputs released
    before; the order is fixed in advance. One-sided: halve delta for |L|. The bound
    holds at every stopping time for each person separately, not for all people
    simultaneously.

    Rounding: prices and readings up.

    Checked by: tests/accounting/rules/test_groups.py,
    tests/adversaries/test_stopping_time.py.

    Args:
        delta: Probability with which the bound may fail, in (0, 1).
        measure: "rdp" (default) or "gdp": what the people's tallies sum.
        order: The order, above 1. Default: tuned for `halt_at_epsilon`.
        halt_at_epsilon: Reading to tune for; only used to derive the order.
    """

    theorem = "individual"
    made_from = ("delta", "measure", "order")
    # A replaced person is two people here: one removed, another added.
    relations = ("add-or-remove",)
    settlements = frozenset({"full"})

    def __init__(
        self,
        *,
        delta: Number,
        measure: str = "rdp",
        order: Number | None = None,
        halt_at_epsilon: Number | None = None,
    ) -> None:
        super().__init__(delta=delta, order=order, halt_at_epsilon=halt_at_epsilon)
        self.measure = one_of("measure", measure, MEASURES)
        if self.measure == "gdp":
            self.components = ("mu_squared", "uncovered")

    def step_price(self, cost: Cost) -> Tally:
        """Return the worst case of the step over all people."""
        order = self.order if self.measure == "rdp" else None
        return Tally((_amount(cost, order), 0))

    def read(self, tally: Tally) -> float:
        """Return the bound on the loss of the person with this tally."""
        amount, uncovered = tally.amounts
        if uncovered:
            return float("inf")
        spent = from_units(amount)
        if self.measure == "gdp":
            spent = spent * self.order / 2
        return float_up(spent + self._idle)
