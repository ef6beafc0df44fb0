"""From the budget to the noise: how much each planned step needs for the runs to fit.

A flow's budget has to last for the planned runs. All steps of a run share one scale of
noise; one that is worth w times the precision gets 1 / sqrt(w) of it. The least scale
is solved at which every gate of the flow admits all runs from an empty account, and
each noise is rounded up. It is no part of the guarantee: the filter decides about each
step with the noise that it draws, wherever that noise comes from.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache, reduce
from math import isqrt
from operator import add
from typing import Any

from dpflow.accounting import make_filter, make_odometer
from dpflow.accounting.costs.planned import PlannedNoise
from dpflow.accounting.costs.text import cost_from_text
from dpflow.accounting.rules.rule import Filter, Odometer
from dpflow.accounting.searches import least_noise
from dpflow.exceptions import InvalidCost
from dpflow.rounding import (
    RATIO_HIGH,
    RATIO_LOW,
    number_from_text,
    number_text,
    short_up,
)

#: Significant digits of a noise, rounded up; the least noise is searched to one more.
_DIGITS = 9
_CLOSE = 1 + Fraction(1, 10 ** (_DIGITS + 1))
_ROOT = 10**20

#: Says whether a number of runs fits, given the noise of each step.
_Admits = Callable[[Mapping[str, Fraction], int], bool]


def with_planned_noise(pinned: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a policy with the noise that each flow's plan needs.

    Args:
        pinned: What a ledger pins, with the rules that the noise is solved for.

    Raises:
        InvalidCost: If there is no such noise, or none that could be relied on.
    """
    flows = dict(pinned["flows"])
    planned = [name for name, share in flows.items() if "plan" in share]
    if planned:
        _check_alone(pinned, planned)
    for name in planned:
        try:
            solved = dict(_solve(json.dumps(_collect_inputs(pinned, flows[name]))))
        except InvalidCost as error:
            raise InvalidCost(error.message, name="plan", value=name) from None
        if solved:
            flows[name] = {**flows[name], "noise": solved}
    return {**pinned, "flows": flows}


def plan_multiplier(
    pinned: Mapping[str, Any], flow: str | None, step: str, planned: PlannedNoise
) -> Fraction:
    """Return the noise that a copy plans for a step, as a multiple of its sensitivity.

    Raises:
        InvalidCost: If it plans none, or for another mechanism.
    """
    share = pinned["flows"].get(flow, {})
    noise = share.get("noise", {})
    mechanism = share["plan"]["steps"][step]["mechanism"] if step in noise else None
    if mechanism == planned.mechanism:
        return number_from_text(noise[step])
    msg = (
        f"step {step!r} declares {planned!r}, but the policy of dataset "
        f"{pinned['dataset']!r} plans {mechanism or 'no'} noise for it in flow "
        f"{flow!r} (planned steps: {', '.join(noise) or 'none'}). Write it there with "
        f"`mechanism: {planned.mechanism}`, or give the noise as a number."
    )
    raise InvalidCost(msg, name="noise", value=mechanism or "planned")


def _check_alone(pinned: Mapping[str, Any], planned: list[str]) -> None:
    """Refuse a plan whose runs others could use up, or that no total bounds."""
    greedy = [name for name in planned if pinned["flows"][name]["filter"] is None]
    hint = "Write the noise as a number."
    if len(greedy) > 1:
        why = f"the flows {', '.join(greedy)} each plan to use the whole budget"
        hint = "Give each a share: epsilon and delta."
    elif "partition" in pinned and "window" not in pinned:
        why = "runs cannot be planned where each partition has a budget of its own"
    elif "population" in pinned:
        why = "a plan does not see what others use of the population's budget"
    else:
        return
    msg = f"{why}. {hint}"
    raise InvalidCost(msg, name="plan", value=[*greedy, *planned][0])


