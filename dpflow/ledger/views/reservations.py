"""Charges that nobody has settled, and whether their processes still run."""

from __future__ import annotations

from functools import cache

from dpflow.accounting.rules.tally import Tally
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.records import OpenReservation
from dpflow.ledger.rows import Charge
from dpflow.ledger.storage.tables import Reading
from dpflow.ledger.views.charges import read_charges
from dpflow.ledger.views.parts import gates_by_name


def waiting(ledger: Ledger, reading: Reading) -> list[tuple[Charge, bool]]:
    """Return the charges that nobody has settled, and who of their owners runs.

    Args:
        ledger: The ledger, which knows who runs.
        reading: Of the ledger.

    Returns:
        The oldest first.
    """
    names, alive = reading.open_charges(), cache(ledger.owners.alive)
    found = filter(None, map(read_charges(reading, names).charge, names))
    ordered = sorted(found, key=lambda each: each.made.number)
    return [(each, alive(each.owner)) for each in ordered]


def open_reservations(ledger: Ledger) -> list[OpenReservation]:
    """Return the charges that nobody has settled, oldest first."""
    with ledger.storage.read() as reading:
        found = waiting(ledger, reading)
        held = {name for each, _ in found if each.covers for name in each.held}
        gates = gates_by_name(reading, held)
    return [
        OpenReservation(
            reservation=each.id,
            step=each.made.body["step"],
            accounts=tuple(each.made.body["accounts"]),
            cost=each.made.body["cost"],
            body=each.made.body,
            alive=alive,
            at=each.made.at,
            covers=each.covers,
            undrawn={
                name: gates[name].rule.named(Tally(amount))
                for name, amount in each.held.items()
                if each.covers is not None
            },
        )
        for each, alive in found
    ]
