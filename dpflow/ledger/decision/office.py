"""Commands of operators: freezes, withdrawals, charges and repairs.

A charge of an operator, and of a repair, only ever raises usage.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from dpflow.accounting.costs.base import Cost, cost_from_description
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import (
    ConfigurationError,
    LedgerUnavailable,
    PolicyNotApplied,
    ReservationConflict,
)
from dpflow.ledger.decision.alerts import (
    Thresholds,
    alerts_of,
    noted,
    thresholds_of,
)
from dpflow.ledger.decision.fitting import in_windows, window_fact, with_parts_near
from dpflow.ledger.decision.gates import (
    Gate,
    check_holds,
    gate_at,
    gates_of,
    remainder,
)
from dpflow.ledger.decision.settlement import (
    gate_of,
    is_newest,
    known_charge,
    used_before,
)
from dpflow.ledger.decision.terms import (
    FIRST,
    check_currencies,
    opened,
    policies_of,
    terms_of,
)
from dpflow.ledger.entry import Sums
from dpflow.ledger.model import Command, Decision
from dpflow.ledger.records import Request, described
from dpflow.ledger.rows import Charge, Term, evidence_keys, roots_of, split
from dpflow.ledger.state import State
from dpflow.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Freeze(Command):
    """Refuse everything on a book, or end that; steps that run already may end."""

    book: str
    reason: str
    unfreeze: bool = False

    def decide(self, state: State) -> Decision:
        """Write that a book is frozen, or open again; answer whether that is new.

        Raises:
            PolicyNotApplied: If no policy of the book was applied yet.
        """
        pen, term = Decision(state, self), state.newest(self.book)
        if term is None:
            msg = (
                f"the ledger has applied no policy of dataset {self.book!r}, so there "
                f"is nothing to freeze. Run `dpflow policy apply {self.book}` first."
            )
            raise PolicyNotApplied(msg, dataset=self.book)
        changes = (state.book(self.book).frozen is not None) == self.unfreeze
        if changes:
            _freeze(pen, term, self.reason, unfreeze=self.unfreeze)
        return pen.answered(changes)


def _freeze(pen: Decision, term: Term, reason: str, *, unfreeze: bool = False) -> None:
    why = {"who": pen.command.facts.get("who", ""), "reason": reason}
    body = {**why, "book": term.book, **policies_of([term])}
    if not unfreeze:
        body["frozen"] = {**why, "at": pen.command.at}
    pen.write("unfreeze" if unfreeze else "freeze", {}, body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdraw(Command):
    """Delete the value of a release; its digest and its charge stay.

    Attributes:
        key: Of the release.
        digest: Of the value; another one stays.
        reason: Why, for the journal.
    """

    key: str
    digest: str | None
    reason: str

    def decide(self, state: State) -> Decision:
        """Delete the value of a release; the answer is whether there was one."""
        pen, release = Decision(state, self), state.release(self.key)
        if release is None or self.key not in state.values:
            return pen.answered(answer=False)
        charge = known_charge(state, release.charge)
        if (release.state, release.digest) != ("settled", self.digest):
            return pen.answered(answer=False)
        said = {"release": self.key, "digest": self.digest, "reason": self.reason}
        body = {**said, "books": charge.made.books}
        pen.write("withdraw", {}, body, charge=charge.id)
        return pen.answered(answer=True)


# Charges of an operator


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    """Amount that was posted to one account.

    Attributes:
        amount: In the theorem's own currency.
        overdrawn: Whether its gate would not have admitted the amount.
    """

    account: str
    amount: Mapping[str, str]
    overdrawn: bool


class _Raise(NamedTuple):
    """Amount by which an account is raised.

    Attributes:
        late: Whether other charges were perhaps priced without it.
    """

    gate: Gate
    more: Tally
    late: bool = False

    @property
    def amount(self) -> Tally:
        """The amount to post, by the account's rule."""
        gate, more = self.gate, self.more
        if self.late and any(more.amounts) and any(gate.used.amounts):
            return gate.rule.charged_late(gate.used, more)
        return more


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
        raises: Sequence[_Raise],
        body: Mapping[str, Any],
        charge: str | None = None,
    ) -> Decision:
        """Write the entry, whose evidence no other entry of its terms has.

        Raises:
            ConfigurationError: If one has.
        """
        for key in evidence_keys(self.evidence, (each.gate.id for each in raises)):
            before = pen.state.row(key)
            if before is not None:
                msg = (
                    "this evidence was charged in the same term before, by entry "
                    f"{before['entry']}: a second time would charge the same spending "
                    "twice. Other spending needs a file of its own that proves it."
                )
                raise ConfigurationError(msg)
        facts = {"reason": self.reason, "evidence": self.evidence}
        said = {**body, **facts, "cost": described(self.cost)}
        said["alert_at"] = self.alert_at(pen.state)
        return pen.answered(_raised(pen, "adjust", raises, said, charge))

    @abstractmethod
    def alert_at(self, state: State) -> Thresholds:
        """Return the thresholds of the policies that it charges."""


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
        made, problem, raises = charge.made, "", list[_Raise]()
        if self.dataset not in (None, *made.books):
            books = ", ".join(map(repr, made.books))
            problem = f"charged {books}, not dataset {self.dataset!r}"
        else:
            raises = [self._raise(state, charge, name) for name in made.amounts]
            if not any(any(each.more.amounts) for each in raises):
                reserved = cost_from_description(made.body["cost"])
                problem = (
                    f"is {charge.state}, reserved at {reserved!r}: {self.cost!r} is no "
                    "more than was charged, and a charge is only ever raised"
                )
        if problem:
            msg = f"reservation {charge.id} {problem}. Nothing was charged."
            raise ReservationConflict(msg, reservation=charge.id)
        wholes = roots_of(made.amounts)
        raises = [r for r in raises if any(r.more.amounts) or r.gate.id in wholes]
        body = {name: made.body[name] for name in ("policy", "currency")}
        return self.charged(pen, raises, body, charge.id)

    def alert_at(self, state: State) -> Thresholds:
        """Return those of the step."""
        thresholds: Thresholds = state.made[self.charge].body.get("alert_at", {})
        return thresholds

    def _raise(self, state: State, charge: Charge, name: str) -> _Raise:
        """Return by how much the cost is above all that was charged to an account."""
        made, last = charge.made, charge.ended or charge.made
        gate = gate_of(state, name, made.body.get("units", {}).get(name, 1))
        term = state.term(*split(name)[:2])
        if term is not None:
            check_holds(self.cost, term.book, term.facts["pinned"]["relation"])
        price = gate.price(self.cost, used_before(made, name))
        charged = Tally(last.amounts[name]).times(last.kind != "void")
        # What was posted late is not all the step's own: it counts for others.
        if gate.rule.steady and name in charge.added:
            charged = charged + Tally(charge.added[name])
        more = remainder(price, charged)
        return _Raise(gate, more, late=not is_newest(gate, charge))


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
        pen = Decision(state, self)
        terms = terms_of(pen, request)
        gates = gates_of(pen.state, request, terms)
        near = (with_parts_near(pen.state, gate, self.partitions) for gate in gates)
        raises = [_Raise(gate, gate.price(self.cost), late=True) for gate in near]
        body = {"step": request.step, "flow": self.flow, **policies_of(terms)}
        return self.charged(pen, raises, body)

    def alert_at(self, _: State) -> Thresholds:
        """Return those of its policies."""
        return thresholds_of((self.policy, *self.populations))


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair(Command):
    """Charge again what a ledger lacks, once; nothing is ever lowered.

    Attributes:
        amounts: What is charged again, by account.
        books: Those that lost something, with the flows whose charges were lost.
        lost: Number and hash of each entry that is missing.
        paid: By book that lost charges, that of the newest step that people paid;
            None without a record.
        frozen: By book that lost a decision, why it is frozen.
        head: Number of the newest entry when the ledger was compared.
        repairs: How many repairs the ledger has with this one.
        policies: To open a term again of a book that lacks them all.
        currencies: Accounts of whole terms that lost charges, each with the currency
            of these.
    """

    resent: ClassVar[bool] = False
    continues: ClassVar[bool] = False

    amounts: Sums
    reason: str
    head: int
    repairs: int
    books: Mapping[str, Sequence[str]] = field(default_factory=dict)
    lost: tuple[tuple[int, str], ...] = ()
    paid: Mapping[str, str | None] = field(default_factory=dict)
    frozen: Mapping[str, str] = field(default_factory=dict)
    policies: Mapping[str, Policy] = field(default_factory=dict)
    currencies: frozenset[tuple[str, str]] = frozenset()

    def decide(self, state: State) -> Decision:
        """Charge again what a ledger lacks, in full and once, and freeze what it must.

        Raises:
            LedgerUnavailable: If the ledger is another one than was compared.
            ConfigurationError: If an account has no term, and no policy opens it, or
                the lost charges of its term are in another currency.
        """
        pen = Decision(state, self)
        if state.head[0] != self.head:
            msg = (
                "the ledger was repaired or written to meanwhile, and this changed "
                "nothing. Compare again with `dpflow ledger reconcile`."
            )
            raise LedgerUnavailable(msg)
        books = (split(name)[0] for name in self.amounts)
        for book in dict.fromkeys((*books, *self.frozen)):
            policy = self.policies.get(book)
            if policy is not None and pen.state.newest(book) is None:
                opened(pen, policy, reason=FIRST)
        check_currencies(pen.state, self.currencies)
        raises = [*self._again(pen.state)]
        terms = (pen.state.term(*split(each.gate.id)[:2]) for each in raises)
        body = {
            "reason": self.reason,
            **policies_of(filter(None, terms)),
            "flows": {book: list(flows) for book, flows in self.books.items()},
            "lost": [digest for _, digest in self.lost],
            "people": dict(self._people(pen.state)),
            "repairs": self.repairs,
            "alert_at": thresholds_of(self.policies.values()),
        }
        posted = _raised(pen, "repair", raises, body)
        for book, reason in self.frozen.items():
            term = pen.state.newest(book)
            if term is not None and pen.state.book(book).frozen is None:
                _freeze(pen, term, reason)
        return pen.answered(posted)

    def _people(self, state: State) -> Iterator[tuple[str, str]]:
        """Yield the newest step of each store; one that is unknown fits no file."""
        for book, newest in self.paid.items():
            account = f"{book}#{state.book(book).terms}"
            if state.row(f"people/{account}"):
                yield account, newest or "unknown"

    def _again(self, state: State) -> Iterator[_Raise]:
        """Yield the amount for each account, and zero for the whole of each term.

        Raises:
            ConfigurationError: If it has no term, or its term has no gate for it.
        """
        first = min((number for number, _ in self.lost), default=0)
        # Parts of windows belong to no term; the newest one decides about them.
        books = {split(name)[0] for name in self.amounts if not split(name)[1]}
        newest = [term.whole for term in map(state.newest, sorted(books)) if term]
        roots = roots_of(self.amounts)
        for name in dict.fromkeys((*roots, *newest, *self.amounts)):
            gate, book = gate_at(state, name), split(name)[0]
            if gate is None:
                msg = (
                    f"the ledger lacks account {name!r}, and no policy makes it. Put "
                    f"the policy file of dataset {book!r} back that was in force at "
                    f"that time, and run `dpflow policy apply {book}`. Only if the "
                    "ledger lacks its whole term, add `--new-term --reason TEXT`."
                )
                raise ConfigurationError(msg)
            # What the account lacks comes after what it holds, unless it went on.
            late = gate.row is not None and gate.row.entry >= first
            amount = self.amounts.get(name, gate.rule.zero().amounts)
            yield _Raise(gate, Tally(amount), late=late)


def _raised(
    pen: Decision,
    kind: str,
    raises: Sequence[_Raise],
    body: Mapping[str, Any],
    charge: str | None = None,
) -> tuple[Posted, ...]:
    """Write an entry that raises what accounts have settled."""
    near = (with_parts_near(pen.state, each.gate) for each in raises)
    pairs = zip(near, (each.amount for each in raises), strict=True)
    posted = in_windows([*pairs])
    overdrawn = [gate.id for gate, amount in posted if gate.overdrawn_by(amount)]
    facts = {**body, "overdrawn": overdrawn} if overdrawn else {**body}
    facts |= window_fact(gate for gate, _ in posted)
    amounts = {gate.id: amount.amounts for gate, amount in posted}
    facts |= noted(alerts_of(pen.state, amounts, facts.pop("alert_at")))
    pen.write(kind, amounts, facts, charge=charge)
    return tuple(
        Posted(
            account=gate.id,
            amount=gate.rule.named(amount),
            overdrawn=gate.id in overdrawn,
        )
        for gate, amount in posted
    )
