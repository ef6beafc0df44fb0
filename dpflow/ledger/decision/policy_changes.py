"""Applying a policy's file: three ways lead from the ledger's copy to what it says.

Nothing was charged under the copy: it is replaced. All changes are tighter: the
accounts keep their tallies and get lower limits. Anything else needs a new term with
tallies of its own; terms add up by basic composition, each with the budget that it was
opened with, to at most the lifetime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import (
    InvalidCost,
    LedgerCorrupt,
    PolicyChanged,
    PolicyNotApplied,
)
from dpflow.ledger.decision.checks import is_tighter
from dpflow.ledger.decision.gates import Gate, announced_gate, gate_at
from dpflow.ledger.decision.lifetime import Budgets, check_lifetime, check_raise
from dpflow.ledger.decision.terms import (
    agrees,
    check_alone,
    copy_of,
    is_charged,
    opened,
    source_claim,
)
from dpflow.ledger.model import Command, Decision
from dpflow.ledger.records import TermView
from dpflow.ledger.rows import Account, Term, split
from dpflow.ledger.state import State
from dpflow.policy import Policy
from dpflow.policy.changes import Change, Verdict, judge, overall, tightened_pins
from dpflow.policy.reserved import reserved_flows


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What applying a policy would do.

    Attributes:
        term: The term that governs now; None if nothing was applied yet.
        changes: Each field that differs, judged.
        action: What `apply` does; "new term" it does only if asked for one.
        why: Why a policy that is tighter nevertheless needs a new term.
        pins: For "tighten", the copy that will govern.
        terms: The terms so far.
        obstacle: What the lifetime has against it; empty if nothing.
    """

    dataset: str
    term: Term | None
    changes: tuple[Change, ...]
    action: str
    why: str
    pins: Mapping[str, Any] | None
    terms: tuple[TermView, ...]
    obstacle: str = ""

    @property
    def verdict(self) -> Verdict | Literal["same"]:
        """What all changes together do to the guarantee."""
        return overall(self.changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What was applied.

    Attributes:
        term: Number of the term that governs now.
        accounts: Accounts whose gate was tightened.
        closed: Those of them that admit nothing more, for their usage was above.
        terms: The terms, this one included.
    """

    dataset: str
    action: str
    term: int
    changes: tuple[Change, ...]
    accounts: tuple[str, ...]
    closed: tuple[str, ...]
    terms: tuple[TermView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply(Command):
    """Make a policy the ledger's own copy, which governs from then on.

    Attributes:
        reason: Why; a new term has to say.
        new_term: Open a term with tallies of its own.
        raise_lifetime: Raise or drop the lifetime; the promise it made is void then.
        forgotten: Accounts that the witness knows to have been charged.
    """

    policy: Policy
    reason: str = ""
    new_term: bool = False
    raise_lifetime: bool = False
    forgotten: tuple[str, ...] = ()

    def decide(self, state: State) -> Decision:
        """Make a policy the ledger's own copy, which governs from then on.

        Raises:
            PolicyChanged: If only a new term can hold it, and none was asked for.
            PolicyNotApplied: If the lifetime or a freeze forbids it.
            ConfigurationError: If another dataset has its source.
        """
        pen, found = Decision(state, self), propose(state, self.policy, self.forgotten)
        if found.action == "nothing" and not self.new_term:
            return pen.answered(_applied(state, found))
        check_alone(state, self.policy)
        if found.action == "tighten" and not self.new_term:
            lowered = _tighten(pen, self, found)
            return pen.answered(_applied(pen.state, found, lowered))
        return pen.answered(_open(pen, self, found))


def term_views(
    state: State, book: str, forgotten: Sequence[str] = ()
) -> tuple[TermView, ...]:
    """Return the terms of a book as people read them, oldest first.

    Args:
        state: With all terms and accounts of the book.
        book: Its name.
        forgotten: Accounts that are known to have been charged, whatever they say.
    """
    terms, found = state.terms(book), []
    overdrawn = {
        split(row.id)[1]
        for row in state.accounts(book)
        if row.overdrawn and split(row.id)[2] not in ("flow", "odometer", "others")
    }
    lost = {split(name)[1] for name in forgotten if name.startswith(f"{book}#")}
    for term in terms:
        pinned = term.facts["pinned"]
        found.append(
            TermView(
                number=term.number,
                unit=pinned["unit"],
                relation=pinned["relation"],
                opened=term.facts["opened"],
                divided="whole" in pinned,
                budget=pinned["budget"],
                charged=is_charged(state, term) or term.number in lost,
                lifetime=pinned.get("lifetime"),
                reason=term.facts["reason"],
                opened_at=term.facts.get("at", ""),
                opened_by=term.facts.get("by", ""),
                frozen=state.book(book).frozen if term is terms[-1] else None,
                overdrawn=term.number in overdrawn,
            )
        )
    return tuple(found)


def propose(state: State, policy: Policy, forgotten: Sequence[str] = ()) -> Proposal:
    """Say what applying a policy would do."""
    term = state.newest(policy.dataset)
    terms = term_views(state, policy.dataset, forgotten)
    changes: tuple[Any, ...] = ()
    action, pins, why = "open", None, ""
    if term is not None and agrees(term, policy):
        action = "nothing"
    elif term is not None:
        flows = {*state.book(term.book).flows}
        changes = judge(term.facts["declared"], policy.declared(), charged_flows=flows)
        action = "new term" if terms[-1].charged else "replace"
        if action == "new term" and overall(changes) in ("tighter", "neutral"):
            try:
                pins = tightened_pins(term.facts["pinned"], policy)
                _check_reserved(state, term, pins)
                action = "tighten"
            except InvalidCost as error:
                pins, why = None, error.message
    obstacle = ""
    try:
        _check_sum(policy, action, terms, raised=False)
    except PolicyNotApplied as error:
        obstacle = error.message
    return Proposal(
        dataset=policy.dataset,
        term=term,
        changes=changes,
        action=action,
        why=why,
        pins=pins,
        terms=terms,
        obstacle=obstacle,
    )


def _check_reserved(state: State, term: Term, pins: Mapping[str, Any]) -> None:
    """Refuse reserved shares that accounts of a charged term already exceed.

    Raises:
        InvalidCost: If an account is above its new threshold: a share that stays
            reserved would not be free any more.
    """
    reserved = reserved_flows(pins)
    shares = [("flow", flow) for flow in reserved] if len(reserved) > 1 else []
    for kind, name in [("others", ""), *shares] if reserved else []:
        gate = announced_gate(pins, kind, name)
        place = f"{kind}/{name}" if name else kind
        row = state.account(f"{term.book}#{term.number}/{place}")
        if gate is None or row is None or gate.admits(_used(row)):
            continue
        whose = f"flow {name!r}" if name else "the flows without a reserved share"
        msg = f"{whose} used more in this term than the file leaves to them."
        raise InvalidCost(msg, name="reserved", value=name)


def _used(row: Account) -> Tally:
    return Tally(row.settled) + Tally(row.held)


def _check_sum(
    policy: Policy, action: str, terms: Sequence[TermView], *, raised: bool
) -> None:
    """Refuse what would bring all terms above the lifetime, or raise it unasked."""
    if not any(view.charged for view in terms) or action == "nothing":
        return
    if action != "tighten":
        check_lifetime(policy, Budgets.of(terms, policy.promised), opens=True)
        check_raise(policy, terms, allowed=raised)
    elif policy.lifetime is not None:
        check_lifetime(policy, Budgets.of(terms), opens=False)


def _tighten(pen: Decision, command: Apply, found: Proposal) -> list[Gate]:
    """Lower the gates of a term; return those accounts whose gate is lower now."""
    before, pins, policy = found.term, found.pins, command.policy
    if before is None or pins is None:
        msg = f"nothing of dataset {policy.dataset!r} can be tightened"
        raise ValueError(msg)
    _check_sum(policy, "tighten", found.terms, raised=False)
    was, copied = pen.state.copy(), copy_of(policy, pins)
    old = before.facts["gates"]
    # A flow that may not use the dataset any more keeps its gates, under which what it
    # charged is settled; no step asks them.
    new = {**old, **copied["gates"]}
    term = {**before.facts, **copied, "gates": new}
    body = {
        "reason": command.reason or "a tighter policy was applied",
        "policy": term["policy_hash"],
        "changes": [change.line for change in found.changes],
        "before": {
            place: old.get(place) for place in new if new[place] != old.get(place)
        },
        "book": policy.dataset,
        "term": term,
        "claims": source_claim(policy),
    }
    pen.write("tighten", {}, body)
    return [
        gate
        for old, gate in _gates_of_term(was, pen.state, before)
        if (old.rule, old.halt) != (gate.rule, gate.halt)
    ]


def _gates_of_term(was: State, now: State, before: Term) -> list[tuple[Gate, Gate]]:
    """Return each account of a term under the gate before and the one after."""
    base, found = f"{before.book}#{before.number}", []
    for name in [each.id for each in was.accounts(before.book)]:
        if not f"{name}/".startswith(f"{base}/"):
            continue
        old, new = gate_at(was, name), gate_at(now, name)
        if old is None or new is None:
            continue
        # A reserved share that shrinks leaves more to `others`.
        if old.kind != "others" and not is_tighter(
            (old.rule, old.halt), (new.rule, new.halt)
        ):
            msg = (
                f"the policy would loosen account {old.id!r} in place, which is never "
                "done. Undo the edit, or open a new term."
            )
            raise LedgerCorrupt(msg)
        found.append((old, new))
    return found


def _open(pen: Decision, command: Apply, found: Proposal) -> Applied:
    policy = command.policy
    uncharged = not found.terms or not found.terms[-1].charged
    if uncharged and found.action == "nothing":
        return _applied(pen.state, found)
    claims = _released_sources(pen.state, policy)
    if not uncharged:
        _check_asked_for(found, command)
    if pen.state.book(policy.dataset).frozen is not None:
        msg = (
            f"dataset {policy.dataset!r} is frozen, and a new term would not be. Run "
            f"`dpflow unfreeze {policy.dataset}` first."
        )
        raise PolicyNotApplied(msg, dataset=policy.dataset)
    _check_sum(policy, "new term", found.terms, raised=command.raise_lifetime)
    told = {
        "changes": [change.line for change in found.changes],
        "total": Budgets.of(found.terms, policy.promised).total(),
        "lifetime": policy.declared().get("lifetime"),
    }
    reason = command.reason or "the policy was applied"
    opened(pen, policy, reason=reason, facts=told, claims=claims)
    return _applied(pen.state, found, new=True)


def _released_sources(state: State, policy: Policy) -> dict[str, str | None]:
    """Return the sources that a book lets go: no term on them was ever charged."""
    found: dict[str, str | None] = {}
    spent = {policy.source}
    for term in state.terms(policy.dataset):
        name = term.facts["pinned"].get("source")
        if is_charged(state, term):
            spent.add(name)
        elif name is not None and policy.dataset in state.claimed(name):
            found[name] = None
    return {name: None for name in found if name not in spent}


def _check_asked_for(found: Proposal, command: Apply) -> None:
    """Refuse to open a further term that nobody asked for, or without a reason."""
    how = f"`dpflow policy apply {found.dataset} --new-term --reason TEXT`"
    if not command.new_term:
        lines = [change.line for change in found.changes]
        told = "; ".join(f"{c.line} ({c.verdict})" for c in found.changes)
        rest = (
            f". A new term, with {how}, would be refused as well: {found.obstacle}"
            if found.obstacle
            else f", or open a new term with {how}; the terms so far stay charged "
            "in full."
        )
        why = f"{found.why} " if found.why else ""
        msg = (
            f"the policy of dataset {found.dataset!r} cannot be applied in place: "
            f"{told}. {why}Undo what is not tighter{rest}"
        )
        raise PolicyChanged(msg, dataset=found.dataset, differences=lines)
    if not command.reason.strip():
        msg = f"a new term needs a reason that its journal keeps: {how}"
        raise PolicyNotApplied(msg, dataset=found.dataset)


def _applied(
    state: State, found: Proposal, gates: Sequence[Gate] = (), *, new: bool = False
) -> Applied:
    term, action = state.newest(found.dataset), found.action
    if new and action in ("nothing", "tighten"):
        action = "new term"
    zero = [gate for gate in gates if not gate.admits(gate.rule.zero())]
    return Applied(
        dataset=found.dataset,
        action=action,
        term=0 if term is None else term.number,
        changes=found.changes,
        accounts=tuple(gate.id for gate in gates),
        closed=tuple(gate.id for gate in zero),
        terms=term_views(state, found.dataset),
    )
