"""Runs that are kept for a flow: what they hold of the dataset's budget.

`keep: 52` holds the worst case of 52 runs of a term, in the amounts of the dataset's
own filter. The copy pins what one run holds; what is left of it follows from that and
from the flow's account (docs/derivations/ledger.md#kept-runs).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, reduce
from operator import add
from typing import Any

from dpflow.accounting import make_filter, make_odometer
from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.planned import PlannedNoise
from dpflow.accounting.costs.text import cost_from_text
from dpflow.accounting.rules.rule import Odometer, Rule
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import InvalidCost
from dpflow.policy.planned_noise import (
    admitted,
    check_steady,
    plan_lines,
    with_planned_noise,
)
from dpflow.rounding import number_from_text

_Pinned = Mapping[str, Any]


def with_derived_runs(pinned: _Pinned) -> dict[str, Any]:
    """Return a copy of a policy with the noise that its flows plan, and what is kept.

    Raises:
        InvalidCost: If there is no such noise, or too much to keep.
    """
    return with_kept_runs(with_planned_noise(pinned))


def with_kept_runs(pinned: _Pinned) -> dict[str, Any]:
    """Return a copy of a policy with what one kept run of each flow holds.

    Args:
        pinned: What a ledger pins, with the noise that it plans.

    Raises:
        InvalidCost: If the runs cannot be held, or do not fit an empty account.
    """
    kept = [name for name, share in pinned["flows"].items() if "keep" in share]
    if not kept:
        return dict(pinned)
    _check_whole(pinned)
    flows = dict(pinned["flows"])
    for name in kept:
        held = _run_held(json.dumps([pinned["filter"], _run(flows[name])]))
        flows[name] = {**flows[name], "run_holds": list(held)}
    found = {**pinned, "flows": flows}
    for name in kept:
        _check_fits(found, name)
    return found


def holds_of(pinned: _Pinned) -> dict[str, tuple[Tally, int]]:
    """Return what a copy holds for one run of each flow, and for how many runs."""
    return {
        name: (Tally(tuple(share["run_holds"])), share["keep"])
        for name, share in pinned["flows"].items()
        if "run_holds" in share
    }


def most_runs(fits: Callable[[int], bool], runs: int) -> int:
    """Return the most runs, of so many that do not fit, that do."""
    low, high = 0, runs
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def run_lines(pinned: _Pinned) -> list[str]:
    """Say what a copy plans and keeps for the runs of its flows."""
    return [*plan_lines(pinned), *keep_lines(pinned)]


def keep_lines(pinned: _Pinned) -> list[str]:
    """Say what a copy keeps, a line for each flow that it keeps runs for."""
    rule = make_filter(**pinned["filter"]) if holds_of(pinned) else None
    return [
        f"Flow {name}: {runs} runs are kept, {rule.used_fraction(run.times(runs)):.1%}"
        " of the dataset's budget; no other flow can use it."
        for name, (run, runs) in holds_of(pinned).items()
        if rule is not None
    ]


def _check_whole(pinned: _Pinned) -> None:
    """Refuse to keep runs where the dataset's own account does not bound them."""
    why = ""
    if "partition" in pinned:
        why = "runs cannot be kept where each partition has a budget of its own"
    elif "population" in pinned:
        why = "what is kept here could be refused by the population's budget"
    if why:
        msg = f"{why}. Drop keep, or give the flows' data a dataset of its own."
        raise InvalidCost(msg, name="keep", value=None)
    check_steady(make_filter(**pinned["filter"]), "kept")


def _run(share: Mapping[str, Any]) -> dict[str, Any]:
    """Return all that the steps of one run are made from."""
    names = ("noise", "mechanism", "costs")
    return {name: share[name] for name in names if name in share}


def run_costs(run: Mapping[str, Any]) -> Iterator[Cost]:
    """Yield the cost of each step of a run: with planned noise, then with its own."""
    for text in run.get("noise", {}).values():
        yield PlannedNoise.of_unit(run["mechanism"]).at(number_from_text(text))
    yield from map(cost_from_text, run.get("costs", ()))


@lru_cache(maxsize=256)
def _run_held(asked: str) -> tuple[int, ...]:
    """Return what one run holds of the dataset's filter."""
    rule, run = json.loads(asked)
    return _priced(make_filter(**rule), run).amounts


def _priced(rule: Rule, run: Mapping[str, Any]) -> Tally:
    return reduce(add, map(rule.price, run_costs(run)))


def _check_fits(pinned: _Pinned, flow: str) -> None:
    """Refuse more runs than an empty account of the dataset, or of the flow, holds."""
    holds, share = holds_of(pinned), pinned["flows"][flow]
    rule, (each, keep) = make_filter(**pinned["filter"]), holds[flow]
    others = [run.times(runs) for name, (run, runs) in holds.items() if name != flow]
    beside = reduce(add, others, rule.zero())
    _check_count(lambda n: rule.admits(beside + each.times(n)), flow, keep, "budget")
    if share["filter"] is not None:
        own = make_filter(**share["filter"])
        _check_own(own, None, share, flow, "share")
    if share["halt_at_epsilon"] is not None:
        halt = number_from_text(share["halt_at_epsilon"])
        odometer: Odometer = make_odometer(**share["odometer"])
        _check_own(odometer, halt, share, flow, "halt_at_epsilon")


def _check_own(
    rule: Rule, halt: Any, share: Mapping[str, Any], flow: str, name: str
) -> None:
    check_steady(rule, "kept")
    each, keep = _priced(rule, _run(share)), share["keep"]
    _check_count(lambda n: admitted(rule, halt, each.times(n)), flow, keep, name)


def _check_count(fits: Callable[[int], bool], flow: str, keep: int, name: str) -> None:
    if fits(keep):
        return
    most = most_runs(fits, keep)
    where = "beside what is kept for others" if name == "budget" else "of the flow"
    msg = (
        f"keep: {keep} holds more than the {name}: {most} runs of flow {flow!r} fit "
        f"an empty account {where}. Keep at most {most}, or raise the {name}."
    )
    raise InvalidCost(msg, name="keep", value=keep)
