"""What operators decide by hand: it only ever raises usage, or closes a book."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from dpflow.accounting.costs.base import Cost, cost_from_description
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import (
    ConfigurationError,
    LedgerUnavailable,
    PolicyChanged,
    PolicyNotApplied,
    ReservationConflict,
)
from dpflow.ledger.decision.admit import check_holds, check_relation, terms_of
from dpflow.ledger.decision.gates import Gate, gate_at, gates_of, remainder
from dpflow.ledger.decision.settlement import gate_of, known_charge, used_before
from dpflow.ledger.decision.terms import governing
from dpflow.ledger.model import Decision, Pen, State
from dpflow.ledger.office_records import (
    Amend,
    BookLoss,
    ByHand,
    Checkpoint,
    Freeze,
    Posted,
    Prior,
    Repair,
    Resume,
    Withdraw,
    lost_name,
)
from dpflow.ledger.records import described
from dpflow.ledger.rows import Amounts, Charge, Term, epoch_of, split


def freeze(state: State, command: Freeze) -> Decision:
    """Refuse everything on a book, or end that; steps that run already may end.

    Freezing twice changes nothing. The answer is the accounts of the newest term that
    it changed.

    Raises:
        PolicyNotApplied: If no policy of the book was applied yet.
    """
    pen, term = Pen(state, command), state.newest(command.book)
    if term is None:
        msg = (
            f"the ledger has applied no policy of dataset {command.book!r}, so there "
            f"is nothing to freeze. Run `dpflow policy apply {command.book}` first."
        )
        raise PolicyNotApplied(msg, dataset=command.book)
    if (state.book(command.book).frozen is not None) != command.unfreeze:
        return pen.decided(())
    _closed(pen, term, command.who, command.reason, unfreeze=command.unfreeze)
    base = f"{term.book}#{term.number}"
    mine = (key[1] for key in state.rows if key[0] == "account")
    named = sorted(name for name in mine if name.startswith(f"{base}/"))
    return pen.decided((base, *named))


def _closed(pen: Pen, term: Term, who: str, reason: str, *, unfreeze: bool) -> None:
    """Write that a book is frozen, or unfrozen."""
    told = {"who": who, "reason": reason}
    policy = {term.book: term.facts["policy_hash"]}
    body = {**pen.command.facts, **told, "policy": policy}
    if unfreeze:
        pen.write(term.book, "unfreeze", {}, body)
    else:
        pen.write(term.book, "freeze", {}, {**body, "frozen": told})


def amend(state: State, command: Amend) -> Decision:
    """Charge what a step cost more than was reserved for it; it may have ended.

    Raises:
        ReservationConflict: If that is no more than was charged: nothing is lowered.
        UnsupportedCost: If the theorem of an account has no price for the cost, or
            that does not hold under the relation of its term.
    """
    pen, charge = Pen(state, command), known_charge(state, command.charge)
    if charge.covers is not None:
        msg = (
            f"reservation {charge.id} is the preflight of flow run {charge.covers}, "
            "under which no body runs. Amend the step that cost more."
        )
        raise ReservationConflict(msg, reservation=charge.id)
    if command.dataset is not None and command.dataset not in charge.places:
        msg = (
            f"reservation {charge.id} charged {', '.join(map(repr, charge.places))}, "
            f"not dataset {command.dataset!r}. Nothing was charged. `dpflow history "
            f"{command.dataset}` lists the reservations of that dataset."
        )
        raise ReservationConflict(msg, reservation=charge.id)
    extra: list[tuple[Gate, Tally]] = []
    made = state.all_made(charge)
    for entry in made:
        units = entry.body.get("units", {})
        for name, known in _charged(state, charge, entry.book).items():
            gate = gate_of(state, name, units.get(name, 1))
            term = state.term(*split(name)[:2])
            relation = "" if term is None else term.facts["pinned"]["relation"]
            check_holds(command.cost, gate.dataset, relation)
            more = _more(gate, command.cost, Tally(known), used_before(entry, name))
            late = not _is_newest(charge, entry.book, gate)
            if any(more.amounts):
                extra.append((gate, _posted(gate, more, late=late)))
    reserved = made[0].body["cost"]
    if not extra:
        msg = (
            f"{command.cost!r} is no more than was charged for reservation {charge.id} "
            f"({charge.state}, reserved at {cost_from_description(reserved)!r}). A "
            "charge is only ever raised."
        )
        raise ReservationConflict(msg, reservation=charge.id)
    places = dict.fromkeys(split(gate.id)[:2] for gate, _ in extra)
    terms = [term for place in places if (term := state.term(*place)) is not None]
    body = {
        **command.facts,
        "cost": command.cost.describe(),
        "reserved_cost": reserved,
        "reason": command.reason,
        "evidence_sha256": command.evidence,
        "policy": made[0].body["policy"],
    }
    claims = _evidence(state, command, terms)
    raised = _raised(pen, "amend", extra, body, charge=charge.id, claims=claims)
    return pen.decided(raised)


def _more(gate: Gate, cost: Cost, known: Tally, before: Tally) -> Tally:
    """Return by how much a step's cost is above what was charged for it."""
    if gate.price(cost, before).fits_within(known):
        # It would have had that price: what came later makes it no larger.
        return gate.rule.zero()
    return remainder(gate.price(cost, remainder(gate.used, known)), known)


