"""How a peer's script answers: a line of JSON for each rule, workload and budget.

Only the standard library, for the scripts run in the peers' own environments.
"""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from workloads import BUDGETS, WORKLOADS, Step, Workload, largest, stepwise

#: What a rule's number means for an analyst who chooses costs adaptively.
ADAPTIVE = "adaptive"  # the rule is a filter
ORDER = "order"  # it is not, but one order fixed in advance is, with the same number
GAUSSIAN = "gaussian"  # a filter because all steps here are Gaussians
FIXED = "fixed"  # right only for a sequence of steps fixed in advance

#: Counts up to this are run again step by step with the peer's own object.
CHECKED = 400

_BISECTIONS = 200


class NotOfferedError(Exception):
    """The peer has nothing for this workload."""


Fits = Callable[[int], bool]


@dataclass(frozen=True)
class Rule:
    """One way to decide that a peer offers.

    Args:
        name: The peer's name for it.
        valid: What its number means, by workload: one of the words above.
        fits: From workload, epsilon and delta to a test of the number of steps.
        admit: From the same to a fresh object of the peer that admits or refuses one
            step after another, if it has such objects.
        guess: From the same to a number of steps near the largest that fits.
        certain: Like `fits`, slower; asked once about the count and the next one.
    """

    name: str
    valid: Callable[[Workload], str]
    fits: Callable[[Workload, float, float], Fits]
    admit: Callable[[Workload, float, float, int], Callable[[Step], bool]] | None = None
    guess: Callable[[Workload, float, float], int | None] = lambda *_: None
    certain: Callable[[Workload, float, float], Fits] | None = None


def always(word: str) -> Callable[[Workload], str]:
    """Return the same validity for every workload."""
    return lambda _: word


def if_gaussian(workload: Workload) -> str:
    """Say that a rule is a filter where all steps are Gaussians."""
    return GAUSSIAN if workload.kinds == {"gaussian"} else FIXED


def answer(peer: str, version: str, rules: Iterable[Rule]) -> None:
    """Print all answers of a peer."""
    warnings.simplefilter("ignore")
    for rule in rules:
        for workload in WORKLOADS:
            for epsilon, delta in BUDGETS:
                line: dict[str, Any] = {
                    "peer": peer,
                    "version": version,
                    "rule": rule.name,
                    "workload": workload.name,
                    "epsilon": epsilon,
                    "delta": delta,
                    "valid": rule.valid(workload),
                }
                line.update(_count(rule, workload, float(epsilon), float(delta)))
                print(json.dumps(line), flush=True)


def _count(
    rule: Rule, workload: Workload, epsilon: float, delta: float
) -> dict[str, Any]:
    try:
        guess = rule.guess(workload, epsilon, delta)
        steps = largest(rule.fits(workload, epsilon, delta), guess)
    except NotOfferedError as reason:
        return {"steps": None, "why": str(reason)}
    if rule.certain is not None:
        certain = rule.certain(workload, epsilon, delta)
        if (steps and not certain(steps)) or certain(steps + 1):
            msg = f"{rule.name}: {steps} steps of {workload.name} are not confirmed"
            raise AssertionError(msg)
    checked = None
    if rule.admit is not None and steps <= CHECKED:
        admit = rule.admit(workload, epsilon, delta, steps)
        checked = stepwise(admit, workload, steps + 2)
        if checked != steps:
            why = f"its object admits {checked}, its arithmetic {steps}"
            return {"steps": checked, "checked": True, "why": why}
    return {"steps": steps, "checked": checked is not None}


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Return the epsilon of rho-zCDP at delta (Canonne, Kamath, Steinke 2020)."""
    low, high = -12.0, 16.0  # log(order - 1): the expression has one minimum

    def at(place: float) -> float:
        order = 1 + math.exp(place)
        log = (math.log(1 / delta) - math.log(order)) / (order - 1)
        return rho * order + log + math.log1p(-1 / order)

    for _ in range(_BISECTIONS):
        third = (high - low) / 3
        if at(low + third) <= at(high - third):
            high -= third
        else:
            low += third
    return max(at(low), 0.0)


def largest_within(
    value: Callable[[float], float], most: float, low: float, high: float
) -> float:
    """Return the largest x in [low, high] with value(x) <= most; value rises."""
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if value(middle) <= most else (low, middle)
    return low


def rho_by_hand(epsilon: float, delta: float) -> float:
    """Return the rho that a user would put for (epsilon, delta)."""
    return largest_within(lambda rho: zcdp_epsilon(rho, delta), epsilon, 0.0, 1000.0)
