"""GDP residue: a step takes the least that provably leaves a Gaussian budget."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache, singledispatch

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.composed import Composed
from dpflow.accounting.costs.noise import ExponentialMechanism, Gaussian, Laplace
from dpflow.accounting.costs.notions import GaussianDP
from dpflow.accounting.costs.refined import LaplaceDraws
from dpflow.accounting.curves.conversions import gdp_budget
from dpflow.accounting.curves.prices import approx_dp, gdp_mu_squared
from dpflow.accounting.rules.delta_loss import SplitsDelta
from dpflow.accounting.rules.residue_charge import (
    GAUSSIAN,
    LAPLACE,
    RANGE,
    RESPONSE,
    breakpoint_below,
    residue_charge,
)
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import UnsupportedCost
from dpflow.rounding import Number, units_up

#: A step is dominated by a Gaussian of at most this many times any charge of its own.
MOST_ALONE = 3


class ResidueFilter(SplitsDelta):
    """Admit while each step leaves a Gaussian budget that covers all that may follow.

    At a rest m a step with the pair P is charged a c for which P, followed by a
    Gaussian of mu**2 = m - c, is dominated by one of mu**2 = m. By induction the latter
    Gaussian dominates all that follows, for every analyst; so the Gaussian that
    (epsilon, delta) allows dominates the whole. A charge that holds at a rest holds at
    every larger one, so a step is priced at the largest breakpoint below.

    Small steps cost the variance of their loss: epsilon**2, or range**2 / 4. No step
    costs more than its mu**2 under `gdp`, the cost of Gaussians.

    Unlike for other rules, the order of steps matters: a reserved amount may not
    return after a later step has drawn (docs/derivations/residue.md#refunds).

    Source: the rule is due to Regehr, Hu, Leeman, Manurangsi, Tholoniat, Lecuyer 2026
    (arXiv 2602.15815v2); proof and charges: docs/derivations/residue.md.

    Assumes: each step is as declared, given the outputs before it. No amount returns
    after a later reservation (`settle_late`). Late charges use `charge_late`.

    Rounding: the threshold and rests down, charges up.

    Checked by: tests/accounting/rules/test_residue.py and
    tests/adversaries/test_residue.py.

    Args:
        epsilon: Budget, positive.
        delta: Budget, in (0, 1).
        delta_loss: Part of delta for the Gaussian budget, fixed in advance; the rest is
            for deltas of steps. Default: all of it.
    """

    theorem = "residue"
    made_from = ("epsilon", "delta", "delta_loss")
    components = ("mu_squared", "delta")
    steady: bool = False

    def __init__(
        self, *, epsilon: Number, delta: Number, delta_loss: Number | None = None
    ) -> None:
        super().__init__(epsilon, delta, delta_loss)
        self._limit_both(gdp_budget(self.epsilon, self.delta_loss))

    def step_price(self, cost: Cost) -> Tally:
        """Return the price of a step at an empty account."""
        return self.price(cost)

    def price(self, cost: Cost, used: Tally | None = None) -> Tally:
        """Return a step's price at a used amount, rounded up.

        Args:
            cost: Of the step; its parts and sub-steps are charged one after another.
            used: Settled and held amounts before the step; None for an empty account.

        Raises:
            UnsupportedCost: If the step has no pair that a Gaussian budget covers, or a
                delta and the filter reserves none for steps.
        """
        remaining = self.thresholds[0] - (0 if used is None else used.amounts[0])
        total, lost = 0, Fraction(0)
        for kind, size, delta, alone, times in _parts(cost):
            total += _charge_equal_steps(kind, size, alone, remaining - total, times)
            lost += delta * times
        return self._both(cost, total, lost)

    def settle_late(self, reserved: Tally, posted: Tally) -> Tally:
        """Return the whole reservation: docs/derivations/residue.md#refunds."""
        del posted
        return reserved

    def charge_late(self, used: Tally, more: Tally) -> Tally:
        """Return the amount that raises the sum to a price in every order of steps."""
        before, own = used.amounts[0], more.amounts[0]
        late = MOST_ALONE * (before + own) - before if own else 0
        return Tally((late, more.amounts[1]))


#: Kind, size and delta of a part, its own mu**2 in units if any, and their number.
_Part = tuple[str, Fraction, Fraction, int | None, int]


def _charge_equal_steps(
    kind: str, size: Fraction, alone: int | None, remaining: int, times: int
) -> int:
    """Return the charge of equal steps, one after another, at any remaining budget."""
    total = 0
    while times:
        current = remaining - total
        point = breakpoint_below(max(current, 0))
        charge = residue_charge(kind, size, point)
        if alone is not None:
            charge = min(charge, alone)
        if current <= 0 or charge in (0, alone):
            # Dearer at no smaller rest.
            return total + times * charge
        # Number of steps that begin at this breakpoint or above it.
        count = min(times, (current - point) // charge + 1)
        total, times = total + count * charge, times - count
    return total


@lru_cache(maxsize=4096)
def _parts(cost: Cost) -> tuple[_Part, ...]:
    """Return the parts of a step, in their order."""
    return tuple(_walk_parts(cost, 1))


def _walk_parts(cost: Cost, times: int) -> Iterator[_Part]:
    if isinstance(cost, Composed):
        # Repeated rounds are charged part by part: which step runs when is the
        # analyst's choice, and the charges certify the product of all.
        for part in cost.costs:
            yield from _walk_parts(part, times)
        return
    iterated = getattr(cost, "substeps", None)
    if iterated is not None:
        yield from _walk_parts(iterated[0], times * iterated[1])
        return
    try:
        alone = units_up(gdp_mu_squared(cost))
    except UnsupportedCost:
        alone = None
    yield (*residue_pair(cost), alone, times)


@singledispatch
def residue_pair(cost: Cost) -> tuple[str, Fraction, Fraction]:
    """Return randomized response of the step's epsilon, with a separate delta.

    Kairouz, Oh, Viswanath 2015 (arXiv 1311.0776v4) Thm 3.1: an (epsilon, delta)-DP step
    shows everything with probability delta, and is a randomized response otherwise.

    Returns:
        The kind of the pair, its size, and the separate delta.

    Raises:
        UnsupportedCost: If the step is not (epsilon, delta)-DP for one pair of numbers.
    """
    epsilon, delta = approx_dp(cost)
    return RESPONSE, epsilon, delta


@residue_pair.register
def _(cost: Gaussian) -> tuple[str, Fraction, Fraction]:
    """Its mu**2, exactly."""
    return GAUSSIAN, (cost.sensitivity / cost.sigma) ** 2, Fraction(0)


@residue_pair.register
def _(cost: GaussianDP) -> tuple[str, Fraction, Fraction]:
    """Its mu**2, exactly."""
    return GAUSSIAN, cost.mu**2, Fraction(0)


@residue_pair.register
def _(cost: Laplace) -> tuple[str, Fraction, Fraction]:
    """Its own pair: derivations/residue.md#laplace."""
    return LAPLACE, cost.sensitivity / cost.scale, Fraction(0)


@residue_pair.register
def _(cost: LaplaceDraws) -> tuple[str, Fraction, Fraction]:
    """That of the finest draw: derivations/accuracy.md#refined-laplace."""
    return residue_pair(cost.finest)


@residue_pair.register
def _(cost: ExponentialMechanism) -> tuple[str, Fraction, Fraction]:
    """Any window of its range: derivations/residue.md#bounded-range."""
    return RANGE, cost.epsilon, Fraction(0)