def _is_newest(charge: Charge, book: str, gate: Gate) -> bool:
    """Say whether an account surely moved for no other charge since it was made."""
    made, ended = charge.places[book]
    own = (made,) if ended != made + 1 else (made, ended)
    return gate.row is not None and gate.row.entry in own


def _posted(gate: Gate, more: Tally, *, late: bool) -> Tally:
    """Return what is posted of an amount that others were perhaps priced without."""
    if not late or not any(gate.used.amounts):
        return more
    return gate.rule.charged_late(gate.used, more)


def _charged(state: State, charge: Charge, book: str) -> dict[str, Amounts]:
    """Return what each account of a book was charged for a step, by all entries."""
    last = state.ended(charge, book) or state.made(charge, book)
    found = {
        name: (0,) * len(posting.amount) if last.kind == "void" else posting.amount
        for name, posting in last.postings.items()
    }
    for name, amount in charge.added.items():
        # What was posted late is not all the step's own: then it counts for others.
        if name in found and gate_of(state, name, 1).rule.steady:
            found[name] = (Tally(found[name]) + Tally(amount)).amounts
    return found


def prior(state: State, command: Prior) -> Decision:
    """Charge what was spent elsewhere; irreversible.

    Raises:
        ConfigurationError: If this evidence was charged before, or the parts are not
            said.
    """
    pen, request = Pen(state, command), command.request
    check_relation(request)
    terms = terms_of(pen, request, applies=command.applies)
    gates = gates_of(pen.state, request, terms)
    prices = [(gate, gate.price(request.cost)) for gate in gates]
    asked = [(gate, _posted(gate, price, late=True)) for gate, price in prices]
    claims = _evidence(pen.state, command, terms)
    body: dict[str, Any] = {
        **command.facts,
        "reason": command.reason,
        "evidence_sha256": command.evidence,
        "cost": described(request.cost),
        "step": request.step,
        "flow": request.flow,
        "release_key": None,
        "policy": {term.book: term.facts["policy_hash"] for term in terms},
    }
    return pen.decided(_raised(pen, "prior", asked, body, claims=claims))


def _evidence(
    state: State, command: ByHand, terms: Sequence[Term]
) -> dict[str, dict[str, str]] | None:
    """Return what each book says of the evidence, which no term charges twice."""
    found: dict[str, dict[str, str]] = {}
    for name in command.claims:
        claim = state.claim(name)
        for term in terms:
            account = f"{term.book}#{term.number}"
            used, _, entry = (
                (claim.by if claim else {}).get(term.book, "").rpartition(" ")
            )
            if used == account:
                msg = (
                    f"this evidence was charged to account {account!r} before, by "
                    f"entry {entry}; a second time would charge the same spending "
                    "twice. Other spending needs a file of its own that proves it."
                )
                raise ConfigurationError(msg)
            next_entry = state.book(term.book).number + 1
            found[term.book] = {name: f"{account} {next_entry}"}
    return found or None


def _raised(
    pen: Pen,
    kind: str,
    extra: Sequence[tuple[Gate, Tally]],
    body: Mapping[str, Any],
    *,
    charge: str | None = None,
    claims: Mapping[str, Mapping[str, str]] | None = None,
    books: Sequence[str] = (),
) -> tuple[Posted, ...]:
    """Write entries that raise what accounts have settled, one for each book."""
    found = []
    for book in dict.fromkeys((*books, *(gate.dataset for gate, _ in extra))):
        here = [(gate, amount) for gate, amount in extra if gate.dataset == book]
        overdrawn = [gate.id for gate, amount in here if gate.overdrawn_by(amount)]
        told = dict(body)
        if claims is not None:
            told["claims"] = claims[book]
        if overdrawn:
            told["overdrawn"] = overdrawn
        amounts = {gate.id: amount.amounts for gate, amount in here}
        entry = pen.write(book, kind, amounts, told, charge=charge)
        for gate, amount in here:
            # A freeze hides all other states.
            over = gate.state == "open" and gate.id in overdrawn
            found.append(
                Posted(
                    account=gate.id,
                    entry=entry.number,
                    amount=gate.rule.named(amount),
                    state="overdrawn" if over else gate.state,
                )
            )
    return tuple(found)


