"""Charges that nobody has settled, and whether their processes still run."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from dpflow.accounting.rules.tally import Tally
from dpflow.ledger.decision.settlement import gate_of
from dpflow.ledger.entry import Entry
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.model import Keys, Reach, State
from dpflow.ledger.records import OpenReservation
from dpflow.ledger.rows import Charge
from dpflow.ledger.storage.transaction import Reading


class UnsettledCharge(NamedTuple):
    """A charge that nobody has settled.

    Attributes:
        made: The entry that reserved it, in the first of its books.
        alive: Whether the process that holds it runs.
    """

    charge: Charge
    made: Entry
    alive: bool


def waiting(
    ledger: Ledger, reading: Reading, state: State | None = None
) -> list[UnsettledCharge]:
    """Return the charges that nobody has settled, oldest first.

    Args:
        ledger: The ledger, which knows who runs.
        reading: Of the ledger.
        state: With all open charges. Default: they are read.
    """
    names = reading.open_charges()
    state = state or reading.load(Keys(charges=tuple(names), reach=Reach.ENTRIES))
    alive = cache(ledger.owners.alive)
    found = (
        UnsettledCharge(
            each, state.made(each, next(iter(each.places))), alive(each.owner)
        )
        for each in filter(None, map(state.charge, names))
    )
    return sorted(found, key=lambda each: (each.made.at, each.charge.id))


def open_reservations(ledger: Ledger) -> list[OpenReservation]:
    """Return the charges that nobody has settled, oldest first."""
    with ledger.storage.read() as reading:
        state = reading.load(Keys(charges=tuple(reading.open_charges())))
        found = waiting(ledger, reading, state)
    return [
        OpenReservation(
            reservation=each.charge.id,
            step=each.made.body["step"],
            accounts=tuple(each.made.body["accounts"]),
            cost=each.made.body["cost"],
            body=each.made.body,
            alive=each.alive,
            at=each.made.at,
            covers=each.charge.covers,
            undrawn={
                name: gate_of(state, name, 1).rule.named(Tally(amount))
                for name, amount in each.charge.held.items()
                if each.charge.covers is not None
            },
        )
        for each in found
    ]
