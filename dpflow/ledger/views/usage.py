"""How budgets were used up: the share of each after each entry."""

from __future__ import annotations

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
        numbers: dict[str, list[int]] = {
            name: []
            for name, gate in gates.items()
            if gate.used_share(gate.rule.zero()) is not None
        }
        refused: dict[str, list[int]] = {name: [] for name in numbers}
        for entry in reading.after(dataset, opening.number):
            for name in numbers.keys() & entry.postings.keys():
                numbers[name].append(entry.number)
                if entry.kind == "refuse":
                    refused[name].append(entry.number)
        found = {}
        for name in filter(numbers.get, numbers):
            kept = _thinned(numbers[name], refused[name], most)
            entries = reading.entries((dataset, number) for number in kept)
            several = [entries[dataset, number] for number in kept]
            points = told(reading, several)
            found[name] = [_usage(gates[name], *each) for each in points]
        return found


def _thinned(numbers: list[int], refused: list[int], most: int | None) -> list[int]:
    """Return every n-th number, the newest, and as many of the newest refusals."""
    stride = 1
    while most is not None and len(numbers) // stride > 2 * most:
        stride *= 2
    return sorted(
        {*numbers[stride - 1 :: stride], numbers[-1], *refused[-(most or 1) :]}
    )


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
