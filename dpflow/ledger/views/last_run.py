"""What the last completed run of a flow was charged for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from dpflow.accounting.costs import Cost, cost_from_description
from dpflow.ledger.entry import Entry
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.storage.base import Reading
from dpflow.ledger.views.said import body_of, made_by

#: So many of each journal's newest entries are read to find a flow's last run.
_WINDOW = 20_000


@dataclass(frozen=True, slots=True)
class Charged:
    """What one step of a run was charged for."""

    datasets: tuple[str, ...]
    partitions: tuple[str, ...]
    cost: Cost


def last_costs(ledger: Ledger, flow: str, *, but: str) -> list[Charged]:
    """Return the costs of a flow's last completed run; none if there was no such run.

    A run is completed if it met no refusal, every charge was settled, and a step that
    failed was run again to its end. A release that it replayed cost nothing.

    Args:
        ledger: The ledger to read.
        flow: Name of the flow, as policies name it.
        but: Id of a run to pass over: the one that asks.
    """
    with ledger.storage.read() as reading:
        runs = _runs(reading, flow)
    runs.pop(but, None)
    oldest_first = sorted(runs.values(), key=lambda each: each.last)
    for run in reversed(oldest_first):
        charged = run.completed()
        if charged:
            return charged
    return []


def _runs(reading: Reading, flow: str) -> dict[str, _Run]:
    """Return what the newest entries of all journals say of a flow's runs."""
    runs: dict[str, _Run] = {}
    for book in reading.books():
        newest = list(islice(reading.newest(book), _WINDOW))
        made = made_by(reading, newest)
        # The beginning of the first run may be older than what was read.
        cut = bool(newest) and newest[-1].number > 1
        for entry in reversed(newest):
            body = body_of(entry, made)
            name = body.get("flow_run")
            if name is None or body.get("flow") != flow:
                continue
            run = runs.setdefault(name, _Run())
            run.whole, cut = run.whole and not cut, False
            run.add(entry, body)
    return runs


@dataclass(slots=True)
class _Run:
    """What became of a run's charges.

    Attributes:
        whole: Whether all its entries were read.
        last: When its newest entry was written; a label.
    """

    whole: bool = True
    last: str = ""
    ended: bool = True
    open_now: set[str] = field(default_factory=set)
    done: dict[str, Charged] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    succeeded: set[str] = field(default_factory=set)

    def add(self, entry: Entry, body: Mapping[str, Any]) -> None:
        """Follow one entry; a charge on several books has one in each."""
        name, kind = str(entry.charge), entry.kind
        self.last = max(self.last, entry.at)
        if kind in {"refuse", "forfeit"} or (
            kind == "seal" and body["outcome"] == "failed"
        ):
            self.ended = False
        elif kind == "reserve" and body.get("covers") is None:
            self.open_now.add(name)
        elif kind == "void":
            self.open_now.discard(name)
        elif kind == "settle":
            self.open_now.discard(name)
            step = str(body.get("step"))
            if body.get("outcome") == "completed":
                self.done[name] = _charged(body)
                self.succeeded.add(step)
            else:
                self.failed.add(step)

    def completed(self) -> list[Charged]:
        """Return what its steps were charged for, or nothing if it did not complete."""
        whole = self.whole and self.ended and not self.open_now
        again = self.failed <= self.succeeded
        return list(self.done.values()) if whole and again else []


def _charged(body: Mapping[str, Any]) -> Charged:
    def names(key: str) -> tuple[str, ...]:
        found: Iterable[object] = body.get(key) or ()
        return tuple(map(str, found))

    return Charged(
        names("datasets"), names("partitions"), cost_from_description(body["cost"])
    )
