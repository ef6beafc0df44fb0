"""Charges of an operator, and of a repair: they only ever raise usage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from dpflow.ledger.decision.checks import term_of_account
from dpflow.ledger.decision.gates import Gate, gate_at, gates_of, remainder
from dpflow.ledger.decision.office import closed
from dpflow.ledger.decision.settlement import (
    gate_of,
    is_newest,
    known_charge,
    used_before,
)
from dpflow.ledger.decision.terms import (
    check_holds,
    check_relation,
    governing,
    policies_of,
    terms_of,
)
from dpflow.ledger.entry import Amounts, Sums
from dpflow.ledger.model import Command, Decision
from dpflow.ledger.records import Request, described
from dpflow.ledger.rows import Charge, evidence_keys, roots_of, split
from dpflow.ledger.state import State
from dpflow.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class ByHand(Command):
    """Charge of an operator.

    Attributes:
        cost: Corrected cost of a step, or all prior spending.
        reason: Why, for the journal.
        evidence: The sha256 of a file that proves it; a term uses each once.
    """

    guarded: ClassVar[bool] = True
    # It has no id by which a second sending would be recognised.
    resent: ClassVar[bool] = False

    cost: Cost
    reason: str
    evidence: str | None = None

    def charged(
        self,
        pen: Decision,
        extra: Sequence[tuple[Gate, Tally]],
        body: Mapping[str, Any],
        charge: str | None = None,
    ) -> Decision:
        """Write the entry, whose evidence no other entry of its terms has.

        Raises:
            ConfigurationError: If one has.
        """
        accounts = [gate.id for gate, _ in extra]
        for key in evidence_keys(self.evidence, accounts):
            before = pen.state.row(key)
            if before is not None:
                account = key.removeprefix("evidence/").rpartition("/")[0]
                msg = (
                    f"this evidence was charged to account {account!r} before, by "
                    f"entry {before['entry']}; a second time would charge the same "
                    "spending twice. Other spending needs a file of its own that "
                    "proves it."
                )
                raise ConfigurationError(msg)
        facts = {"reason": self.reason, "evidence": self.evidence}
        said = {**body, **facts, "cost": described(self.cost)}
        return pen.answered(_raised(pen, "adjust", extra, said, charge))


@dataclass(frozen=True, slots=True, kw_only=True)
class Amend(ByHand):
    """Charge what a step cost more than was reserved for it.

    Attributes:
        charge: Of the step.
        dataset: One that the step read, if the operator names it.
    """

    charge: str
    dataset: str | None = None

    def decide(self, state: State) -> Decision:
        """Charge what a step cost more than was reserved for it; it may have ended.

        Raises:
            ReservationConflict: If that is no more than was charged: nothing falls.
            UnsupportedCost: If the theorem of an account has no price for the cost, or
                that does not hold under the relation of its term.
        """
        pen, charge = Decision(state, self), known_charge(state, self.charge)
        made, units = charge.made, charge.made.body.get("units", {})
        problem = ""
        if charge.covers is not None:
            problem = (
                f"reservation {charge.id} is the one of flow run {charge.covers}, "
                "under which no body runs. Amend the step that cost more."
            )
        elif self.dataset not in (None, *made.books):
            books = ", ".join(map(repr, made.books))
            problem = (
                f"reservation {charge.id} charged {books}, not dataset "
                f"{self.dataset!r}. Nothing was charged. `dpflow history "
                f"{self.dataset}` lists the reservations of that dataset."
            )
        if problem:
            raise ReservationConflict(problem, reservation=charge.id)
        extra: list[tuple[Gate, Tally]] = []
        wholes = roots_of(made.amounts)
        for name, charged in _charged(state, charge).items():
            gate = gate_of(state, name, units.get(name, 1))
            pinned = term_of_account(state, name).facts["pinned"]
            check_holds(self.cost, gate.dataset, pinned["relation"])
            more = _more(gate, self.cost, Tally(charged), used_before(made, name))
            if any(more.amounts):
                more = _posted(gate, more, late=not is_newest(gate, charge))
            elif name not in wholes:
                continue
            extra.append((gate, more))
        if not any(any(amount.amounts) for _, amount in extra):
            reserved = cost_from_description(made.body["cost"])
            msg = (
                f"{self.cost!r} is no more than was charged for reservation "
                f"{charge.id} ({charge.state}, reserved at {reserved!r}). A charge is "
                "only ever raised."
            )
            raise ReservationConflict(msg, reservation=charge.id)
        body = {"policy": made.body["policy"]}
        return self.charged(pen, extra, body, charge.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior(ByHand):
    """Charge prior spending, before the ledger governed the dataset.

    `Composed` and `Repeated` costs hold several steps.

    Attributes:
        policy: Of the dataset.
        flow: The flow whose share was spent.
        partitions: The parts of a divided dataset that were read.
        populations: The population that the dataset belongs to.
    """

    policy: Policy
    flow: str | None = None
    partitions: tuple[str, ...] = ()
    populations: tuple[Policy, ...] = ()

    def decide(self, state: State) -> Decision:
        """Charge what was spent elsewhere; irreversible.

        Raises:
            ConfigurationError: If this evidence was charged before, or no part of a
                divided dataset is named.
        """
        # A step that would be charged as much.
        request = Request(
            reservation="prior",
            owner="operator",
            policies=(self.policy,),
            populations=self.populations,
            cost=self.cost,
            step="spent before dpflow",
            flow=self.flow,
            partitions=self.partitions,
        )
        check_relation(request)
        pen = Decision(state, self)
        terms = terms_of(pen, request)
        extra = [
            (gate, _posted(gate, gate.price(self.cost), late=True))
            for gate in gates_of(pen.state, request, terms)
        ]
        body = {"step": request.step, "flow": self.flow, "policy": policies_of(terms)}
        return self.charged(pen, extra, body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair(Command):
    """Charge again what a ledger lacks, once; nothing is ever lowered.

    Attributes:
        amounts: What is charged again, by account.
        books: Those that lost something, with the flows whose charges were lost.
        lost: Number and hash of each entry that is missing.
        paid: By book that lost charges, that of the newest step that people paid;
            None if it is unknown.
        frozen: By book that lost a decision, why it is frozen.
        head: Number of the newest entry when the ledger was compared.
        repairs: How many repairs the ledger has with this one.
        policies: To open a term again of a book that lacks them all.
    """

    resent: ClassVar[bool] = False

    amounts: Sums
    reason: str
    head: int
    repairs: int
    books: Mapping[str, Sequence[str]] = field(default_factory=dict)
    lost: tuple[tuple[int, str], ...] = ()
    paid: Mapping[str, str | None] = field(default_factory=dict)
    frozen: Mapping[str, str] = field(default_factory=dict)
    policies: Mapping[str, Policy] = field(default_factory=dict)

    def decide(self, state: State) -> Decision:
        """Charge again what a ledger lacks, in full and once, and freeze what it must.

        Raises:
            LedgerUnavailable: If the ledger is another one than was compared.
            ConfigurationError: If an account is gone, and no policy makes its term.
        """
        pen = Decision(state, self)
        if state.head[0] != self.head:
            msg = (
                "the ledger was repaired or written to meanwhile, and this changed "
                "nothing. Compare again with `dpflow ledger reconcile`."
            )
            raise LedgerUnavailable(msg)
        for book in {split(name)[0]: None for name in self.amounts}:
            policy = self.policies.get(book)
            if policy is not None and pen.state.newest(book) is None:
                with suppress(PolicyNotApplied, PolicyChanged):
                    governing(pen, policy, applies=True)
        extra = [*self._again(pen.state)]
        terms = (term_of_account(pen.state, gate.id) for gate, _ in extra)
        body = {
            "reason": self.reason,
            "policy": policies_of(terms),
            "flows": {book: list(flows) for book, flows in self.books.items()},
            "lost": [digest for _, digest in self.lost],
            "people": self._people(pen.state),
            "repairs": self.repairs,
        }
        posted = _raised(pen, "repair", extra, body)
        for book, reason in self.frozen.items():
            term = pen.state.newest(book)
            if term is not None and pen.state.book(book).frozen is None:
                closed(pen, term, reason, unfreeze=False)
        return pen.answered(posted)

    def _people(self, state: State) -> dict[str, str]:
        """Return the newest step of each store; one that is unknown fits no file."""
        found = {b: f"{b}#{state.book(b).terms}" for b in self.paid}
        stores = {b: a for b, a in found.items() if state.row(f"people/{a}")}
        return {a: self.paid[b] or "" for b, a in stores.items()}

    def _again(self, state: State) -> Iterator[tuple[Gate, Tally]]:
        """Yield the amount for each account, and zero for the whole of each term.

        Raises:
            ConfigurationError: If its term is gone, or has no gate for it.
        """
        first = min((number for number, _ in self.lost), default=0)
        for name in dict.fromkeys((*roots_of(self.amounts), *self.amounts)):
            gate, book = gate_at(state, name), split(name)[0]
            if gate is None:
                msg = (
                    f"the ledger lacks account {name!r}, and no policy makes it. Put "
                    f"the policy file of dataset {book!r} back that was in force at "
                    "that time. If the ledger lacks its whole term, apply it again: "
                    f"`dpflow policy apply {book} --new-term --reason TEXT`."
                )
                raise ConfigurationError(msg)
            amount = gate.rule.zero()
            if name in self.amounts:
                # What the account lacks comes after what it holds, unless it went on.
                late = gate.row is not None and gate.row.entry >= first
                amount = _posted(gate, Tally(self.amounts[name]), late=late)
            yield gate, amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    """What was posted to one account.

    Attributes:
        amount: In the theorem's own currency.
        overdrawn: Whether its gate would not have admitted so much.
    """

    account: str
    amount: Mapping[str, str]
    overdrawn: bool


def _more(gate: Gate, cost: Cost, charged: Tally, before: Tally) -> Tally:
    """Return by how much a step's cost is above what was charged for it."""
    if gate.price(cost, before).fits_within(charged):
        # It would have had that price: what came later makes it no larger.
        return gate.rule.zero()
    return remainder(gate.price(cost, remainder(gate.used, charged)), charged)


