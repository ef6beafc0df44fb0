"""A step that stopped early: filter or output DP, which leaves more for the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

from dpflow.accounting import FILTERS, Filter, make_filter
from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.early_stopping import ACCOUNTANTS, EarlyStopping
from dpflow.accounting.costs.notions import PureDP
from dpflow.accounting.rules.output import OutputFilter
from dpflow.accounting.rules.rule import share_used
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import ConfigurationError, InvalidCost, UnsupportedCost
from dpflow.forecast.counts import NO_END, WorkloadStep, in_turn, repeated
from dpflow.forecast.workload import priced

#: Not adaptive, or not a matter of sums; the others are asked.
_LEFT_OUT = ("individual", "sequence", "output")
_SMALL = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """What one way of accounting leaves after an early stop.

    Attributes:
        theorem: The filter.
        accountant: How output DP composes the sub-steps; "" for a filter that charges
            the sub-steps that ran.
        reserved: Share of the budget that was held while it ran; under output DP, of
            epsilon.
        posted: Share that it cost in the end.
        delta: Share of delta that output DP spent; it is never given back.
        rest: Further steps that fit then; None if there is no end.
        problem: Why there is no number, or "".
    """

    theorem: str
    accountant: str = ""
    reserved: float = 0.0
    posted: float = 0.0
    delta: float = 0.0
    rest: int | None = 0
    problem: str = ""

    @property
    def output_dp(self) -> bool:
        """Whether it refunds by the cell of the output, and not by sub-steps."""
        return self.theorem == "output" and self.accountant != "basic"


def small_step(epsilon: Fraction) -> Cost:
    """Return the step in which the rest is counted by default: a hundredth, pure."""
    return PureDP(epsilon=epsilon / _SMALL)


def leftovers(
    cost: EarlyStopping, stop: int, rest: Cost, *, epsilon: Fraction, delta: Fraction
) -> list[Leftover]:
    """Compare what is left after an early stop, the most first.

    Source: Hartmann et al. 2022, Sec 5.3: filters refund sub-steps that did not run,
    under a theorem of their own; output DP takes any composition theorem by Lemma 11,
    at a price for each stop that was possible.

    Args:
        cost: The step. Without an accountant, output DP gets half of delta for it.
        stop: The sub-steps that ran.
        rest: What the rest of the budget is for.
        epsilon: The budget's.
        delta: The budget's.

    Raises:
        InvalidCost: If no such number of sub-steps can run.
    """
    cost.realised(stop)
    found = list(_all(cost, stop, rest, epsilon, delta))
    return sorted(
        found,
        key=lambda each: (
            bool(each.problem),
            each.rest is not None,
            -(each.rest or 0),
            each.theorem,
        ),
    )


def _all(
    cost: EarlyStopping, stop: int, rest: Cost, epsilon: Fraction, delta: Fraction
) -> Iterator[Leftover]:
    def leftover(blank: Leftover, asked: EarlyStopping) -> Leftover:
        rule = make_filter(blank.theorem, epsilon=epsilon, delta=delta)
        return _leftover(blank, rule, WorkloadStep(asked, 1, stop), rest)

    plain = EarlyStopping(cost.step, stops=cost.stops)
    blanks = [Leftover(theorem=name) for name in FILTERS if name not in _LEFT_OUT]
    blanks += [Leftover(theorem="output", accountant=name) for name in ACCOUNTANTS]
    for blank in blanks:
        try:
            way = blank.accountant
            asked = _with_accountant(cost, way, delta) if way else plain
            yield leftover(blank, asked)
        except (UnsupportedCost, InvalidCost, ConfigurationError) as error:
            yield replace(blank, problem=error.message)


def _with_accountant(
    cost: EarlyStopping, accountant: str, delta: Fraction
) -> EarlyStopping:
    if accountant == cost.accountant:
        return cost
    if accountant == "basic":
        return EarlyStopping(cost.step, stops=cost.stops)
    shares = list(cost.deltas) or delta / 2
    return EarlyStopping(
        cost.step, stops=cost.stops, accountant=accountant, delta=shares
    )


def _leftover(
    blank: Leftover, rule: Filter, step: WorkloadStep, rest: Cost
) -> Leftover:
    reserved, posted = priced(rule, step)
    once = in_turn(partial(priced, rule), rule.admits, WorkloadStep(rest))
    if not rule.admits(reserved):
        return replace(blank, problem="its worst case does not fit the budget")
    count = repeated(once, posted)[1]
    shares = [_shares(rule, tally) for tally in (reserved, posted)]
    return replace(
        blank,
        reserved=shares[0][0],
        posted=shares[1][0],
        delta=shares[1][1],
        rest=count if count < NO_END else None,
    )


def _shares(rule: Filter, tally: Tally) -> tuple[float, float]:
    """Return the share used of a budget; of epsilon and delta apart if it has both."""
    if not isinstance(rule, OutputFilter):
        return rule.used_fraction(tally), 0.0
    pairs = zip(tally.amounts, rule.thresholds, strict=True)
    epsilon, delta = (share_used(amount, threshold) for amount, threshold in pairs)
    return epsilon, delta