def _collect_inputs(
    pinned: Mapping[str, Any], share: Mapping[str, Any]
) -> dict[str, Any]:
    """Return all that a flow's noise depends on."""
    return {
        "filters": [rule for rule in (pinned["filter"], share["filter"]) if rule],
        "odometer": share["odometer"],
        "halt": share["halt_at_epsilon"],
        **share["plan"],
    }


@lru_cache(maxsize=256)
def _solve(asked: str) -> tuple[tuple[str, str], ...]:
    """Return the least noise of each step, rounded up, at which all runs fit."""
    plan = json.loads(asked)
    weights = {
        name: number_from_text(step["weight"])
        for name, step in plan["steps"].items()
        if "weight" in step
    }
    admits = _admission(plan)

    def noise(scale: Fraction) -> dict[str, Fraction]:
        return {
            name: number_from_text(short_up(scale / _root(w), _DIGITS))
            for name, w in weights.items()
        }

    runs = int(plan["runs"])
    if not weights and admits({}, runs):
        return ()
    least = least_noise(
        lambda scale: admits(noise(scale), runs),
        low=RATIO_LOW * 10**4,
        high=1,
        most=RATIO_HIGH / 10**4,
        close=_CLOSE,
    )
    result = {} if least is None else noise(least)
    if least is None or not admits(result, runs) or admits(result, runs + 1):
        msg = (
            f"no noise lets {runs} runs fit the budget and the next one not. Plan "
            "another number of runs, or change the budget."
        )
        raise InvalidCost(msg, name="plan", value=runs)
    return tuple((name, number_text(result[name])) for name in sorted(result))


def _admission(plan: Mapping[str, Any]) -> _Admits:
    rules: list[Filter | Odometer] = [
        make_filter(**options) for options in plan["filters"]
    ]
    if plan["halt"] is not None:
        rules.append(make_odometer(**plan["odometer"]))
    for rule in rules:
        if not rule.steady or rule.lists_steps:
            msg = (
                f"runs cannot be planned under {rule.theorem}: what a step is charged "
                "depends on what was charged before, so runs to come have no price "
                "yet. Write `filter: gdp`, or write the noise as a number."
            )
            raise InvalidCost(msg, name="plan", value=rule.theorem)
    kinds = {k: step.get("mechanism") for k, step in plan["steps"].items()}
    texts = [step["cost"] for step in plan["steps"].values() if "cost" in step]
    others = [cost_from_text(text) for text in texts]

    def admits(noise: Mapping[str, Fraction], runs: int) -> bool:
        planned = [PlannedNoise.of_unit(kinds[k]).at(m) for k, m in noise.items()]
        steps = [*planned, *others]
        totals = [reduce(add, map(rule.price, steps)).times(runs) for rule in rules]
        return all(
            rule.admits(total)
            if isinstance(rule, Filter)
            else rule.read(total) <= number_from_text(plan["halt"])
            for rule, total in zip(rules, totals, strict=True)
        )

    return admits


def _root(weight: Fraction) -> Fraction:
    """Return a square root, rounded down."""
    return Fraction(isqrt(weight.numerator * _ROOT**2 // weight.denominator), _ROOT)


def plan_noise(pinned: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a copy plans, by flow: runs and the noise of each step."""
    return {
        flow: {"runs": share["plan"]["runs"], "noise": share["noise"]}
        for flow, share in pinned["flows"].items()
        if "noise" in share
    }


def plan_lines(pinned: Mapping[str, Any]) -> list[str]:
    """Say what noise a copy plans, a line for each flow that has a plan."""
    return [
        f"Flow {name}: {plan['runs']} runs fit an empty account, with noise "
        f"of {_noise_words(plan['noise'])} times the sensitivity."
        for name, plan in plan_noise(pinned).items()
    ]


def _noise_words(noise: Mapping[str, str]) -> str:
    result = [f"{short_up(number_from_text(m))} ({step})" for step, m in noise.items()]
    return " and ".join(filter(None, [", ".join(result[:-1]), result[-1]]))
