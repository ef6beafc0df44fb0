"""The end of a charge, and the reservations of whole runs.

A charge posts a part of what it holds, and the rest returns.

A run reservation is a charge that no body runs under. Each of its steps moves a part of
it into a charge of its own, by one entry: what is held never falls in between, and
passes no gate a second time. A `seal` ends it and returns what was not drawn; from then
on there is nothing to draw (docs/derivations/ledger.md#run-reservations).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add, le
from typing import Any, ClassVar, NamedTuple

from dpflow.accounting.costs.base import Cost, Outcome, cost_from_description
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import (
    InvalidCost,
    LedgerCorrupt,
    ReservationConflict,
    UnsupportedCost,
)
from dpflow.ledger.decision.gates import Gate, charges_of, gate_at, remainder
from dpflow.ledger.entry import Amounts, Entry, Sums
from dpflow.ledger.journal import KINDS
from dpflow.ledger.model import Command, Decision, terms_of_accounts
from dpflow.ledger.records import Granted, Request
from dpflow.ledger.rows import Charge, account_key, added_up, may_return
from dpflow.ledger.state import State, charge_keys


@dataclass(frozen=True, slots=True, kw_only=True)
class End(Command):
    """End of a charge.

    Attributes:
        kind: "settle", "void", "forfeit" or "seal".
        charge: Its id; empty for a seal.
        run: For a seal, the flow run whose reservation ends.
        owner: This process; empty for an operator.
        body: Further facts, such as the outcome and the digest of the value.
        reported: Number of sub-steps that ran, or cell of the mechanism's output.
        value: The encoded output; None keeps nothing to replay.
    """

    follows: ClassVar[bool] = False

    kind: str
    charge: str = ""
    run: str = ""
    owner: str = ""
    body: Mapping[str, Any] = field(default_factory=dict)
    reported: Outcome | None = None
    value: str | None = None

    def keys(self, state: State) -> Iterator[str]:
        """Yield the charge with all that it holds; its rules say what returns."""
        name = self.charge
        if self.run:
            yield from ("repairs", f"run/{self.run}")
            name = (state.rows.get(f"run/{self.run}") or {}).get("reservation") or ""
        if name:
            yield from held_keys(state, name)
        made = state.made.get(name)
        if made is not None and (self.reported is not None or self.kind == "void"):
            yield from terms_of_accounts(state, made.amounts)

    def charges_met(self, _: State) -> Iterable[str | None]:
        """Return the charge, if its owner must have ended."""
        return (self.charge,) if self.kind == "forfeit" else ()

    def decide(self, state: State) -> Decision:
        """End a charge on all its accounts; the answer is whether it has ended so.

        A flow run without an open reservation has nothing to seal.

        Raises:
            ReservationConflict: If there is no such charge, it has ended, another
                process holds it, or this is no way to end it.
        """
        pen, name = Decision(state, self), self.charge
        if self.run:
            name = state.run(self.run).reservation or ""
            if not name:
                return pen.answered(answer=False)
        charge = known_charge(state, name)
        answer = _answer(state, charge, self)
        if answer is not None:
            return pen.answered(answer)
        kind, body, amounts = self.kind, dict(self.body), charge.held
        if self.reported is not None and charge.owner == self.owner:
            # Only the process that ran the body knows its outcome and its cost's class.
            cost_from_description(charge.made.body["cost"])
            body["reported"] = self.reported
            amounts = _posted(state, charge, body)
        elif kind == "void" and charge.covers is None:
            voided = {**body, "outcome": "void"}
            late = _posted(state, charge, voided)
            if any(map(any, late.values())):
                # What cannot return is posted; a void posts nothing.
                kind, body, amounts = "settle", voided, late
        pen.write(kind, amounts, body, charge=charge.id)
        release = pen.state.release(charge.key)
        # A charge that lost its key to another one settles without a release.
        if release and release.charge == charge.id and self.value is not None:
            pen.keep(release.key, self.value)
        return pen.answered(answer=True)


class Forfeit(End):
    """End of another process's charge, on accounts that this one may not know."""

    guarded: ClassVar[bool] = True
    follows: ClassVar[bool] = True


def held_keys(state: State, charge: str) -> Iterator[str]:
    """Yield the keys of a charge and of the accounts on which it holds something."""
    yield from charge_keys(state, charge)
    if made := state.made.get(charge):
        yield from map(account_key, made.amounts)


def known_charge(state: State, name: str) -> Charge:
    """Return a charge.

    Raises:
        ReservationConflict: If the ledger has no such charge.
    """
    charge = state.charge(name)
    if charge is None:
        msg = (
            f"the ledger has no reservation {name!s:.60}. `dpflow history` lists all, "
            "and `dpflow ledger reservations` those that are open."
        )
        raise ReservationConflict(msg, reservation=name)
    return charge


def is_repaired(state: State, charge: Charge) -> bool:
    """Say whether the ledger was repaired since a charge began.

    Draws from a run reservation may be among the charges that it lost.
    """
    return charge.repairs != state.repairs


