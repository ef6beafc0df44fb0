"""Charges of an operator, and of a repair: they only ever raise usage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from dpflow.ledger.entry import Amounts, Sums
from dpflow.ledger.model import Command, Decision, newest_terms, terms_of_accounts
from dpflow.ledger.records import Request, described
from dpflow.ledger.rows import Charge, account_key, evidence_key, split
from dpflow.ledger.state import State, charge_keys
from dpflow.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class ByHand(Command):
    """Charge of an operator.

    Attributes:
        reason: Why, for the journal.
        evidence: The sha256 of a file that proves it; a term uses each once.
    """

    guarded: ClassVar[bool] = True
    # It has no id by which it is found again.
    resent: ClassVar[bool] = False

    reason: str
    evidence: str | None = None


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

    def keys(self, state: State) -> Iterator[str]:
        """Yield the charge with all that it holds, and the evidence."""
        yield from charge_keys(state, self.charge)
        made = state.made.get(self.charge)
        if made is not None:
            yield from map(account_key, made.amounts)
            yield from terms_of_accounts(made.amounts)
            yield from _evidence_keys(self.evidence, made.amounts)

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
        made = charge.made
        read = dict.fromkeys(split(name)[0] for name in made.amounts)
        if self.dataset is not None and self.dataset not in read:
            books = ", ".join(map(repr, read))
            msg = (
                f"reservation {charge.id} charged {books}, not dataset "
                f"{self.dataset!r}. Nothing was charged. `dpflow history "
                f"{self.dataset}` lists the reservations of that dataset."
            )
            raise ReservationConflict(msg, reservation=charge.id)
        extra: list[tuple[Gate, Tally]] = []
        units = made.body.get("units", {})
        for name, known in _charged(state, charge).items():
            gate = gate_of(state, name, units.get(name, 1))
            term = state.term(*split(name)[:2])
            relation = "" if term is None else term.facts["pinned"]["relation"]
            check_holds(self.cost, gate.dataset, relation)
            more = _more(gate, self.cost, Tally(known), used_before(made, name))
            late = not _is_newest(charge, gate)
            if any(more.amounts):
                extra.append((gate, _posted(gate, more, late=late)))
        reserved = made.body["cost"]
        if not extra:
            msg = (
                f"{self.cost!r} is no more than was charged for reservation "
                f"{charge.id} ({charge.state}, reserved at "
                f"{cost_from_description(reserved)!r}). A charge is only ever raised."
            )
            raise ReservationConflict(msg, reservation=charge.id)
        _check_evidence(state, self.evidence, [gate.id for gate, _ in extra])
        body = {
            "cost": self.cost.describe(),
            "reserved_cost": reserved,
            "reason": self.reason,
            "evidence": self.evidence,
            "policy": made.body["policy"],
        }
        raised = _raised(pen, "adjust", extra, body, charge=charge.id)
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

    def keys(self, state: State) -> Iterator[str]:
        """Yield the accounts of every gate, and the evidence."""
        found = [*Reserve(request=self.request).keys(state)]
        yield from found
        accounts = [k.removeprefix("account/") for k in found if k[:8] == "account/"]
        yield from _evidence_keys(self.evidence, accounts)

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
        _check_evidence(pen.state, self.evidence, [gate.id for gate in gates])
        body: dict[str, Any] = {
            "reason": self.reason,
            "evidence": self.evidence,
            "cost": described(request.cost),
            "step": request.step,
            "flow": request.flow,
            "release_key": None,
            "policy": policies_of(terms),
        }
        return pen.answered(_raised(pen, "adjust", asked, body))


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair(Command):
    """Charge again what a ledger lacks, once; nothing is ever lowered.

    Attributes:
        amounts: What is charged again, by account.
        books: Those that lost something, with the flows whose charges were lost.
        lost: Number and hash of each entry that is missing.
        charges: What is known of them, for the journal.
        frozen: By book that lost a decision, why it is frozen.
        head: Number of the newest entry when the losses were found.
        before: How many repairs the ledger had then.
        repairs: How many it has with this one.
        policies: To open a term again of a book that lacks them all.
    """

    resent: ClassVar[bool] = False

    amounts: Sums
    reason: str
    head: int
    before: int
    repairs: int
    books: Mapping[str, Sequence[str]] = field(default_factory=dict)
    lost: tuple[tuple[int, str], ...] = ()
    charges: tuple[Mapping[str, Any], ...] = ()
    frozen: Mapping[str, str] = field(default_factory=dict)
    policies: Mapping[str, Policy] = field(default_factory=dict)

    def keys(self, state: State) -> Iterator[str]:
        """Yield the accounts with their terms, and the books that are frozen."""
        yield "repairs"
        yield from map(account_key, self.with_roots)
        yield from terms_of_accounts(self.amounts)
        for book in self.books:
            yield from newest_terms(state, book)
            yield f"account/{book}#1"
            policy = self.policies.get(book)
            if policy is not None and policy.source is not None:
                yield f"claim/{policy.source}"

    @property
    def with_roots(self) -> Sums:
        """The amounts, with the account of each term's whole: it was charged."""
        terms = dict.fromkeys(split(name)[:2] for name in self.amounts)
        return {**{f"{book}#{number}": () for book, number in terms}, **self.amounts}

    def decide(self, state: State) -> Decision:
        """Charge again what a ledger lacks, in full and once, and freeze what it must.

        Raises:
            LedgerUnavailable: If the ledger is another one than was compared.
            ConfigurationError: If an account is gone, and no policy makes its term.
        """
        pen = Decision(state, self)
        if (state.repairs, state.head[0]) != (self.before, self.head):
            msg = (
                "the ledger was repaired or written to meanwhile, and this changed "
                "nothing. Compare again with `dpflow ledger reconcile`."
            )
            raise LedgerUnavailable(msg)
        for book in self.books:
            policy = self.policies.get(book)
            charged = any(split(name)[0] == book for name in self.amounts)
            if charged and pen.state.newest(book) is None and policy is not None:
                with suppress(PolicyNotApplied, PolicyChanged):
                    governing(pen, policy, applies=True)
        first = min((number for number, _ in self.lost), default=0)
        extra = []
        for name, amount in self.with_roots.items():
            gate = _gate_again(pen.state, name)
            if name not in self.amounts:
                extra.append((gate, gate.rule.zero()))
                continue
            # What the account lacks comes after what it holds, unless it went on.
            late = gate.row is not None and gate.row.entry >= first
            extra.append((gate, _posted(gate, Tally(amount), late=late)))
        terms = dict.fromkeys(split(name)[:2] for name in self.amounts)
        body = {
            "reason": self.reason,
            "policy": policies_of(filter(None, (pen.state.term(*t) for t in terms))),
            "books": list(self.books),
            "flows": {book: list(flows) for book, flows in self.books.items()},
            "missing": len(self.lost),
            "lost": [told for _, told in self.lost],
            "charges": list(self.charges),
            "step": "ledger reconcile",
            "release_key": None,
            "repairs": self.repairs,
        }
        posted = _raised(pen, "repair", extra, body)
        for book, reason in self.frozen.items():
            term = pen.state.newest(book)
            if term is not None and pen.state.book(book).frozen is None:
                closed(pen, term, reason, unfreeze=False)
        return pen.answered(posted)


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


