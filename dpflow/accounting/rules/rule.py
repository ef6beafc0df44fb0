"""The shape that every theorem has: pure functions of an additive tally.

A theorem never replays history. `price` turns a cost into the tally that it adds,
`admits` compares a tally with a threshold solved once (a filter), `read` turns a tally
into a running bound (an odometer).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from fractions import Fraction
from typing import Any, ClassVar

from dpflow.accounting.costs.base import Cost, Outcome, Settling
from dpflow.accounting.costs.composed import Repeated
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import DpflowError, InvalidCost, UnsupportedCost
from dpflow.rounding import float_up, from_units, number_text

#: Components that count steps; all others are in `rounding.UNITS`.
COUNTS = frozenset({"uncovered"})


class Rule(ABC):
    """What filters and odometers share.

    Attributes:
        theorem: Name in policies.
        components: Names of the tally's components, in order.
        settlements: Which settlements the theorem allows, of "full", "steps" and
            "outcome" (docs/derivations/ledger.md#settlement).
        relations: The neighbouring relations under which the theorem holds.
        made_from: The attributes that determine the rule; those of value None are
            omitted.
        steady: Whether a price is the same at every used amount.
        adds_up: Whether thresholds of shares add up to the whole's
            (docs/derivations/ledger.md#reserved-shares).
        term_options: Options that a policy declares so that the thresholds of its terms
            add up; None: only the budgets of terms do.
        lists_steps: Whether the steps are listed in advance, each with a count.
        per_person: Whether people pay, each from a budget of their own: the public
            tally is reserved once, and does not decide about further steps.
        prices_substeps: Whether a cost with `substeps` (a step and how often it runs
            at most) is priced as that many steps, which is right for every fully
            adaptive theorem. False: the rule's own `price` sees such costs.
    """

    theorem: ClassVar[str]
    components: tuple[str, ...]
    made_from: ClassVar[tuple[str, ...]]
    settlements: ClassVar[frozenset[str]] = frozenset({"full", "steps"})
    relations: ClassVar[tuple[str, ...]] = ("add-or-remove", "replace-one")
    steady: bool = True
    adds_up: ClassVar[bool] = False
    term_options: ClassVar[frozenset[str] | None] = None
    lists_steps: ClassVar[bool] = False
    per_person: ClassVar[bool] = False
    prices_substeps: ClassVar[bool] = True

    def zero(self) -> Tally:
        """Return the tally before any charge."""
        return Tally((0,) * len(self.components))

    @abstractmethod
    def step_price(self, cost: Cost) -> Tally:
        """Return one step's addition to the tally, rounded up, as in `price`.

        Raises:
            UnsupportedCost: If the theorem has no sound price for the cost.
        """

    def price(self, cost: Cost, used: Tally | None = None) -> Tally:
        """Return a step's addition to the tally, rounded up.

        Args:
            cost: Of the step; one of n sub-steps costs n steps.
            used: Settled and held amounts before the step; None for an empty account.
                Most theorems ignore it. The others override this method and are not
                `steady`: a price at some use must be sound at every smaller one.

        Raises:
            UnsupportedCost: If the theorem has no sound price for the cost.
        """
        substeps = getattr(cost, "substeps", None)
        if substeps is None or not self.prices_substeps:
            return self.step_price(cost)
        step, times = substeps
        by_steps = self.price(step, used).times(times)
        try:
            rounded_once = self.step_price(Repeated(step, times))
        except UnsupportedCost:
            return by_steps
        # The sum, rounded once, if the theorem adds the notion's own numbers.
        return rounded_once if rounded_once.fits_within(by_steps) else by_steps

    def price_realised(
        self, cost: Cost, outcome: Outcome | None, used: Tally | None = None
    ) -> Tally:
        """Return a settled step's addition to the tally, given its reported outcome.

        The full price, unless the cost settles by sub-steps or by outcome and the
        theorem allows that settlement. Never more than `price(cost)`, in any
        component: a ledger settles reservations downwards only.

        Args:
            cost: The reserved cost.
            outcome: The number of sub-steps that ran, or the cell of the mechanism's
                own output; None settles in full. It must be a function of released
                outputs.
            used: Settled and held amounts before the reservation, as for `price`.

        Raises:
            UnsupportedCost: If the theorem has no sound price for the cost.
            InvalidCost: If the cost has no such outcome; then settle in full.
        """
        full = self.price(cost, used)
        if (
            outcome is None
            or not isinstance(cost, Settling)
            or cost.settlement not in self.settlements
        ):
            return full
        realised = self.outcome_price(cost, outcome, used)
        # Mixing components of two prices would be no price of either.
        return realised if realised.fits_within(full) else full

    def outcome_price(
        self, cost: Settling, outcome: Outcome, used: Tally | None
    ) -> Tally:
        """Return the price of a step's reported outcome, for a cost that settles.

        Raises:
            UnsupportedCost: If the theorem has no sound price for the cost.
            InvalidCost: If the cost has no such outcome.
        """
        return self.price(cost.realised(outcome), used)

    def settle_late(self, reserved: Tally, posted: Tally) -> Tally:
        """Return the amount to post for a step that settles after later reservations.

        The draws of later steps may decide its refund. Rules whose price belongs to the
        step alone refund at any time; rules whose prices depend on the remaining
        budget override this method (docs/derivations/ledger.md#settlement).

        Args:
            reserved: Reserved amount of the step.
            posted: Amount without later reservations; zero if the step never ran.
        """
        del reserved
        return posted

    def charge_late(self, used: Tally, more: Tally) -> Tally:
        """Return the amount to post for an unrecorded cost of an earlier step.

        Later steps were priced without it. Rules whose price belongs to the step alone
        post the plain amount; rules whose prices depend on the remaining budget
        override this method (docs/derivations/residue.md#late-charges).

        Args:
            used: Settled and held amounts.
            more: Unrecorded part of the step's price.
        """
        del used
        return more

    def parameters(self) -> dict[str, Any]:
        """Return JSON data that determine the rule, as a ledger pins them.

        They include every number that a default derived.
        """
        values = {name: getattr(self, name) for name in self.made_from}
        data = {name: _data_of(v) for name, v in values.items() if v is not None}
        return {"theorem": self.theorem, **data}

    def label(self, tally: Tally) -> dict[str, str]:
        """Return the tally in the theorem's own currency, as exact decimal text."""
        return {
            name: str(amount) if name in COUNTS else number_text(from_units(amount))
            for name, amount in zip(self.components, tally.amounts, strict=True)
        }

    def __eq__(self, other: object) -> bool:
        """Compare the parameters of two rules."""
        return (
            isinstance(other, Rule)
            and type(self) is type(other)
            and (self.parameters() == other.parameters())
        )

    def __hash__(self) -> int:
        """Hash the parameters of the rule."""
        return hash((self.theorem, repr(sorted(self.parameters().items()))))

    def __repr__(self) -> str:
        """Write the rule as it would be constructed."""
        options = ", ".join(f"{k}={v!r}" for k, v in self.parameters().items())
        return f"{type(self).__name__}({options})"


def _data_of(value: Any) -> Any:
    """Return a number, a word, a rule or several as JSON-able data."""
    if isinstance(value, tuple):
        return [_data_of(part) for part in value]
    if isinstance(value, Rule):
        return value.parameters()
    return number_text(value) if isinstance(value, Fraction) else value


class Filter(Rule):
    """A rule fixed in advance that admits or refuses steps against a fixed budget.

    If every admitted step was reserved at no less than its true cost, the whole
    transcript is (epsilon, delta)-differentially private, however the analyst adapts.

    Attributes:
        epsilon: The guarantee's epsilon, exact.
        delta: The guarantee's delta, exact.
        members: The filters of which one has to admit, for a union of filters.
    """

    members: tuple[Filter, ...] = ()
    made_from: ClassVar[tuple[str, ...]] = ("epsilon", "delta")

    epsilon: Fraction
    delta: Fraction

    @abstractmethod
    def admits(self, tally: Tally) -> bool:
        """Return whether the tally, the new step included, is within the budget."""

    @abstractmethod
    def used_fraction(self, tally: Tally) -> float:
        """Return the share of the threshold that the tally uses, rounded up."""

    def spent(self, tally: Tally) -> Fraction | None:
        """Return the epsilon of a tally, for a rule that lists its steps."""
        del tally
        return None

    def covering(self, tally: Tally) -> list[tuple[Filter, Tally]]:
        """Return the members that cover all steps, each with its own tally."""
        del tally
        return []

    @property
    def limit(self) -> Tally | None:
        """Threshold of each component, or None if no box bounds the tally."""
        return None


class ThresholdFilter(Filter):
    """A filter whose budget is one threshold per component.

    Amounts and thresholds are whole numbers of a unit (`rounding.UNITS`; `sequence`
    counts executions). A sum that equals the budget is admitted if its costs are
    multiples of the unit: every decimal of at most 36 places and every part of 1 to 100
    is. Ten times 0.1 or three times 1/3 fill a budget of 1. Other costs are rounded up
    to 36 places, and thresholds down.

    Args:
        thresholds: Exact limits of the components in units, rounded down.
    """

    thresholds: tuple[int, ...]

    def admits(self, tally: Tally) -> bool:
        """Return whether every component is at most its threshold.

        Equality, in whole units, admits.
        """
        return tally.within(self.thresholds)

    @property
    def limit(self) -> Tally:
        """The threshold of each component."""
        return Tally(self.thresholds)

    def used_fraction(self, tally: Tally) -> float:
        """Return the largest share used of any component, rounded up."""
        return max(
            share_used(amount, threshold)
            for amount, threshold in zip(tally.amounts, self.thresholds, strict=True)
        )


def list_thresholds(rule: Filter) -> list[Any] | None:
    """Return the thresholds that were solved for a rule, or for its members."""
    if isinstance(rule, ThresholdFilter):
        return list(rule.thresholds)
    return [list_thresholds(member) for member in rule.members] or None


def lower_thresholds(rule: Filter, pinned: list[Any]) -> None:
    """Lower a new rule's thresholds to pinned ones, and raise none of them.

    Args:
        rule: Rule with pinned parameters, perhaps of another solver.
        pinned: Result of `list_thresholds` at pinning.

    Raises:
        ValueError: If they are thresholds of another rule.
    """
    if isinstance(rule, ThresholdFilter):
        pairs = zip(rule.thresholds, pinned, strict=True)
        rule.thresholds = tuple(min(solved, int(limit)) for solved, limit in pairs)
        return
    for member, own in zip(rule.members, pinned, strict=True):
        if own is not None:
            lower_thresholds(member, own)


def price_or_error(price: Callable[[], Tally]) -> Tally | DpflowError:
    """Return a price, or the error in its place; a cache can store both."""
    try:
        return price()
    except (InvalidCost, UnsupportedCost) as error:
        return error.with_traceback(None)


def unwrap(price: Tally | DpflowError) -> Tally:
    """Return a price, or raise a new copy of the stored error."""
    if isinstance(price, DpflowError):
        raise type(price)(price.message, **price.details)
    return price


def share_used(amount: int, threshold: int) -> float:
    """Return amount / threshold, rounded up; zero of nothing is zero."""
    if amount == 0:
        return 0.0
    return float_up(Fraction(amount, threshold)) if threshold else float("inf")


class Odometer(Rule):
    """A rule that reads out a running upper bound on the loss of the steps it counts.

    That is the sum of their losses, each given everything that was released before, by
    counted steps or others; not the loss of their outputs taken alone
    (docs/derivations/time-uniform.md#odometer-of-one-flow). The bound holds at every
    stopping time, with probability at least 1 - delta. The last component of the tally
    counts the steps that the theorem does not cover: one of them makes the reading
    undefined permanently.

    Attributes:
        delta: Probability with which the bound may fail, exact.
    """

    made_from: ClassVar[tuple[str, ...]] = ("delta",)

    delta: Fraction

    @abstractmethod
    def read(self, tally: Tally) -> float:
        """Return the bound on the loss, rounded up; inf where undefined."""

    def charge(self, cost: Cost, used: Tally | None = None) -> Tally:
        """Return a step's addition to the tally: its price, or one uncovered step."""
        try:
            return self.price(cost, used)
        except UnsupportedCost:
            return self._tally_of_uncovered()

    def charge_realised(
        self, cost: Cost, outcome: Outcome | None, used: Tally | None = None
    ) -> Tally:
        """Return a settled step's realised price, or one uncovered step.

        Raises:
            InvalidCost: If the cost has no such outcome; then settle in full.
        """
        try:
            return self.price_realised(cost, outcome, used)
        except UnsupportedCost:
            return self._tally_of_uncovered()

    def _tally_of_uncovered(self) -> Tally:
        return Tally((*self.zero().amounts[:-1], 1))
