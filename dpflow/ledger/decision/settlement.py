"""The end of a charge: what is posted of it, and to whom the rest returns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
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
from dpflow.solving import before_solving


@dataclass(frozen=True, slots=True, kw_only=True)
class End(Command):
    """End a charge: settle, void, forfeit or seal it.

    Attributes:
        charge: Its id.
        kind: "settle", "void", "forfeit" or "seal".
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
        yield from charge_keys(state, self.charge)
        made = state.made.get(self.charge)
        if made is not None:
            yield from map(account_key, made.amounts)
            if self.reported is not None or self.kind == "void":
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
        kind = self.kind
        if _check(state, charge, self):
            return pen.answered(None)
        mine = kind == "settle" and charge.owner == self.owner
        # Only the process that ran the body knows how it came out.
        reported = self.reported if mine and not charge.added else None
        body = dict(self.body)
        amounts = charge.held
        if reported is not None:
            body["reported"] = reported
            amounts = _still_posted(state, charge, _reported(state, charge, reported))
        elif kind == "void" and charge.covers is None:
            nothing = {name: (0,) * len(amount) for name, amount in amounts.items()}
            kept = _still_posted(state, charge, nothing)
            if any(map(any, kept.values())):
                # What cannot return is posted; a void posts nothing.
                kind, amounts, body["outcome"] = "settle", kept, "void"
        pen.write(kind, amounts, body, charge=charge.id)
        release = pen.state.release(charge.key)
        # A charge that lost its key to another one settles without a release.
        if (
            release is not None
            and release.charge == charge.id
            and self.value is not None
        ):
            pen.keep(release.key, self.value)
        return pen.answered(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal(Command):
    """End the preflight of a flow run, and return what no step drew."""

    follows: ClassVar[bool] = False

    run: str
    owner: str
    outcome: str

    def keys(self, state: State) -> Iterator[str]:
        """Yield the run with the charge that holds it."""
        yield from ("repairs", f"run/{self.run}")
        name = (state.rows.get(f"run/{self.run}") or {}).get("reservation")
        if name is not None:
            yield from charge_keys(state, name)
            made = state.made.get(name)
            yield from map(account_key, () if made is None else made.amounts)

    def decide(self, state: State) -> Decision:
        """End a flow run's preflight; the answer is whether there was one to seal.

        Raises:
            ReservationConflict: If another process runs the flow, or the ledger lost
                charges since: then nothing is returned.
        """
        pen, charge = Decision(state, self), state.reservation(self.run)
        if charge is None:
            return pen.answered(answer=False)
        if is_repaired(state, charge):
            # Draws may be among the charges that it lost and charged again.
            msg = (
                f"the ledger was repaired since reservation {charge.id} was made, so "
                "what was drawn of it is unknown; close it with `dpflow ledger "
                f"reservations --close {charge.id} --reason TEXT` when its run has "
                "ended"
            )
            raise ReservationConflict(msg, reservation=charge.id)
        if charge.state != "open":
            # Only this process seals it, so the first was not in vain.
            return pen.answered(self.again and charge.state == "sealed")
        if charge.owner != self.owner:
            msg = (
                f"another process runs flow run {self.run} and seals its reservation "
                f"{charge.id}"
            )
            raise ReservationConflict(msg, reservation=charge.id)
        sealed = {"outcome": self.outcome}
        pen.write("seal", charge.held, sealed, charge=charge.id)
        return pen.answered(answer=True)


def _reported(state: State, charge: Charge, reported: Outcome) -> dict[str, Amounts]:
    """Return what a report posts to each account: never more than it holds.

    It is all of that, unless the theorem gives back; where more than one unit was
    reserved for, or an older solver priced the step, nothing is given back.
    """
    found, made = dict(charge.held), charge.made
    cost = cost_from_description(made.body["cost"])
    for name, held in charge.held.items():
        gate = gate_of(state, name, made.body.get("units", {}).get(name, 1))
        used = used_before(made, name)
        with suppress(UnsupportedCost):
            if gate.size == 1 and gate.price(cost, used).amounts == held:
                before = gate.rule.zero() if gate.rule.steady else used
                posted = _posted(gate.rule, gate.halt, cost, reported, before)
                if posted is not None and posted.fits_within(Tally(held)):
                    found[name] = posted.amounts
    return found


def used_before(made: Entry, name: str) -> Tally:
    """Return what was used, beside what its run held, when a step was priced."""
    posting = made.postings[name]
    total = Tally(tuple(map(add, posting.settled, posting.held)))
    drawn_of = made.body.get("preflight", {}).get("held", {})
    return remainder(total, Tally(tuple(drawn_of.get(name, posting.amount))))


def _still_posted(state: State, charge: Charge, posted: Sums) -> Sums:
    """Return what is posted where something may have been reserved after a charge.

    Its accounts' newest entries tell.
    """
    found: dict[str, Amounts] = {}
    for name, amount in posted.items():
        account, held = state.account(name), charge.held[name]
        newest = account is not None and account.entry == charge.made.number
        if amount == held or newest:
            found[name] = amount
        else:
            rule = gate_of(state, name, 1).rule
            found[name] = rule.settled_late(Tally(held), Tally(amount)).amounts
    return found


#: What is wrong with a settlement that `is_too_little`.
TOO_LITTLE = "a step was settled for less than its outcome costs"


def is_lesser(state: State, entry: Entry) -> bool:
    """Say whether an entry settles a charge for less than it holds."""
    if entry.kind != "settle" or entry.charge is None:
        return False
    charge = state.charge(entry.charge)
    return charge is not None and entry.amounts != charge.held


def is_too_little(state: State, entry: Entry) -> bool:
    """Say whether a settlement returned more than its outcome allows.

    Prices are those of the running version; a settlement at more is never refused,
    because an older version may have had higher prices.

    Args:
        state: Before the settlement, with its charge, the accounts and their terms.
        entry: What is checked.
    """
    charge = known_charge(state, entry.charge or "")
    made, units = charge.made, charge.made.body.get("units", {})
    for name, amount in entry.amounts.items():
        held, account = charge.held[name], state.account(name)
        gate = gate_of(state, name, units.get(name, 1))
        least = _least_posted(gate, made, entry.body)
        if account is None or account.entry != made.number:
            least = gate.rule.settled_late(Tally(held), Tally(least)).amounts
        if not (all(map(le, least, amount)) and all(map(le, amount, held))):
            return True
    return False


def _least_posted(gate: Gate, made: Entry, body: Mapping[str, Any]) -> Amounts:
    """Return the least that a settlement posts to an account, if nothing came since."""
    held, rule = made.postings[gate.id].amount, gate.rule
    nothing = (0,) * len(held)
    if body["outcome"] == "void":
        return nothing
    try:
        cost = cost_from_description(made.body["cost"])
    except InvalidCost:
        # Its class is loaded elsewhere only.
        return nothing
    reported, used = body.get("reported"), used_before(made, gate.id)
    settles = isinstance(cost, Settling) and cost.settlement in rule.settlements
    if not may_return(body) or gate.size != 1 or not settles:
        return held
    if not isinstance(reported, int | str):
        return held
    before = rule.zero() if rule.steady else used
    posted = _posted(rule, gate.halt, cost, reported, before)
    return held if posted is None else tuple(map(min, posted.amounts, held))


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
    kind, problem, last = command.kind, None, charge.ended
    # A void of what cannot return is written as a settlement.
    voided = last is not None and "void" in (last.kind, last.body.get("outcome"))
    ended = "void" if voided else charge.state
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
    if problem is not None:
        raise ReservationConflict(problem, reservation=charge.id)
    if charge.covers is not None:
        _check_preflight(state, charge, kind)
    return False


def _check_preflight(state: State, charge: Charge, kind: str) -> None:
    """Refuse to settle a run reservation, or to void one that a step drew from.

    Draws may be among the charges that a ledger lost before it was repaired.
    """
    drawn = charge.held != charge.made.amounts or is_repaired(state, charge)
    if kind == "settle" or (kind == "void" and drawn):
        msg = (
            f"reservation {charge.id} is the one of flow run {charge.covers}: "
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


@lru_cache(maxsize=1024)
def _posted(
    rule: Rule, halt: Fraction | None, cost: Cost, reported: Outcome, used: Tally
) -> Tally | None:
    """Return the price of a reported outcome; None if there is none."""
    if rule.steady:
        before_solving(lambda: _posted(rule, halt, cost, reported, used))
    try:
        if isinstance(rule, Odometer) and halt is None:
            return rule.charge_realised(cost, reported, used)
        return rule.price_realised(cost, reported, used)
    except (InvalidCost, UnsupportedCost):
        return None