def _is_newest(charge: Charge, gate: Gate) -> bool:
    """Say whether an account surely moved for no other charge since it was made."""
    made, ended = charge.made.number, charge.ended and charge.ended.number
    own = (made,) if ended != made + 1 else (made, ended)
    return gate.row is not None and gate.row.entry in own


def _posted(gate: Gate, more: Tally, *, late: bool) -> Tally:
    """Return what is posted of an amount that others were perhaps priced without."""
    if not late or not any(gate.used.amounts):
        return more
    return gate.rule.charged_late(gate.used, more)


def _charged(state: State, charge: Charge) -> dict[str, Amounts]:
    """Return what each account was charged for a step, by all entries."""
    last = charge.ended or charge.made
    found = {
        name: (0,) * len(amount) if last.kind == "void" else amount
        for name, amount in last.amounts.items()
    }
    for name, amount in charge.added.items():
        # What was posted late is not all the step's own: then it counts for others.
        if name in found and gate_of(state, name, 1).rule.steady:
            found[name] = (Tally(found[name]) + Tally(amount)).amounts
    return found


def _evidence_keys(evidence: str | None, accounts: Iterable[str]) -> Iterator[str]:
    """Yield the keys of evidence in the terms of some accounts."""
    if evidence is not None:
        for book, number in dict.fromkeys(split(name)[:2] for name in accounts):
            yield evidence_key(f"{book}#{number}", evidence)


def _check_evidence(
    state: State, evidence: str | None, accounts: Sequence[str]
) -> None:
    """Refuse evidence that a term has charged already.

    Raises:
        ConfigurationError: If one has.
    """
    for key in _evidence_keys(evidence, accounts):
        before = state.row(key)
        if before is not None:
            account = key.removeprefix("evidence/").rpartition("/")[0]
            msg = (
                f"this evidence was charged to account {account!r} before, by "
                f"entry {before['entry']}; a second time would charge the same "
                "spending twice. Other spending needs a file of its own that proves it."
            )
            raise ConfigurationError(msg)


def _raised(
    pen: Decision,
    kind: str,
    extra: Sequence[tuple[Gate, Tally]],
    body: Mapping[str, Any],
    *,
    charge: str | None = None,
) -> tuple[Posted, ...]:
    """Write an entry that raises what accounts have settled."""
    overdrawn = [gate.id for gate, amount in extra if gate.overdrawn_by(amount)]
    told = {**body, "overdrawn": overdrawn} if overdrawn else dict(body)
    amounts = {gate.id: amount.amounts for gate, amount in extra}
    entry = pen.write(kind, amounts, told, charge=charge)
    return tuple(
        Posted(
            account=gate.id,
            entry=entry.number,
            amount=gate.rule.named(amount),
            # A freeze hides all other states.
            state="overdrawn"
            if gate.state == "open" and gate.id in overdrawn
            else gate.state,
        )
        for gate, amount in extra
    )


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
