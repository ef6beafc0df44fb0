"""Run reservations: the worst case of a whole flow run, and the draws of its steps.

A run reservation is a charge that no body runs under. Each of its steps moves a part of
it into a charge of its own, by one entry: what is held never falls in between, and
passes no gate a second time. A `seal` ends it and returns what was not drawn; from then
on there is nothing to draw (docs/derivations/ledger.md#run-reservations).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import ReservationConflict, UnsupportedCost
from dpflow.ledger.decision.gates import Gate, charges_of
from dpflow.ledger.decision.settlement import is_repaired
from dpflow.ledger.entry import Amounts, Sums
from dpflow.ledger.model import Decision
from dpflow.ledger.records import Granted, Request
from dpflow.ledger.rows import added_up
from dpflow.ledger.state import State


class Cover(NamedTuple):
    """Reservation of the nearest run around a step.

    Attributes:
        charge: Its id.
        ended: Whether it was sealed or closed, or the ledger was repaired since: the
            run is over for the ledger.
        drawn: What the step takes of it on every account; None if it holds less.
        held: What the runs around the step hold, where its price depends on that.
    """

    charge: str
    ended: bool
    drawn: Sequence[tuple[Gate, Tally]] | None = None
    held: Sums | None = None


def refusal_of_run(state: State, request: Request) -> Mapping[str, Any] | None:
    """Return the refusal of a reservation of a run around a step, from the journal."""
    numbers = (state.run(name).unheld for name in request.preflights)
    return next((state.entries[n].body for n in numbers if n is not None), None)


def cover_of(
    state: State, request: Request, asked: Sequence[tuple[Gate, Cost]]
) -> Cover | None:
    """Return what the reservation of its nearest run holds for a step.

    Nothing runs under a reservation, so a price that depends on what is used leaves out
    what the runs around the step hold.
    """
    charges = [c for c in map(state.reservation, request.preflights) if c is not None]
    if not charges:
        return None
    nearest, held = charges[0], dict[str, Amounts]()
    if nearest.state != "open" or is_repaired(state, nearest):
        return Cover(nearest.id, ended=True)
    moving = {gate.id for gate, _ in asked if not gate.rule.steady}
    for charge in charges:
        here = {name: held for name, held in charge.held.items() if name in moving}
        held = added_up(held, here)
    drawn = charges_of(asked, held)
    fits = all(
        amount.fits_within(Tally(nearest.held.get(gate.id, gate.rule.zero().amounts)))
        for gate, amount in drawn
    )
    return Cover(nearest.id, False, drawn if fits else None, held)


def check_additive(gate: Gate) -> None:
    """Refuse to hold a whole run where that is not the sum of its steps.

    Raises:
        UnsupportedCost: For budgets per person.
    """
    if gate.rule.per_person:
        msg = (
            f"a reservation cannot hold a run on account {gate.id!r}: its bound per "
            "person is reserved once and in full, for all steps together. Leave its "
            "dataset out of reserve_run=."
        )
        raise UnsupportedCost(msg, theorem=gate.rule.theorem)


def reopened(pen: Decision, request: Request) -> Decision | None:
    """Answer with the open reservation of the same run, or seal one that is over.

    No step runs under a reservation itself, so that one whose process has ended is
    sealed, and its rest returns. One from before a repair returns nothing.

    Raises:
        ReservationConflict: If another process runs it now, with another declaration.
    """
    state = pen.state
    charge = state.reservation(request.covers)
    if charge is None or charge.state != "open" or is_repaired(state, charge):
        return None
    if charge.owner in state.alive:
        if request.made(charge.made.body):
            accounts = tuple(charge.made.body["accounts"])
            granted = Granted(reservation=charge.id, accounts=accounts)
            return pen.answered(granted, earlier=[charge.made])
        if charge.owner != request.owner:
            msg = (
                f"another process runs flow run {request.covers} now, and declared "
                "another reservation. Wait for its end, or run the flow anew."
            )
            raise ReservationConflict(msg, reservation=charge.id)
    pen.write("seal", charge.held, {"outcome": "declared anew"}, charge=charge.id)
    return None
