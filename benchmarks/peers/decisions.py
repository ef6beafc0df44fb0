"""What a decision costs in a peer, after few and after many charges.

Only the standard library, for the scripts run in the peers' own environments.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from answers import NotOfferedError, Rule, Workload
from workloads import Step

#: After so many charges a decision is timed.
CHARGES = (10, 1_000, 100_000)
#: So many of either fit (5, 1e-6) under every rule.
SMALL = (
    Workload("Gaussian", "sigma 20,000", (Step("gaussian", "20000"),)),
    Workload("pure", "epsilon 1e-6", (Step("pure", "1e-6"),)),
)
EPSILON, DELTA = 5.0, 1e-6

#: How long a rule may take to get to its next count, in seconds.
PATIENCE = 60.0
_ROUNDS = 5


class RefusedError(Exception):
    """A step that fits by its theorem was refused."""


def answer_decisions(peer: str, version: str, rules: Iterable[Rule]) -> None:
    """Print a line of JSON for each rule and workload."""
    warnings.simplefilter("ignore")
    for rule in rules:
        for workload in SMALL:
            try:
                times = _times_of(rule, workload)
            except NotOfferedError:
                continue
            line: dict[str, Any] = {
                "peer": peer,
                "version": version,
                "rule": rule.name,
                "workload": workload.name,
                "keeps": rule.admit is not None,
                "microseconds": times,
            }
            print(json.dumps(line), flush=True)


def _times_of(rule: Rule, workload: Workload) -> dict[int, float]:
    """Return the microseconds by count, up to where the rule refuses such steps."""
    times: dict[int, float] = {}
    # Such as a grid of losses on which so small steps are too large.
    with suppress(RefusedError):
        times.update(_times(rule, workload))
    return times


def _times(rule: Rule, workload: Workload) -> Iterator[tuple[int, float]]:
    """Yield the microseconds of a decision, until one takes too long to get to."""
    if rule.admit is None:
        fits = rule.fits(workload, EPSILON, DELTA)
        yield from _afresh(fits)
    else:
        admit = rule.admit(workload, EPSILON, DELTA, max(CHARGES) + _ROUNDS)
        yield from _kept(lambda: admit(workload.cycle[0]))


def _kept(decide: Callable[[], bool]) -> Iterator[tuple[int, float]]:
    """Ask an object of the peer, which keeps what it was charged."""
    charged = 0
    for count in CHARGES:
        until = time.monotonic() + PATIENCE
        while charged < count:
            _granted(decide())
            charged += 1
            if time.monotonic() > until:
                return
        yield count, min(_timed(decide) for _ in range(_ROUNDS))
        charged += _ROUNDS


def _afresh(fits: Callable[[int], bool]) -> Iterator[tuple[int, float]]:
    """Ask whether all steps so far and the next one fit together."""
    for count in CHARGES:
        until = time.monotonic() + PATIENCE
        found = [_timed(lambda count=count: fits(count + 1))]
        while len(found) < _ROUNDS and time.monotonic() < until:
            found.append(_timed(lambda count=count: fits(count + 1)))
        yield count, min(found)


def _timed(decide: Callable[[], bool]) -> float:
    start = time.thread_time_ns()
    granted = decide()
    taken = (time.thread_time_ns() - start) / 1000
    _granted(granted)
    return taken


def _granted(answer: bool) -> None:  # noqa: FBT001 (it is what was answered)
    if not answer:
        raise RefusedError
