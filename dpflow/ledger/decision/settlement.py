"""The end of a charge: what is posted of it, and to whom the rest returns."""

from __future__ import annotations

from operator import add

from dpflow.accounting.costs.base import Cost, Outcome, cost_from_description
from dpflow.accounting.rules.rule import Odometer
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import (
    InvalidCost,
    LedgerCorrupt,
    ReservationConflict,
    UnsupportedCost,
)
from dpflow.ledger.decision.gates import Gate, gate_at, remainder
from dpflow.ledger.decision.preflight import is_repaired, sealed
from dpflow.ledger.entry import Entry
from dpflow.ledger.model import Decision, End, Pen, Seal, State
from dpflow.ledger.rows import Amounts, Charge, Sums


def end(state: State, command: End) -> Decision:
    """End a charge on all its accounts.

    Raises:
        ReservationConflict: If there is no such charge, it has ended, another process
            holds it, or this is no way to end it.
    """
    charge, pen = known_charge(state, command.charge), Pen(state, command)
    kind = command.kind
    if _check(state, charge, command):
        return pen.decided(None)
    reported = command.reported if kind == "settle" and not charge.added else None
    body = {**command.facts, **command.body}
    if reported is not None:
        body["reported"] = reported
    for book in sorted(charge.places):
        amounts = {n: a for n, a in charge.held.items() if n.partition("#")[0] == book}
        if reported is not None:
            amounts = _reported(state, state.made(charge, book), amounts, reported)
        pen.write(book, kind, amounts, body, charge=charge.id)
    if charge.key is None or command.value is None:
        return pen.decided(None)
    return pen.decided(None, {charge.key: command.value})


def _reported(
    state: State, made: Entry, amounts: Sums, reported: Outcome
) -> dict[str, Amounts]:
    """Return what is posted to each account of a book: never more than it holds."""
    units, cost = made.body.get("units", {}), cost_from_description(made.body["cost"])
    found: dict[str, Amounts] = {}
    for name, amount in amounts.items():
        gate, posting = gate_of(state, name, units.get(name, 1)), made.postings[name]
        # What was used when it was priced, with what a preflight held already.
        total = tuple(map(add, posting.settled, posting.held))
        used = remainder(Tally(total), Tally(posting.amount))
        found[name] = realised(gate, cost, amount, reported, used)
    return found


def known_charge(state: State, name: str) -> Charge:
    """Return a charge.

    Raises:
        ReservationConflict: If nobody made it.
    """
    charge = state.charge(name)
    if charge is None:
        msg = (
            f"the ledger knows no reservation {name!s:.60}. "
            "`dpflow ledger reservations` lists those that nobody settled, and "
            "`dpflow history` all."
        )
        raise ReservationConflict(msg, reservation=name)
    return charge


def _check(state: State, charge: Charge, command: End) -> bool:
    """Refuse what may not end a charge; say whether it was ended so before.

    Raises:
        ReservationConflict: If it may not.
    """
    kind, problem = command.kind, None
    if kind == "settle" and charge.state == "settled":
        return True
    if kind == "void" and charge.owner != command.owner:
        problem = f"reservation {charge.id} belongs to another process"
    elif kind == "void" and command.again and charge.state == "void":
        return True
    elif kind == "forfeit" and charge.state == "open" and charge.owner in state.alive:
        problem = f"the process that holds reservation {charge.id} still runs"
    elif charge.state != "open":
        problem = f"reservation {charge.id} is {charge.state} already"
    if problem is not None:
        raise ReservationConflict(problem, reservation=charge.id)
    if charge.covers is not None:
        _check_preflight(state, charge, kind)
    return False


def _check_preflight(state: State, charge: Charge, kind: str) -> None:
    """Refuse to settle a preflight, or to void one that a step drew from."""
    drawn = any(
        charge.held.get(name) != posting.amount
        for book in charge.places
        for name, posting in state.made(charge, book).postings.items()
    )
    if kind == "settle" or (kind == "void" and drawn):
        msg = (
            f"reservation {charge.id} is the preflight of flow run {charge.covers}: "
            "its steps are settled each by itself, and its end is a seal"
        )
        raise ReservationConflict(msg, reservation=charge.id)


def gate_of(state: State, account: str, size: int) -> Gate:
    """Return the gate of an account that a charge was made on."""
    gate = gate_at(state, account, size)
    if gate is None:
        msg = f"account {account!r} has no gate in its term"
        raise LedgerCorrupt(msg)
    return gate


def realised(
    gate: Gate, cost: Cost, reserved: Amounts, reported: Outcome, used: Tally
) -> Amounts:
    """Return what a settled charge posts: all of it, unless the theorem gives back."""
    if gate.size != 1:
        # Reserved for more than one unit at once, where nothing is given back.
        return reserved
    whole, rule = Tally(reserved), gate.rule
    try:
        if gate.price(cost, used) != whole:
            return reserved  # by an older solver
        if isinstance(rule, Odometer) and gate.halt is None:
            posted = rule.charge_realised(cost, reported, used)
        else:
            posted = rule.price_realised(cost, reported, used)
    except (InvalidCost, UnsupportedCost):
        return reserved
    return posted.amounts if posted.fits_within(whole) else reserved


def seal(state: State, command: Seal) -> Decision:
    """End a flow run's preflight; the answer is whether there was one to seal.

    Raises:
        ReservationConflict: If another process runs the flow, or the ledger lost
            charges since: then nothing is returned.
    """
    pen, found = Pen(state, command), state.run(command.run).preflight
    charge = None if found is None else state.charge(found)
    if charge is None:
        return pen.decided(answer=False)
    if is_repaired(state, charge):
        # Draws may be among the charges that it lost and charged again.
        msg = (
            f"the ledger was repaired since preflight {charge.id} was made, "
            "so nobody knows what was drawn of it; close it with `dpflow ledger "
            "close-reservation` when its run has ended"
        )
        raise ReservationConflict(msg, reservation=charge.id)
    if charge.state != "open":
        # Only this process seals it, so the first was not in vain.
        return pen.decided(command.again and charge.state == "sealed")
    if charge.owner != command.owner:
        msg = (
            f"another process runs the flow run {command.run} and seals its preflight "
            f"{charge.id}"
        )
        raise ReservationConflict(msg, reservation=charge.id)
    sealed(pen, charge, {"outcome": command.outcome})
    return pen.decided(answer=True)