def _posted(gate: Gate, more: Tally, *, late: bool) -> Tally:
    """Return what is posted of an amount that others were perhaps priced without."""
    if not late or not any(gate.used.amounts):
        return more
    return gate.rule.charged_late(gate.used, more)


def _charged(state: State, charge: Charge) -> dict[str, Amounts]:
    """Return the amounts that all entries charged to accounts for a step."""
    last = charge.ended or charge.made
    charged = {
        name: (0,) * len(amount) if last.kind == "void" else amount
        for name, amount in last.amounts.items()
    }
    for name, amount in charge.added.items():
        # What was posted late is not all the step's own: then it counts for others.
        if name in charged and gate_of(state, name, 1).rule.steady:
            charged[name] = (Tally(charged[name]) + Tally(amount)).amounts
    return charged


def _raised(
    pen: Decision,
    kind: str,
    extra: Sequence[tuple[Gate, Tally]],
    body: Mapping[str, Any],
    charge: str | None = None,
) -> tuple[Posted, ...]:
    """Write an entry that raises what accounts have settled."""
    overdrawn = [gate.id for gate, amount in extra if gate.overdrawn_by(amount)]
    facts = {**body, "overdrawn": overdrawn} if overdrawn else body
    amounts = {gate.id: amount.amounts for gate, amount in extra}
    pen.write(kind, amounts, facts, charge=charge)
    return tuple(
        Posted(
            account=gate.id,
            amount=gate.rule.named(amount),
            overdrawn=gate.id in overdrawn,
        )
        for gate, amount in extra
    )