def _answer(state: State, charge: Charge, command: End) -> bool | None:
    """Return the answer for a charge that has ended; None if the command ends it.

    Raises:
        ReservationConflict: If the command may not end it.
    """
    kind, last = command.kind, charge.ended
    # A void of what cannot return is written as a settlement.
    voided = last is not None and last.body.get("outcome") == "void"
    ended, problem = "void" if voided else charge.state, ""
    mine, whole = charge.owner == command.owner, charge.covers is not None
    done = ended == KINDS[kind].ends
    if kind == "settle" and done:
        return True
    if kind == "seal" and charge.state != "open":
        # Only this process seals it, so the first command succeeded.
        return command.again and done
    if kind in ("void", "seal") and not mine:
        problem = "belongs to another process, which alone can end it so"
    elif kind == "void" and command.again and done:
        return True
    elif kind == "forfeit" and charge.state == "open" and charge.owner in state.alive:
        problem = "is held by a process that still runs"
    elif charge.state != "open":
        problem = f"is {ended} already"
    elif whole and kind in ("void", "seal") and is_repaired(state, charge):
        problem = (
            "is older than a repair of the ledger, and its draws are unknown; when "
            "its run has ended, close it with `dpflow ledger reservations --close "
            f"{charge.id} --reason TEXT`"
        )
    elif whole and (
        kind == "settle" or (kind == "void" and charge.held != charge.made.amounts)
    ):
        problem = (
            f"is the one of flow run {charge.covers}: each of its steps is settled, "
            "and its end is a seal"
        )
    if problem:
        msg = f"reservation {charge.id} {problem}"
        raise ReservationConflict(msg, reservation=charge.id)
    return None


# The price of an outcome


def least_posted(
    state: State, charge: Charge, body: Mapping[str, Any]
) -> dict[str, Amounts]:
    """Return the least that a settlement posts to each account.

    That is everything held, unless the outcome returns something. Prices are those of
    the running version, and may be above what is held. Where something was reserved on
    an account after the charge, its rule says what may still return.

    Args:
        state: With the charge, and its accounts and their terms if something returns.
        charge: The charge, before its end.
        body: What the settlement says of the outcome.
    """
    made, least = charge.made, dict(charge.held)
    if not may_return(body, charge.added):
        return least
    units = made.body.get("units", {})
    for name, held in charge.held.items():
        gate = gate_of(state, name, units.get(name, 1))
        posted = _outcome_price(gate, made, body)
        if not is_newest(gate, charge):
            posted = gate.rule.settled_late(Tally(held), Tally(posted)).amounts
        least[name] = posted
    return least


def is_newest(gate: Gate, charge: Charge) -> bool:
    """Say whether surely no other entry posted to an account since a charge began.

    Under a rule whose prices depend on what is used, only then may a charge return, and
    be raised, at its own price (docs/derivations/residue.md#refunds).
    """
    made, ended = charge.made.number, charge.ended and charge.ended.number
    own = (made, ended) if ended == made + 1 else (made,)
    return gate.row is not None and gate.row.entry in own


def _posted(state: State, charge: Charge, body: Mapping[str, Any]) -> Sums:
    """Return what a decision posts: everything held where a price is not within it.

    Mixing components of two prices would be no price of either.
    """
    held, least = charge.held, least_posted(state, charge, body)
    return {n: a if all(map(le, a, held[n])) else held[n] for n, a in least.items()}


def _outcome_price(gate: Gate, made: Entry, body: Mapping[str, Any]) -> Amounts:
    """Return what an outcome costs on an account if nothing was reserved after it."""
    rule, held = gate.rule, made.amounts[gate.id]
    if body["outcome"] == "void":
        return rule.zero().amounts
    if rule.settlements <= {"full"}:
        return held
    try:
        cost = cost_from_description(made.body["cost"])
    except InvalidCost:
        # A process that follows may lack its class; one that decides does not.
        return rule.zero().amounts
    if getattr(cost, "settlement", None) not in rule.settlements:
        return held
    try:
        used = used_before(made, gate.id)
        return gate.price(cost, used, body["reported"]).amounts
    except (InvalidCost, UnsupportedCost):
        return held


def used_before(made: Entry, name: str) -> Tally:
    """Return the usage without the part of its run when a step was priced."""
    posting = made.postings[name]
    total = Tally(tuple(map(add, posting.settled, posting.held)))
    drawn_of = made.body.get("preflight", {}).get("held", {})
    return remainder(total, Tally(tuple(drawn_of.get(name, posting.amount))))


def gate_of(state: State, account: str, size: int = 1) -> Gate:
    """Return the gate of a charged account.

    Raises:
        LedgerCorrupt: If its term has no such gate.
    """
    gate = gate_at(state, account, size)
    if gate is None:
        msg = f"account {account!r} has no gate in its term"
        raise LedgerCorrupt(msg)
    return gate


# Run reservations


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
    state: State, request: Request, requests: Sequence[tuple[Gate, Cost]]
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
    moving = {gate.id for gate, _ in requests if not gate.rule.steady}
    for charge in charges:
        here = {name: held for name, held in charge.held.items() if name in moving}
        held = added_up(held, here)
    drawn = charges_of(requests, held)
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