def repair(state: State, command: Repair) -> Decision:
    """Charge again what a ledger lacks, in full and once, and freeze what it must.

    Raises:
        LedgerUnavailable: If the ledger is another one than was compared.
        ConfigurationError: If an account is gone, and no policy makes its term.
    """
    pen = Pen(state, command)
    moved = any(
        state.book(b).number != loss.number for b, loss in command.losses.items()
    )
    claimed = any(
        (claim := state.claim(lost_name(book, *place))) is not None and book in claim.by
        for book, loss in command.losses.items()
        for place in loss.entries
    )
    if epoch_of(state.rows) != command.before or moved or claimed:
        msg = (
            "somebody else repaired the ledger or charged it meanwhile, and this "
            "changed nothing. Compare again with `dpflow ledger reconcile`."
        )
        raise LedgerUnavailable(msg)
    found: list[Posted] = []
    for book, loss in command.losses.items():
        found += _repaired(pen, command, book, loss)
    return pen.decided(tuple(found))


def _repaired(
    pen: Pen, command: Repair, book: str, loss: BookLoss
) -> tuple[Posted, ...]:
    policy = command.policies.get(book)
    if pen.state.newest(book) is None and policy is not None and loss.amounts:
        with suppress(PolicyNotApplied, PolicyChanged):
            governing(pen, policy, applies=True)
    amounts = loss.amounts.items()
    # What the ledger lacks comes after what it holds, unless it went on meanwhile.
    first = min((number for number, _ in loss.entries), default=0)
    late = first <= pen.state.book(book).number
    gates = [(_gate_again(pen.state, name), Tally(amount)) for name, amount in amounts]
    extra = [(gate, _posted(gate, amount, late=late)) for gate, amount in gates]
    numbers = {split(name)[1] for name in loss.amounts}
    terms = [term for term in pen.state.terms(book) if term.number in numbers]
    body = {
        **command.facts,
        "reason": command.reason,
        "policy": {term.book: term.facts["policy_hash"] for term in terms},
        "missing": len(loss.entries),
        "charges": list(loss.charges),
        "step": "ledger reconcile",
        "release_key": None,
        "epoch": command.epoch,
    }
    names = {lost_name(book, *place): "" for place in loss.entries}
    posted = _raised(pen, "repair", extra, body, claims={book: names}, books=[book])
    term = pen.state.newest(book)
    if loss.frozen and term is not None and pen.state.book(book).frozen is None:
        who = str(command.facts.get("who", ""))
        _closed(pen, term, who, loss.frozen, unfreeze=False)
    return posted


def _gate_again(state: State, account: str) -> Gate:
    """Return the gate of an account that may be gone.

    Raises:
        ConfigurationError: If its term is gone, or asks for no such gate.
    """
    gate, book = gate_at(state, account), split(account)[0]
    if gate is None:
        msg = (
            f"the ledger lacks account {account!r}, and no policy makes it. Put the "
            f"policy file of dataset {book!r} back that was in force at that time. If "
            f"the ledger lacks its whole term, apply it again: `dpflow policy apply "
            f"{book} --new-term --reason TEXT`."
        )
        raise ConfigurationError(msg)
    return gate


def withdraw(state: State, command: Withdraw) -> Decision:
    """Delete the value of a release; the answer is whether there was one."""
    pen, kept = Pen(state, command), state.release(command.key)
    if (
        kept is None
        or kept.state != "settled"
        or (kept.book, kept.digest) != (command.book, command.digest)
        or kept.key not in state.values
    ):
        return pen.decided(answer=False)
    told = {"release": kept.key, "digest": kept.digest, "reason": command.reason}
    body = {**command.facts, **told}
    pen.write(kept.book, "withdraw", {}, body)
    return pen.decided(answer=True)


def resume(state: State, command: Resume) -> Decision:
    """Note in each book that the schedule of a flow runs again."""
    pen = Pen(state, command)
    body = {**command.facts, "flow": command.flow, "who": command.who}
    for book in command.books:
        pen.write(book, "resume", {}, body)
    return pen.decided(None)


def checkpoint(state: State, command: Checkpoint) -> Decision:
    """Keep a signature over an entry; False if the journal holds another one there."""
    pen, signed = Pen(state, command), state.entries.get(command.place)
    if signed is None or signed.hash != command.hash:
        return pen.decided(answer=False)
    body = {**command.facts, "signed": dict(command.signed)}
    pen.write(command.book, "checkpoint", {}, body)
    return pen.decided(answer=True)
