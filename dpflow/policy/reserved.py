"""Shares in percent, and reserved shares, which leave the rest to all others.

A percentage is a part of the threshold in force. The filter of `others` covers
everything that no reserved share is charged for. Its thresholds are those of the
dataset minus those of all reserved shares. Both are computed when a policy is pinned
(docs/derivations/ledger.md#reserved-shares).
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from dpflow.accounting import make_filter
from dpflow.accounting.rules.rule import ThresholdFilter
from dpflow.accounting.rules.tightening import same_prices
from dpflow.exceptions import InvalidCost
from dpflow.policy.planned_noise import plan_lines, with_planned_noise
from dpflow.rounding import from_units, number_from_text, short_up

_Pinned = Mapping[str, Any]


def with_derived_numbers(pinned: _Pinned) -> dict[str, Any]:
    """Return a copy of a policy with planned noise and the thresholds of `others`.

    Raises:
        InvalidCost: If the noise or the thresholds do not exist.
    """
    pinned = with_planned_noise(_with_shares(pinned))
    flows = list_reserved(pinned)
    if not flows:
        return pinned
    _check_allowed(pinned, flows[0])
    rule = _filter(pinned["filter"])
    others = list(rule.thresholds)
    for flow in flows:
        share = _filter(pinned["flows"][flow]["filter"])
        if not same_prices(share, rule):
            msg = (
                f"the share of flow {flow!r} and the dataset's filter have different "
                "constants, so that their thresholds do not add up. Declare the "
                "filter's options such that they hold for both."
            )
            raise InvalidCost(msg, name="reserved", value=flow)
        others = [a - b for a, b in zip(others, share.thresholds, strict=True)]
    for name, amount in zip(rule.components, others, strict=True):
        if amount < 0:
            msg = (
                f"the reserved shares of {', '.join(flows)} together exceed the "
                f"budget's {name} by {short_up(from_units(-amount))}. Lower a "
                "reserved share, or raise the budget."
            )
            raise InvalidCost(msg, name="reserved", value=flows[-1])
    return {**pinned, "others": {**pinned["filter"], "thresholds": others}}


def share_filter(
    pinned: _Pinned, percent: str, flow: str | None = None
) -> dict[str, Any]:
    """Return the parameters of a dataset's filter with a part of its threshold.

    Args:
        pinned: A copy of a policy.
        percent: The part, such as "70%".
        flow: The flow whose share it is; None for each flow without a name.

    Raises:
        InvalidCost: If the filter has no single threshold in force.
    """
    rule = make_filter(**pinned["filter"])
    if rule.adds_up and "window" not in pinned:
        part = number_from_text(percent.removesuffix("%")) / 100
        thresholds = [int(n * part) for n in _filter(pinned["filter"]).thresholds]
        return {**pinned["filter"], "thresholds": thresholds}
    why = f"this {rule.theorem} filter has no single threshold"
    hint = "Write `epsilon` and `delta`" if flow else "Write `other_flows: allow`"
    if "window" in pinned:
        why = "each window has its own sum"
    elif rule.members:
        hint += ", or `filter: gdp`"
    msg = f"a share in percent is a part of one threshold, and {why}. {hint}."
    raise InvalidCost(msg, name="share" if flow else "other_flows", value=flow)


def _with_shares(pinned: _Pinned) -> dict[str, Any]:
    """Return a copy with the filters of shares in percent."""
    other, reserved = pinned["other_flows"], list_reserved(pinned)
    flows, total = dict(pinned["flows"]), Fraction(0)
    for name, share in pinned["flows"].items():
        if "share" in share:
            total += number_from_text(share["share"].removesuffix("%"))
            numbers = share_filter(pinned, share["share"], name)
            flows[name] = {**share, "filter": numbers}
    if reserved and total > 100:  # noqa: PLR2004
        msg = f"the shares add up to {short_up(total)}%. Lower them to 100% together."
        raise InvalidCost(msg, name="share", value=reserved[0])
    if not isinstance(other, Mapping):
        return {**pinned, "flows": flows}
    if reserved:
        msg = "shares for unnamed flows do not go with reserved shares. Remove one."
        raise InvalidCost(msg, name="other_flows", value=None)
    default = share_filter(pinned, other["share_each"])
    return {**pinned, "flows": flows, "each": default}


def list_reserved(pinned: _Pinned) -> list[str]:
    """Return the flows whose share is reserved."""
    return [name for name, share in pinned["flows"].items() if "reserved" in share]


def charges_others(pinned: _Pinned, flow: str | None) -> bool:
    """Return True if a charge of a flow, or outside any flow, posts to `others`."""
    return "others" in pinned and flow not in list_reserved(pinned)


def run_lines(pinned: _Pinned) -> list[str]:
    """Return the sentences about planned noise and shares of a copy."""
    if "each" in pinned:
        percent = pinned["other_flows"]["share_each"]
        line = f"Each flow without a name in the policy has {percent} of the budget."
        return [*plan_lines(pinned), line]
    if "others" not in pinned:
        return plan_lines(pinned)
    names = ", ".join(list_reserved(pinned))
    limits = _filter(pinned["filter"]).thresholds
    pairs = zip(pinned["others"]["thresholds"], limits, strict=True)
    share = min((others / all_ for others, all_ in pairs if all_), default=0)
    line = (
        f"Reserved shares: {names}. All other charges together have {share:.1%} of the "
        "dataset's budget."
    )
    return [*plan_lines(pinned), line]


def _check_allowed(pinned: _Pinned, flow: str) -> None:
    """Refuse reserved shares where a share is no part of one threshold."""
    rule = make_filter(**pinned["filter"])
    hint = "Remove `reserved`, or use a dataset of its own for the flow's data."
    if "partition" in pinned:
        why = "a share cannot be reserved where each partition has its own budget"
    elif "population" in pinned:
        why = "other datasets could use up the population's budget of a reserved share"
    elif not rule.adds_up:
        why = f"a share cannot be reserved under this {rule.theorem} filter: "
        why += "it has no single threshold"
        hint = "Write `filter: gdp`, or remove `reserved`."
    else:
        return
    msg = f"{why}. {hint}"
    raise InvalidCost(msg, name="reserved", value=flow)


def _filter(numbers: _Pinned) -> ThresholdFilter:
    result = make_filter(**numbers)
    assert isinstance(result, ThresholdFilter)
    return result
