"""The end of a charge: what is posted of it, and to whom the rest returns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from operator import add, le
from typing import Any, ClassVar

from dpflow.accounting.costs.base import (
    Cost,
    Outcome,
    Settling,
    cost_from_description,
)
from dpflow.accounting.rules.rule import Odometer, Rule
from dpflow.accounting.rules.tally import Tally
from dpflow.accounting.solving import before_solving
from dpflow.exceptions import (
    InvalidCost,
    LedgerCorrupt,
    ReservationConflict,
    UnsupportedCost,
)
from dpflow.ledger.decision.gates import Gate, gate_at, remainder
from dpflow.ledger.decision.preflight import is_repaired
from dpflow.ledger.entry import Amounts, Entry, Sums
from dpflow.ledger.model import Command, Decision, terms_of_accounts
from dpflow.ledger.rows import Charge, account_key, may_return
from dpflow.ledger.state import State, charge_keys


@dataclass(frozen=True, slots=True, kw_only=True)
class End(Command):
    """End of a charge.

    Attributes:
        charge: Its id.
        kind: "settle", "void" or "forfeit".
        owner: This process; empty for an operator.
        body: Further facts, such as the outcome and the digest of the value.
        reported: Number of sub-steps that ran, or cell of the mechanism's output.
        value: The encoded output; None keeps nothing to replay.
    """

    follows: ClassVar[bool] = False

    charge: str
    kind: str
    owner: str = ""
    body: Mapping[str, Any] = field(default_factory=dict)
    reported: Outcome | None = None
    value: str | None = None

    def keys(self, state: State) -> Iterator[str]:
        """Yield the charge with all that it holds; its rules say what returns."""
        yield from held_keys(state, self.charge)
        made = state.made.get(self.charge)
        if made is not None and (self.reported is not None or self.kind == "void"):
            yield from terms_of_accounts(made.amounts)

    def charges_met(self, _: State) -> Iterable[str | None]:
        """Return the charge, if its owner must have ended."""
        return (self.charge,) if self.kind == "forfeit" else ()

    def decide(self, state: State) -> Decision:
        """End a charge on all its accounts.

        Raises:
            ReservationConflict: If there is no such charge, it has ended, another
                process holds it, or this is no way to end it.
        """
        charge, pen = known_charge(state, self.charge), Decision(state, self)
        if _has_ended(state, charge, self):
            return pen.answered(None)
        kind, body, amounts = self.kind, dict(self.body), charge.held
        if self.reported is not None and charge.owner == self.owner:
            # Only the process that ran the body knows its outcome and its cost's class.
            cost_from_description(charge.made.body["cost"])
            body["reported"] = self.reported
            amounts = _at_most(charge.held, least_posted(state, charge, body))
        elif kind == "void" and charge.covers is None:
            voided = {**body, "outcome": "void"}
            late = _at_most(charge.held, least_posted(state, charge, voided))
            if any(map(any, late.values())):
                # What cannot return is posted; a void posts nothing.
                kind, body, amounts = "settle", voided, late
        pen.write(kind, amounts, body, charge=charge.id)
        release = pen.state.release(charge.key)
        # A charge that lost its key to another one settles without a release.
        if release and release.charge == charge.id and self.value is not None:
            pen.keep(release.key, self.value)
        return pen.answered(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal(Command):
    """End of a flow run's reservation, which returns what no step drew."""

    follows: ClassVar[bool] = False

    run: str
    owner: str
    outcome: str

    def keys(self, state: State) -> Iterator[str]:
        """Yield the run with its reservation: a trial asks for one account a time."""
        yield from ("repairs", f"run/{self.run}")
        name = (state.rows.get(f"run/{self.run}") or {}).get("reservation")
        yield from () if name is None else held_keys(state, name)

    def decide(self, state: State) -> Decision:
        """End a run's reservation; the answer is whether there was one to seal.

        Raises:
            ReservationConflict: If another process runs the flow, or the ledger lost
                charges since: then nothing is returned.
        """
        pen, charge, problem = Decision(state, self), state.reservation(self.run), ""
        if charge is None or charge.state != "open":
            # Only this process seals it, so the first command succeeded.
            sealed = charge is not None and charge.state == "sealed"
            return pen.answered(answer=self.again and sealed)
        if is_repaired(state, charge):
            # Draws may be among the charges that it lost and charged again.
            problem = (
                f"the ledger was repaired since reservation {charge.id} was made, and "
                "its draws are unknown; when its run has ended, close it with `dpflow "
                f"ledger reservations --close {charge.id} --reason TEXT`"
            )
        elif charge.owner != self.owner:
            problem = f"another process runs flow run {self.run} and seals {charge.id}"
        if problem:
            raise ReservationConflict(problem, reservation=charge.id)
        pen.write("seal", charge.held, {"outcome": self.outcome}, charge=charge.id)
        return pen.answered(answer=True)


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


