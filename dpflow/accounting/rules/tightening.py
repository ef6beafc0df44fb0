"""Lower budgets of filters, under unchanged tallies.

A budget may be lowered under a tally only if the old rule admits every tally that the
new rule admits: then the old guarantee still holds, even if the decision depends on
outputs. So orders, weights, splits and every other number that prices a step stay
fixed, and only thresholds fall (docs/derivations/ledger.md#fixed-in-advance).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from dpflow.accounting import make_filter
from dpflow.accounting.rules.auto import AutoFilter
from dpflow.accounting.rules.rdp_mixture import RdpMixtureFilter
from dpflow.accounting.rules.rule import Filter, ThresholdFilter
from dpflow.exceptions import InvalidCost
from dpflow.rounding import Number, number_from_text, number_text

#: Parameters that move thresholds only; all others also price steps.
_BUDGET = ("epsilon", "delta", "delta_loss", "deltas")


def tighten_filter(
    fixed: Mapping[str, Any], *, epsilon: Number, delta: Number, is_share: bool = False
) -> Filter:
    """Return a filter with another budget that continues another filter's tally.

    Args:
        fixed: Parameters of the tally's present filter.
        epsilon: The new budget, at most the old.
        delta: The new budget, at most the old. Parts of delta shrink with it where
            they would not fit otherwise.
        is_share: Whether the budget may be larger, too: no guarantee rests on a share.

    Raises:
        InvalidCost: If there is no such filter; then only a new tally helps.
    """
    before = make_filter(**fixed)
    reason = f"there is no proof that the {before.theorem} filter admits less"
    for options in _candidates(fixed, before, epsilon, delta):
        try:
            after = make_filter(**options)
        except InvalidCost as error:
            reason = error.message.rstrip(".")
        else:
            if admits_less(after, before) or (is_share and continues(after, before)):
                return after
    msg = (
        f"the {before.theorem} filter with the constants that were pinned for "
        f"(epsilon {number_text(before.epsilon)}, delta {number_text(before.delta)}) "
        f"cannot be lowered to (epsilon {epsilon}, delta {delta}) in place: {reason}."
    )
    raise InvalidCost(msg, name="epsilon", value=str(epsilon))


def admits_less(after: Filter, before: Filter) -> bool:
    """Return whether `before` provably admits each tally that `after` admits.

    Thresholds: compared. The mixture over orders falls with epsilon and with delta at
    fixed orders and weights (docs/derivations/rdp.md#mixture-rule). A union admits
    less if each member does. Other filters: False.
    """
    if type(after) is not type(before) or after.components != before.components:
        return False
    if isinstance(after, AutoFilter) and isinstance(before, AutoFilter):
        pairs = zip(after.members, before.members, strict=True)
        return all(admits_less(new, old) for new, old in pairs)
    if not same_prices(after, before):
        return False
    if isinstance(after, ThresholdFilter) and isinstance(before, ThresholdFilter):
        return after.limit.fits_within(before.limit)
    smaller = after.epsilon <= before.epsilon and after.delta <= before.delta
    return smaller and isinstance(after, RdpMixtureFilter)


def continues(after: Filter, before: Filter) -> bool:
    """Return True if a filter may go on with the tally of another one."""
    return same_prices(after, before) or admits_less(before, after)


def same_prices(first: Filter, other: Filter) -> bool:
    """Return whether two filters of one kind give each step equal prices."""
    alike = first.components == other.components
    return type(first) is type(other) and alike and _pricing(first) == _pricing(other)


def _pricing(rule: Filter) -> dict[str, Any]:
    return {k: v for k, v in rule.parameters().items() if k not in _BUDGET}


def _candidates(
    fixed: Mapping[str, Any], before: Filter, epsilon: Number, delta: Number
) -> Iterator[dict[str, Any]]:
    """Yield the parameters with parts of delta as they are, then in proportion."""
    budget = {"epsilon": epsilon, "delta": delta}
    yield {**fixed, **budget}
    if before.delta:
        factor = number_from_text(str(delta)) / before.delta
        yield {**_scale_options(fixed, factor), **budget}


def _scale_options(options: Mapping[str, Any], factor: Fraction) -> dict[str, Any]:
    scaled = dict(options)
    for name, value in options.items():
        if name in ("delta", "delta_loss"):
            scaled[name] = _product(value, factor)
        elif name == "deltas":
            scaled[name] = [_product(part, factor) for part in value]
        elif name == "members":
            scaled[name] = [_scale_options(member, factor) for member in value]
    return scaled


def _product(text: str, factor: Fraction) -> str:
    return number_text(number_from_text(text) * factor)
