"""Charges of an operator, and of a repair: they only ever raise usage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

from dpflow.accounting.costs.base import Cost, cost_from_description
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import (
    ConfigurationError,
    LedgerUnavailable,
    PolicyChanged,
    PolicyNotApplied,
    ReservationConflict,
)
from dpflow.ledger.decision.admit import Reserve
from dpflow.ledger.decision.gates import Gate, gate_at, gates_of, remainder
from dpflow.ledger.decision.office import closed, policies_of
from dpflow.ledger.decision.settlement import gate_of, known_charge, used_before
from dpflow.ledger.decision.terms import (
    check_holds,
    check_relation,
    governing,
    terms_of,
)
from dpflow.ledger.model import Command, Decision, Keys, State
from dpflow.ledger.records import Request, described
from dpflow.ledger.rows import Amounts, Charge, Sums, Term, epoch_of, split
from dpflow.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class ByHand(Command):
    """Charge of an operator.

    Attributes:
        reason: Why, for the journal.
        evidence: The sha256 of a file that proves it; a term uses each once.
    """

    guarded: ClassVar[bool] = True

    reason: str
    evidence: str | None = None

    @property
    def claims(self) -> tuple[str, ...]:
        """Names that a term uses once."""
        return () if self.evidence is None else (f"evidence {self.evidence}",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Amend(ByHand):
    """Charge what a step cost more than was reserved for it.

    Attributes:
        charge: Of the step.
        cost: Corrected cost of the step.
        dataset: One that the step read, if the operator names it.
    """

    charge: str
    cost: Cost
    dataset: str | None = None

    @property
    def keys(self) -> Keys:
        """The charge with all that it holds, and the evidence."""
        return Keys(charges=(self.charge,), claims=self.claims)

    def decide(self, state: State) -> Decision:
        """Charge what a step cost more than was reserved for it; it may have ended.

        Raises:
            ReservationConflict: If that is no more than was charged: nothing falls.
            UnsupportedCost: If the theorem of an account has no price for the cost, or
                that does not hold under the relation of its term.
        """
        pen, charge = Decision(state, self), known_charge(state, self.charge)
        if charge.covers is not None:
            msg = (
                f"reservation {charge.id} is the one of flow run "
                f"{charge.covers}, under which no body runs. Amend the step that cost "
                "more."
            )
            raise ReservationConflict(msg, reservation=charge.id)
        if self.dataset is not None and self.dataset not in charge.places:
            books = ", ".join(map(repr, charge.places))
            msg = (
                f"reservation {charge.id} charged {books}, not dataset "
                f"{self.dataset!r}. Nothing was charged. `dpflow history "
                f"{self.dataset}` lists the reservations of that dataset."
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
                check_holds(self.cost, gate.dataset, relation)
                more = _more(gate, self.cost, Tally(known), used_before(entry, name))
                late = not _is_newest(charge, entry.book, gate)
                if any(more.amounts):
                    extra.append((gate, _posted(gate, more, late=late)))
        reserved = made[0].body["cost"]
        if not extra:
            msg = (
                f"{self.cost!r} is no more than was charged for reservation "
                f"{charge.id} ({charge.state}, reserved at "
                f"{cost_from_description(reserved)!r}). A charge is only ever raised."
            )
            raise ReservationConflict(msg, reservation=charge.id)
        places = dict.fromkeys(split(gate.id)[:2] for gate, _ in extra)
        terms = [term for place in places if (term := state.term(*place)) is not None]
        body = {
            "cost": self.cost.describe(),
            "reserved_cost": reserved,
            "reason": self.reason,
            "evidence_sha256": self.evidence,
            "policy": made[0].body["policy"],
        }
        claims = _evidence(state, self, terms)
        raised = _raised(pen, "amend", extra, body, charge=charge.id, claims=claims)
        return pen.answered(raised)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior(ByHand):
    """Charge prior spending, before the ledger governed the dataset.

    Attributes:
        policy: Of the dataset.
        cost: All that was spent; `Composed` and `Repeated` hold several steps.
        flow: The flow whose share was spent.
        partitions: The parts of a divided dataset that were read.
        populations: The population that the dataset belongs to.
    """

    policy: Policy
    cost: Cost
    flow: str | None = None
    partitions: tuple[str, ...] = ()
    populations: tuple[Policy, ...] = ()

    @property
    def request(self) -> Request:
        """A step that would be charged as much."""
        return Request(
            reservation="prior",
            owner="operator",
            policies=(self.policy,),
            populations=self.populations,
            cost=self.cost,
            step="spent before dpflow",
            flow=self.flow,
            partitions=self.partitions,
        )

    @property
    def keys(self) -> Keys:
        """The accounts of every gate, and the evidence."""
        keys = Reserve(request=self.request).keys
        claims = (*keys.claims, *self.claims)
        return Keys(books=keys.books, gates=keys.gates, claims=claims)

    def decide(self, state: State) -> Decision:
        """Charge what was spent elsewhere; irreversible.

        Raises:
            ConfigurationError: If this evidence was charged before, or no part of a
                divided dataset is named.
        """
        pen, request = Decision(state, self), self.request
        check_relation(request)
        terms = terms_of(pen, request)
        gates = gates_of(pen.state, request, terms)
        prices = [(gate, gate.price(request.cost)) for gate in gates]
        asked = [(gate, _posted(gate, price, late=True)) for gate, price in prices]
        claims = _evidence(pen.state, self, terms)
        body: dict[str, Any] = {
            "reason": self.reason,
            "evidence_sha256": self.evidence,
            "cost": described(request.cost),
            "step": request.step,
            "flow": request.flow,
            "release_key": None,
            "policy": policies_of(terms),
        }
        return pen.answered(_raised(pen, "prior", asked, body, claims=claims))


@dataclass(frozen=True, slots=True, kw_only=True)
class BookLoss:
    """What a ledger lacks of one book.

    Attributes:
        number: Of the newest entry that it holds, when that was found out.
        amounts: What is charged again, by account.
        entries: Number and hash of each entry that is missing.
        charges: What is known of them, for the journal.
        frozen: Why the book is frozen, if a decision was lost.
    """

    number: int
    amounts: Sums = field(default_factory=dict)
    entries: tuple[tuple[int, str], ...] = ()
    charges: tuple[Mapping[str, Any], ...] = ()
    frozen: str = ""


def lost_name(book: str, number: int, told: str) -> str:
    """Return the name under which a lost entry is charged again, once."""
    return f"lost {book} {number} {told}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair(Command):
    """Charge again what a ledger lacks, once; nothing is ever lowered.

    Attributes:
        losses: By book.
        reason: Why, for the journal.
        before: How many repairs the ledger had when the losses were found.
        epoch: How many it has with this one.
        policies: To open a term again of a book that lacks them all.
    """

    losses: Mapping[str, BookLoss]
    reason: str
    before: int
    epoch: int
    policies: Mapping[str, Policy] = field(default_factory=dict)

    @property
    def keys(self) -> Keys:
        """The books with all terms and accounts, and who charged these losses."""
        books = tuple(sorted(self.losses))
        names = [
            lost_name(book, number, told)
            for book, loss in self.losses.items()
            for number, told in loss.entries
        ]
        sources = [p.source for p in self.policies.values() if p.source is not None]
        names += [f"source {source}" for source in sources]
        return Keys(books=books, whole=books, claims=tuple(dict.fromkeys(names)))

    def decide(self, state: State) -> Decision:
        """Charge again what a ledger lacks, in full and once, and freeze what it must.

        Raises:
            LedgerUnavailable: If the ledger is another one than was compared.
            ConfigurationError: If an account is gone, and no policy makes its term.
        """
        pen = Decision(state, self)
        if epoch_of(state.rows) != self.before or any(
            state.book(book).number != loss.number
            or any(book in state.claimed(lost_name(book, *e)) for e in loss.entries)
            for book, loss in self.losses.items()
        ):
            msg = (
                "somebody else repaired the ledger or charged it meanwhile, and this "
                "changed nothing. Compare again with `dpflow ledger reconcile`."
            )
            raise LedgerUnavailable(msg)
        found: list[Posted] = []
        for book, loss in self.losses.items():
            found += _repaired(pen, self, book, loss)
        return pen.answered(tuple(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    """What was posted to one account.

    Attributes:
        amount: In the theorem's own currency.
        state: Of the account afterwards: "overdrawn" if its gate would not have
            admitted so much.
    """

    account: str
    entry: int
    amount: Mapping[str, str]
    state: str


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


def _evidence(
    state: State, command: ByHand, terms: Sequence[Term]
) -> dict[str, dict[str, str]] | None:
    """Return what each book says of the evidence, which no term charges twice."""
    found: dict[str, dict[str, str]] = {}
    for name in command.claims:
        before = state.claimed(name)
        for term in terms:
            account = f"{term.book}#{term.number}"
            used, _, entry = before.get(term.book, "").rpartition(" ")
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
    pen: Decision,
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


def _repaired(
    pen: Decision, command: Repair, book: str, loss: BookLoss
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
        "reason": command.reason,
        "policy": policies_of(terms),
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
        closed(pen, term, loss.frozen, unfreeze=False)
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
