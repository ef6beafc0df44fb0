"""How budgets were used up: the share of each after each entry."""

from __future__ import annotations

from bisect import bisect

from dpflow.accounting.rules.tally import Tally
from dpflow.ledger.decision.gates import Gate
from dpflow.ledger.entry import Entry
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.records import Usage
from dpflow.ledger.storage.tables import ENDLESS, Reading
from dpflow.ledger.views.accounts import governing, term_gates
from dpflow.ledger.views.charges import bodies, newest_numbers


def usage(
    ledger: Ledger, dataset: str, *, most: int = ENDLESS
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
        term = governing(reading, dataset)
        gates = {} if term is None else term_gates(reading, term.whole)
        refused: dict[str, list[Entry]] = {}
        for entry in reading.naming([f"book/{dataset}"]):
            if entry.kind == "open":
                break
            for name in entry.body["accounts"] if entry.kind == "refuse" else ():
                if len(refused.setdefault(name, [])) < most:
                    refused[name].append(entry)
        found = {
            name: _points(reading, gate, refused.get(name, []), most)
            for name, gate in gates.items()
            if gate.used_share(gate.rule.zero()) is not None
        }
    return {name: points for name, points in found.items() if points}


def _points(
    reading: Reading, gate: Gate, refused: list[Entry], most: int
) -> list[Usage]:
    """Return the points of an account: every n-th, the newest, and its refusals."""
    numbers = newest_numbers(reading, gate.id, ENDLESS)[::-1]
    stride = 1
    while len(numbers) // stride > 2 * most:
        stride *= 2
    kept = {*numbers[stride - 1 :: stride], *numbers[-1:]}
    # What was used when a step was refused stands in the entry before.
    before = {e.number: numbers[: bisect(numbers, e.number)][-1:] for e in refused}
    entries = reading.entries({*kept, *(n for each in before.values() for n in each)})
    several = sorted([*refused, *(entries[n] for n in kept)], key=lambda e: e.number)
    points = []
    for entry, body in zip(several, bodies(reading, several), strict=True):
        used = gate.rule.zero()
        for number in before.get(entry.number, [entry.number]):
            _, settled, held = entries[number].postings[gate.id]
            used = Tally(settled) + Tally(held)
        points.append(
            Usage(
                seq=entry.number,
                kind=entry.kind,
                used_fraction=gate.used_share(used) or 0.0,
                reservation=entry.charge,
                step=body.get("step"),
                release_key=body.get("release_key"),
                at=entry.at,
                covers=body.get("covers"),
            )
        )
    return points
