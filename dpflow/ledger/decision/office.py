"""What operators decide by hand: it only ever raises usage, or closes a book."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from dpflow.accounting.tally import Tally
from dpflow.exceptions import (
    BudgetRefused,
    ConfigurationError,
    PolicyNotApplied,
    ReservationConflict,
)
from dpflow.ledger.approval import check_officer
from dpflow.ledger.decision.admit import check_holds, check_relation, terms_of
from dpflow.ledger.decision.end import gate_of
from dpflow.ledger.decision.gates import Gate, gates_of, remainder
from dpflow.ledger.decision.terms import newest, officers_of
from dpflow.ledger.model import Amend, Decision, Freeze, Pen, Posted, Prior, State
from dpflow.ledger.rows import Amounts, Charge


def freeze(state: State, command: Freeze) -> Decision:
    """Refuse everything on a book, or end that; the answer is whether that changed it.

    Anyone may freeze, and steps that run already may end; to thaw is an officer's
    business where there are any. Freezing twice changes nothing.

    Raises:
        PolicyNotApplied: If no policy of the book was applied yet, or its officers do
            not thaw it.
    """
    pen, term = Pen(state, command), newest(state, command.book)
    if term is None:
        msg = (
            f"the ledger has applied no policy of dataset {command.book!r}, so there "
            f"is nothing to freeze. Run `dpflow policy apply {command.book}` first."
        )
        raise PolicyNotApplied(msg, dataset=command.book)
    if command.thaw:
        check_officer(officers_of(term), command.book, command.who, "thaw it")
    frozen = state.book(command.book).frozen is not None
    if frozen != command.thaw:
        return pen.decided(answer=False)
    told = {"who": command.who, "because": command.because}
    body = {**command.facts, **told, "policy": {term.book: term.facts["policy_hash"]}}
    if not command.thaw:
        body["frozen"] = told
    pen.write(command.book, "thaw" if command.thaw else "freeze", {}, body)
    return pen.decided(answer=True)


def amend(state: State, command: Amend) -> Decision:
    """Charge what a step cost more than was reserved for it; it may have ended.

    Raises:
        ReservationConflict: If that is no more than was charged: nothing is lowered.
        UnsupportedCost: If the theorem of an account has no price for the cost, or
            that does not hold under the relation of its term.
    """
    pen, charge = Pen(state, command), state.charge(command.charge)
    if charge is None or charge.covers is not None:
        msg = (
            f"the ledger knows no step of reservation {command.charge!s:.60}: no body "
            "runs under a preflight. Amend the step that cost more."
        )
        raise ReservationConflict(msg, reservation=command.charge)
    extra: dict[str, tuple[Gate, Amounts]] = {}
    for book in charge.places:
        units = state.made(charge, book).body.get("units", {})
        for name, known in _charged(state, charge, book).items():
            gate = gate_of(state, name, units.get(name, 1))
            relation = _relation(state, gate)
            check_holds(command.cost, gate.dataset, relation)
            more = remainder(gate.price(command.cost), Tally(known))
            if any(more.amounts):
                extra[name] = (gate, more.amounts)
    if not extra:
        msg = (
            f"{command.cost!r} is no more than was charged for reservation "
            f"{charge.id} ({charge.state}). A charge is only ever raised."
        )
        raise ReservationConflict(msg, reservation=charge.id)
    told = {"cost": command.cost.describe(), "because": command.because}
    body = {**command.facts, **told}
    return pen.decided(
        _raised(
            pen, "amend", extra, {**body, "because": command.because}, charge=charge.id
        )
    )


def _charged(state: State, charge: Charge, book: str) -> dict[str, Amounts]:
    """Return what each account of a book was charged for a step, by all entries."""
    last = state.ended(charge, book) or state.made(charge, book)
    found = {
        name: (0,) * len(posting.amount) if last.kind == "void" else posting.amount
        for name, posting in last.postings.items()
    }
    for name, amount in charge.added.items():
        if name in found:
            found[name] = (Tally(found[name]) + Tally(amount)).amounts
    return found


def _relation(state: State, gate: Gate) -> str:
    number = int(gate.id.partition("#")[2].partition("/")[0])
    (term,) = (t for t in state.terms(gate.dataset) if t.number == number)
    return str(term.facts["pinned"]["relation"])


def prior(state: State, command: Prior) -> Decision:
    """Charge what was spent elsewhere; irreversible.

    Raises:
        ConfigurationError: If this evidence was charged before, or the parts are not
            said.
        BudgetRefused: If a part of the budget is to be carved that it has not left.
    """
    pen, request = Pen(state, command), command.request
    check_relation(request)
    terms = terms_of(pen, request, applies=command.applies)
    if command.grant is not None:
        who = str(command.facts.get("who", ""))
        officers = officers_of(terms[0])
        check_officer(officers, request.datasets[0], who, "carve its budget")
    gates = gates_of(pen.state, request, terms)
    asked = {gate.id: (gate, gate.price(request.cost).amounts) for gate in gates}
    numbers = {term.book: str(term.number) for term in terms}
    claim = pen.state.claim(command.name)
    for book, number in claim.by.items() if claim else ():
        if numbers.get(book) == number:
            msg = (
                f"this evidence was charged to term {number} of {book!r} before; a "
                "second time would charge the same spending twice. Other spending "
                "needs a file of its own that proves it."
            )
            raise ConfigurationError(msg)
    if command.grant is not None:
        for gate, amount in asked.values():
            if not gate.admits(Tally(amount)):
                raise _too_much(command, gate)
    body: dict[str, Any] = {
        **command.facts,
        "because": command.because,
        "evidence_sha256": command.evidence,
        "cost": request.described_cost(),
        "step": request.step,
        "flow": None,
        "release_key": None,
        "policy": {term.book: term.facts["policy_hash"] for term in terms},
    }
    claims = {book: {command.name: number} for book, number in numbers.items()}
    if command.grant is not None:
        body["grant"] = asdict(command.grant)
    return pen.decided(_raised(pen, "prior", asked, body, claims=claims))


def _too_much(command: Prior, gate: Gate) -> BudgetRefused:
    dataset = command.request.datasets[0]
    msg = (
        f"nothing was carved: {command.request.cost!r} is more than account "
        f"{gate.id!r} of dataset {dataset!r} has left. `dpflow status {dataset}` "
        "shows it."
    )
    return BudgetRefused(msg, dataset=dataset, step=command.request.step)


def _raised(
    pen: Pen,
    kind: str,
    extra: Mapping[str, tuple[Gate, Amounts]],
    body: Mapping[str, Any],
    *,
    charge: str | None = None,
    claims: Mapping[str, Mapping[str, str]] | None = None,
) -> tuple[Posted, ...]:
    """Write entries that raise what accounts have settled, one for each book."""
    found = []
    for book in dict.fromkeys(gate.dataset for gate, _ in extra.values()):
        here = {n: pair for n, pair in extra.items() if pair[0].dataset == book}
        overdrawn = [
            name
            for name, (gate, amount) in here.items()
            if gate.state == "open"
            and gate.overdrawn_by(gate.settled + Tally(amount), gate.held)
        ]
        told = dict(body)
        if claims is not None:
            told["claims"] = claims[book]
        if overdrawn:
            told["overdrawn"] = overdrawn
        amounts = {name: amount for name, (_, amount) in here.items()}
        entry = pen.write(book, kind, amounts, told, charge=charge)
        found += [
            Posted(
                account=name,
                entry=entry.number,
                amount=gate.rule.named(Tally(amount)),
                state="overdrawn" if name in overdrawn else gate.state,
            )
            for name, (gate, amount) in here.items()
        ]
    return tuple(found)
