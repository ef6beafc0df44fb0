"""The end of a charge: it posts a part of what it holds, and the rest returns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import add, le
from typing import Any, ClassVar

from dpflow.accounting.costs.base import Outcome, cost_from_description
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import (
    InvalidCost,
    LedgerCorrupt,
    ReservationConflict,
    UnsupportedCost,
)
from dpflow.ledger.decision.alerts import alerts_of, keys_of_alerts, noted
from dpflow.ledger.decision.gates import Gate, gate_at, remainder
from dpflow.ledger.entry import Amounts, Entry, Sums
from dpflow.ledger.journal import KINDS
from dpflow.ledger.model import Command, Decision, terms_of_accounts
from dpflow.ledger.rows import Charge, account_key, may_return
from dpflow.ledger.state import State, charge_keys


@dataclass(frozen=True, slots=True, kw_only=True)
class End(Command):
    """End of a charge.

    Attributes:
        kind: "settle", "void" or "forfeit".
        charge: Its id.
        owner: This process; empty for an operator.
        body: Further facts, such as the outcome and the digest of the value.
        reported: Number of sub-steps that ran, or cell of the mechanism's output.
        value: The encoded output; None keeps nothing to replay.
    """

    kind: str
    charge: str
    owner: str = ""
    body: Mapping[str, Any] = field(default_factory=dict)
    reported: Outcome | None = None
    value: str | None = None

    def keys(self, state: State) -> Iterator[str]:
        """Yield the charge and its accounts; their rules say what returns."""
        yield from charge_keys(state, self.charge)
        made = state.made.get(self.charge)
        if made is not None:
            yield from map(account_key, made.amounts)
            if (
                self.reported is not None
                or self.kind == "void"
                or "alert_at" in made.body
            ):
                yield from terms_of_accounts(state, made.amounts)
            yield from keys_of_alerts(made.body, made.amounts)

    def charges_met(self, _: State) -> Iterable[str | None]:
        """Return the charge, if its owner must have ended."""
        return (self.charge,) if self.kind == "forfeit" else ()

    def decide(self, state: State) -> Decision:
        """End a charge on all its accounts; the answer is its alerts.

        Raises:
            ReservationConflict: If there is no such charge, it has ended, another
                process holds it, or this is no way to end it.
        """
        pen, charge = Decision(state, self), known_charge(state, self.charge)
        if _has_ended(state, charge, self):
            return pen.answered(answer=())
        kind, body, amounts = self.kind, dict(self.body), charge.held
        if self.reported is not None and charge.owner == self.owner:
            # Only the process that ran the body knows its outcome and its cost's class.
            cost_from_description(charge.made.body["cost"])
            body["reported"] = self.reported
            amounts = _posted(state, charge, body)
        elif kind == "void":
            voided = {**body, "outcome": "void"}
            late = _posted(state, charge, voided)
            if any(map(any, late.values())):
                # What cannot return is posted; a void posts nothing.
                kind, body, amounts = "settle", voided, late
        thresholds = charge.made.body.get("alert_at", {}) if KINDS[kind].settles else {}
        alerts = alerts_of(state, amounts, thresholds)
        pen.write(kind, amounts, {**body, **noted(alerts)}, charge=charge.id)
        release = pen.state.release(charge.key)
        # A charge that lost its key to another one settles without a release.
        if release and release.charge == charge.id and self.value is not None:
            pen.keep(release.key, self.value)
        return pen.answered(answer=tuple(alerts))


class Forfeit(End):
    """End of another process's charge, on accounts that this one may not know."""

    guarded: ClassVar[bool] = True


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


def _has_ended(state: State, charge: Charge, command: End) -> bool:
    """Return whether a charge has ended as a command wants it to.

    Raises:
        ReservationConflict: If the command may not end it.
    """
    kind, last = command.kind, charge.ended
    # A void of what cannot return is written as a settlement.
    voided = last is not None and last.body.get("outcome") == "void"
    ended, problem = "void" if voided else charge.state, ""
    done = ended == KINDS[kind].ends
    if kind == "settle" and done:
        return True
    if kind == "void" and charge.owner != command.owner:
        problem = "belongs to another process, which alone can end it so"
    elif kind == "void" and command.again and done:
        return True
    elif kind == "forfeit" and charge.state == "open" and charge.owner in state.alive:
        problem = "is held by a process that still runs"
    elif charge.state != "open":
        problem = f"is {ended} already"
    if problem:
        msg = f"reservation {charge.id} {problem}"
        raise ReservationConflict(msg, reservation=charge.id)
    return False


# The price of an outcome


def _posted(state: State, charge: Charge, body: Mapping[str, Any]) -> Sums:
    """Return what a settlement posts to each account.

    That is everything held, unless the outcome returns something. Where something was
    reserved on an account after the charge, its rule says what may still return. Where
    a price is not within what is held, all of it is posted: a mixture of components of
    two prices would be no price of either.

    Args:
        state: With the charge, and its accounts and their terms if something returns.
        charge: The charge, before its end.
        body: What the settlement says of the outcome.
    """
    made, sums = charge.made, dict(charge.held)
    if not may_return(body, charge.added):
        return sums
    units = made.body.get("units", {})
    for name, held in charge.held.items():
        gate = gate_of(state, name, units.get(name, 1))
        posted = _outcome_price(gate, made, body)
        if not is_newest(gate, charge):
            posted = gate.rule.settled_late(Tally(held), Tally(posted)).amounts
        if all(map(le, posted, held)):
            sums[name] = posted
    return sums


def is_newest(gate: Gate, charge: Charge) -> bool:
    """Say whether surely no other entry posted to an account since a charge began.

    Under a rule whose prices depend on what is used, only then may a charge return, and
    be raised, at its own price (docs/derivations/residue.md#refunds).
    """
    made, ended = charge.made.number, charge.ended and charge.ended.number
    own = (made, ended) if ended == made + 1 else (made,)
    return gate.row is not None and gate.row.entry in own


def _outcome_price(gate: Gate, made: Entry, body: Mapping[str, Any]) -> Amounts:
    """Return what an outcome costs on an account if nothing was reserved after it."""
    rule, held = gate.rule, made.amounts[gate.id]
    if body["outcome"] == "void":
        return rule.zero().amounts
    if rule.settlements <= {"full"}:
        return held
    cost = cost_from_description(made.body["cost"])
    if getattr(cost, "settlement", None) not in rule.settlements:
        return held
    try:
        used = used_before(made, gate.id)
        return gate.price(cost, used, body["reported"]).amounts
    except (InvalidCost, UnsupportedCost):
        return held


def used_before(made: Entry, name: str) -> Tally:
    """Return the usage when a step was priced."""
    posting = made.postings[name]
    total = Tally(tuple(map(add, posting.settled, posting.held)))
    return remainder(total, Tally(posting.amount))


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