def _has_ended(state: State, charge: Charge, command: End) -> bool:
    """Say whether a charge was ended so before.

    Raises:
        ReservationConflict: If the command may not end it.
    """
    kind, last, problem = command.kind, charge.ended, ""
    # A void of what cannot return is written as a settlement.
    voided = last is not None and "void" in (last.kind, last.body.get("outcome"))
    ended = "void" if voided else charge.state
    # Draws may be among the charges that a ledger lost before it was repaired.
    drawn = charge.held != charge.made.amounts or is_repaired(state, charge)
    if (kind, ended) == ("settle", "settled"):
        return True
    if kind == "void" and charge.owner != command.owner:
        problem = f"reservation {charge.id} belongs to another process"
    elif kind == "void" and command.again and voided:
        return True
    elif kind == "forfeit" and charge.state == "open" and charge.owner in state.alive:
        problem = f"the process that holds reservation {charge.id} still runs"
    elif charge.state != "open":
        problem = f"reservation {charge.id} is {ended} already"
    elif charge.covers is not None and (kind == "settle" or (kind == "void" and drawn)):
        problem = (
            f"reservation {charge.id} is the one of flow run {charge.covers}: "
            "each of its steps is settled, and its end is a seal"
        )
    if problem:
        raise ReservationConflict(problem, reservation=charge.id)
    return False


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
        if gate.row is None or gate.row.entry != made.number:
            late = gate.rule.settled_late(Tally(held), Tally(posted))
            posted = late.amounts
        least[name] = posted
    return least


def _at_most(held: Sums, posted: Sums) -> Sums:
    """Return what a decision posts: everything held where a price is not within it.

    Mixing components of two prices would be no price of either.
    """
    return {n: a if all(map(le, a, held[n])) else held[n] for n, a in posted.items()}


def _outcome_price(gate: Gate, made: Entry, body: Mapping[str, Any]) -> Amounts:
    """Return what an outcome costs on an account if nothing was reserved after it."""
    rule, held = gate.rule, made.amounts[gate.id]
    nothing = rule.zero().amounts
    if body["outcome"] == "void":
        return nothing
    if gate.size != 1 or rule.settlements <= {"full"}:
        return held
    try:
        cost = cost_from_description(made.body["cost"])
    except InvalidCost:
        # A process that follows may lack its class; one that decides does not.
        return nothing
    if not isinstance(cost, Settling) or cost.settlement not in rule.settlements:
        return held
    used = rule.zero() if rule.steady else used_before(made, gate.id)
    posted = _solved_outcome(rule, gate.halt, cost, body["reported"], used)
    return held if posted is None else posted.amounts


@lru_cache(maxsize=1024)
def _solved_outcome(
    rule: Rule, halt: Fraction | None, cost: Cost, reported: Outcome, used: Tally
) -> Tally | None:
    """Return the price of a reported outcome; None if there is no price."""
    if rule.steady:
        before_solving(lambda: _solved_outcome(rule, halt, cost, reported, used))
    try:
        if isinstance(rule, Odometer) and halt is None:
            return rule.charge_realised(cost, reported, used)
        return rule.price_realised(cost, reported, used)
    except (InvalidCost, UnsupportedCost):
        return None


def used_before(made: Entry, name: str) -> Tally:
    """Return what was used, beside what its run held, when a step was priced."""
    posting = made.postings[name]
    total = Tally(tuple(map(add, posting.settled, posting.held)))
    drawn_of = made.body.get("preflight", {}).get("held", {})
    return remainder(total, Tally(tuple(drawn_of.get(name, posting.amount))))


def gate_of(state: State, account: str, size: int) -> Gate:
    """Return the gate of an account that a charge was made on."""
    gate = gate_at(state, account, size)
    if gate is None:
        msg = f"account {account!r} has no gate in its term"
        raise LedgerCorrupt(msg)
    return gate
