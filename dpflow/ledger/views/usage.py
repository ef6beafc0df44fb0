"""How budgets were used up: the share of each after each entry."""

from __future__ import annotations

from collections import deque

from dpflow.accounting.rules.tally import Tally
from dpflow.ledger.decision.gates import Gate
from dpflow.ledger.entry import Entry
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.model import Keys
from dpflow.ledger.records import Usage
from dpflow.ledger.views.accounts import current_gates
from dpflow.ledger.views.charges import openings, told


def usage(
    ledger: Ledger, dataset: str, *, most: int | None = None
) -> dict[str, list[Usage]]:
    """Return how the gates of a dataset's newest term were used up, by account.

    Args:
        ledger: The ledger to read.
        dataset: A dataset or population.
        most: Return at most twice so many points of each, spread evenly; the newest is
            there, and so are as many refusals. Default: all.

    Returns:
        The points of each account, oldest first; none of what refuses nothing, or was
        never asked.
    """
    with ledger.storage.read() as reading:
        state = reading.load(Keys(whole=(dataset,)))
        opening = openings(reading, dataset).get(state.book(dataset).terms)
        if opening is None:
            return {}
        gates = current_gates(state, dataset)
        found = {
            name: _Thinned(most)
            for name, gate in gates.items()
            if gate.used_share(gate.rule.zero()) is not None
        }
        for entry in reading.after(dataset, opening.number):
            for name in found.keys() & entry.postings.keys():
                found[name].add(entry)
        return {
            name: [_usage(gates[name], *each) for each in told(reading, kept.entries())]
            for name, kept in found.items()
            if kept.count
        }


class _Thinned:
    """Every n-th entry of an account, the newest, and its newest refusals.

    Args:
        most: From twice so many on, every second one is dropped; None keeps all.
    """

    def __init__(self, most: int | None) -> None:
        self.count = 0
        self._most = most
        self._stride = 1
        self._even: list[Entry] = []
        self._also: deque[Entry] = deque(maxlen=most)
        self._last: list[Entry] = []

    def add(self, entry: Entry) -> None:
        """Take the next entry."""
        self.count += 1
        self._last = [entry]
        if entry.kind == "refuse":
            self._also.append(entry)
        if self.count % self._stride == 0:
            self._even.append(entry)
        if self._most is not None and len(self._even) > 2 * self._most:
            self._even, self._stride = self._even[1::2], 2 * self._stride

    def entries(self) -> list[Entry]:
        """Return what is kept, oldest first."""
        kept = {each.number: each for each in (*self._even, *self._also, *self._last)}
        return [kept[number] for number in sorted(kept)]


def _usage(gate: Gate, entry: Entry, body: dict[str, object]) -> Usage:
    posting = entry.postings[gate.id]
    used = Tally(posting.settled) + Tally(posting.held)
    texts = {
        name: None if (text := body.get(name)) is None else str(text)
        for name in ("step", "release_key", "covers")
    }
    return Usage(
        seq=entry.number,
        kind=entry.kind,
        used_fraction=gate.used_share(used) or 0.0,
        reservation=entry.charge,
        at=entry.at,
        **texts,
    )
