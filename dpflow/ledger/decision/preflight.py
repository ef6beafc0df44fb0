"""A flow run that holds its whole worst case first, and what its steps draw of that.

A preflight is a charge that no body runs under. Each of its steps moves a part of it
into a charge of its own, by one entry: what is held never falls in between, and passes
no gate a second time. A `seal` ends the preflight and returns what was not drawn; from
then on there is nothing to draw (docs/derivations/ledger.md#run-reservations).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import ReservationConflict, UnsupportedCost
from dpflow.ledger.decision.gates import Gate, charges_of
from dpflow.ledger.entry import Amounts, Sums
from dpflow.ledger.model import Decision
from dpflow.ledger.records import Granted, Request
from dpflow.ledger.rows import Charge, added_up
from dpflow.ledger.state import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Cover:
    """What the preflight of its run says about a step.

    Attributes:
        preflight: Its charge.
        ended: Whether it was sealed or closed, or the ledger was repaired since: the
            run is over for the ledger.
        drawn: What the step takes of it on every account; None if it has less left.
        held: What the runs around the step hold, where its price depends on that.
        refused: What the journal says of its refusal, if it was refused.
    """

    preflight: str
    ended: bool
    drawn: Sequence[tuple[Gate, Tally]] | None = None
    held: Sums = field(default_factory=dict)
    refused: Mapping[str, Any] | None = None

    def told(self) -> dict[str, Any]:
        """Return what the journal keeps with the step."""
        if self.refused is not None:
            return {"refused_with": self.refused["covers"]}
        return {"cover": {"charge": self.preflight, "drawn": self.drawn is not None}}


def is_repaired(state: State, charge: Charge) -> bool:
    """Say whether the ledger was repaired since a charge was made."""
    return charge.repairs != state.repairs


def cover_of(
    state: State, request: Request, asked: Sequence[tuple[Gate, Cost]]
) -> Cover | None:
    """Return what the nearest run's preflight says about a step; None without one.

    A preflight that was refused, of any run around it, says that it draws nothing.
    """
    for name in request.preflights:
        place = state.run(name).unheld
        if place is not None:
            refused = dict(state.entries[place].body)
            refused["dataset"] = str(refused["account"]).partition("#")[0]
            return Cover(preflight="", ended=False, refused=refused)
    for name in request.preflights:
        charge = state.reservation(name)
        if charge is None:
            continue
        ended = charge.state != "open" or is_repaired(state, charge)
        around = _held_around(state, request, asked)
        drawn = None if ended else _drawn(asked, charge.held, around)
        return Cover(preflight=charge.id, ended=ended, drawn=drawn, held=around)
    return None


def _held_around(
    state: State, request: Request, asked: Sequence[tuple[Gate, Cost]]
) -> Sums:
    """Return what the runs around a step hold where its price depends on what is used.

    Nothing runs under a preflight, so such a price is asked for beside it.
    """
    moving = {gate.id for gate, _ in asked if not gate.rule.steady}
    found: dict[str, Amounts] = {}
    for name in request.preflights if moving else ():
        charge = state.reservation(name)
        if charge is not None and charge.state == "open":
            here = {name: a for name, a in charge.held.items() if name in moving}
            found = added_up(found, here)
    return found


def _drawn(
    asked: Sequence[tuple[Gate, Cost]], held: Sums, around: Sums
) -> Sequence[tuple[Gate, Tally]] | None:
    """Return what a step asks of each account, if its run holds so much there."""
    pairs = charges_of(asked, around)
    fits = all(
        gate.id in held and amount.fits_within(Tally(held[gate.id]))
        for gate, amount in pairs
        if any(amount.amounts)
    )
    return pairs if fits else None


def check_additive(gate: Gate) -> None:
    """Refuse a preflight where a whole run cannot be held as the sum of its steps.

    Raises:
        UnsupportedCost: For budgets per person.
    """
    rule = gate.rule
    if not rule.per_person:
        return
    msg = (
        f"a reservation cannot hold a run on account {gate.id!r}, which has the "
        f"{rule.theorem} rule: its bound is reserved once and in full, for all steps "
        "together. Leave its dataset out of reserve_run=."
    )
    raise UnsupportedCost(msg, theorem=rule.theorem)


def reopened(pen: Decision, request: Request) -> Decision | None:
    """Find the reservation that an earlier execution of the same run has left open.

    No step runs under a reservation itself, so that one whose process has ended is
    sealed, and its rest returns. One from before a repair returns nothing.

    Raises:
        ReservationConflict: If another process runs it now, with another declaration.
    """
    state = pen.state
    charge = state.reservation(request.covers)
    if charge is None or charge.state != "open" or is_repaired(state, charge):
        return None
    owned = charge.owner == request.owner
    if owned or charge.owner in state.alive:
        if request.made(charge.made.body):
            accounts = tuple(charge.made.body["accounts"])
            held = Granted(reservation=charge.id, accounts=accounts)
            return pen.answered(held, earlier=[charge.made])
        if not owned:
            msg = (
                f"another process runs flow run {request.covers} now, and declared "
                "another reservation. Wait for its end, or run the flow anew."
            )
            raise ReservationConflict(msg, reservation=charge.id)
    sealed = {"outcome": "declared anew"}
    pen.write("seal", charge.held, sealed, charge=charge.id)
    return None
