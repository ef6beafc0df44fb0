"""Applying a policy's file: three ways lead from the ledger's copy to what it says.

Nothing was charged under the copy: it is replaced. All changes are tighter: the
accounts keep their tallies and get lower limits. Anything else needs a new term with
tallies of its own; terms add up by basic composition, each with the budget that it was
opened with, to at most the lifetime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import add
from typing import Any, Literal

from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import (
    InvalidCost,
    LedgerCorrupt,
    PolicyChanged,
    PolicyNotApplied,
)
from dpflow.ledger.decision.checks import check, is_admitted
from dpflow.ledger.decision.gates import announced_gate
from dpflow.ledger.decision.lifetime import check_lifetime
from dpflow.ledger.decision.terms import agrees, check_alone, is_charged, opened, pin
from dpflow.ledger.entry import JournalError
from dpflow.ledger.model import Command, Decision
from dpflow.ledger.records import TermView
from dpflow.ledger.rows import Term, is_within, split
from dpflow.ledger.state import State
from dpflow.policy import Policy
from dpflow.policy.changes import Change, Verdict, judge, overall, tightened_pins
from dpflow.policy.reserved import reserved_flows


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What applying a policy would do, or did.

    Attributes:
        action: What `apply` does; "new term" only if the command says so.
        term: Number of the term that governs; 0 if nothing was applied yet.
        changes: Each field that differs, judged.
        terms: The terms so far, or with the one that was opened.
        why: Why a policy that is tighter nevertheless needs a new term.
        obstacle: What the lifetime has against it; empty if nothing.
        closed: Accounts that admit nothing more, for their usage is above the new
            limit.
    """

    dataset: str
    action: str
    term: int
    changes: tuple[Change, ...]
    terms: tuple[TermView, ...]
    why: str = ""
    obstacle: str = ""
    closed: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict | Literal["same"]:
        """What all changes together do to the guarantee."""
        return overall(self.changes)

    @property
    def charged(self) -> bool:
        """Whether the newest term was charged."""
        return bool(self.terms) and self.terms[-1].charged


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply(Command):
    """Make a policy the ledger's own copy, which governs from then on.

    Attributes:
        reason: Why; a new term needs one.
        new_term: Open a term with tallies of its own.
        raise_lifetime: Raise the lifetime; the promise it made is void then.
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
            PolicyChanged: If only a new term can hold it, and the command opens none.
            PolicyNotApplied: If the lifetime or a freeze forbids it.
            ConfigurationError: If another dataset has its source.
        """
        pen, book = Decision(state, self), self.policy.dataset
        proposal, closed = propose(state, self.policy, self.forgotten), []
        action = proposal.action
        if self.new_term and proposal.charged:
            action = "new term"
        if action != "nothing":
            check_alone(state, self.policy)
        if action == "tighten":
            closed = _tighten(pen, self, proposal)
        elif action != "nothing":
            _open(pen, self, proposal)
        applied = replace(
            proposal,
            action=action,
            term=pen.state.book(book).terms,
            terms=term_views(pen.state, book),
            closed=tuple(closed),
        )
        return pen.answered(applied)


def term_views(
    state: State, book: str, forgotten: Sequence[str] = ()
) -> tuple[TermView, ...]:
    """Return the terms of a book as people read them, oldest first.

    Args:
        state: With all terms and accounts of the book.
        book: Its name.
        forgotten: Accounts that the witness knows to have been charged.
    """
    terms, frozen = state.terms(book), state.book(book).frozen
    lost = {split(name)[1] for name in forgotten if split(name)[0] == book}
    overdrawn = {
        split(row.id)[1]
        for row in state.accounts(book)
        if row.overdrawn and split(row.id)[2] not in ("flow", "odometer", "others")
    }
    return tuple(
        TermView(
            number=term.number,
            unit=pinned["unit"],
            relation=pinned["relation"],
            opened=term.facts["opened"],
            divided="whole" in pinned,
            budget=pinned["budget"],
            charged=is_charged(state, term) or term.number in lost,
            lifetime=pinned.get("lifetime"),
            frozen=frozen if term is terms[-1] else None,
            overdrawn=term.number in overdrawn,
        )
        for term in terms
        for pinned in [term.facts["pinned"]]
    )


def propose(state: State, policy: Policy, forgotten: Sequence[str] = ()) -> Proposal:
    """Say what applying a policy would do."""
    term, book = state.newest(policy.dataset), state.book(policy.dataset)
    terms = term_views(state, policy.dataset, forgotten)
    changes: tuple[Change, ...] = ()
    action, why, obstacle = "open", "", ""
    if term is not None and agrees(term, policy):
        action = "nothing"
    elif term is not None:
        action = "new term" if terms[-1].charged else "replace"
        declared = term.facts["declared"]
        changes = judge(declared, policy.declared(), charged_flows={*book.flows})
        if action == "new term" and overall(changes) in ("tighter", "neutral"):
            try:
                pins = tightened_pins(term.facts["pinned"], policy)
                _check_reserved(state, term, pins)
                action = "tighten"
            except InvalidCost as error:
                why = error.message
    if action != "nothing":
        try:
            check_lifetime(policy, terms, opens=action != "tighten")
        except PolicyNotApplied as error:
            obstacle = error.message
    return Proposal(
        dataset=policy.dataset,
        action=action,
        term=book.terms,
        changes=changes,
        terms=terms,
        why=why,
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
        row = state.account(f"{term.whole}/{place}")
        if gate and row and not gate.admits(Tally(row.settled) + Tally(row.held)):
            whose = f"flow {name!r}" if name else "the flows without a reserved share"
            msg = f"{whose} used more in this term than the file leaves to them."
            raise InvalidCost(msg, name="reserved", value=name)


def _tighten(pen: Decision, command: Apply, proposal: Proposal) -> list[str]:
    """Lower the gates of a term; return the accounts that admit nothing more.

    Raises:
        LedgerCorrupt: If a gate would be loosened: the file was judged wrongly.
    """
    policy, was = command.policy, pen.state.copy()
    before = was.newest(policy.dataset)
    assert before is not None
    check_lifetime(policy, proposal.terms, opens=False)
    pins = tightened_pins(before.facts["pinned"], policy)
    body = {
        "reason": command.reason or "a tighter policy was applied",
        "changes": [change.line for change in proposal.changes],
    }
    entry = pin(pen, "tighten", policy, {**before.facts, "pinned": pins}, body)
    try:
        check(was, entry)
    except JournalError as error:
        msg = (
            f"the policy of dataset {policy.dataset!r} cannot be applied in place, "
            f"which never loosens a gate: {error}. Undo the edit, or open a new term."
        )
        raise LedgerCorrupt(msg) from error
    after = before._replace(facts=entry.body["term"])
    return [
        row.id
        for row in was.accounts(before.book)
        if is_within(row.id, before.whole)
        and not is_admitted(after, row.id, tuple(map(add, row.settled, row.held)))
    ]


def _open(pen: Decision, command: Apply, proposal: Proposal) -> None:
    """Open the next term.

    Raises:
        PolicyChanged: If one was charged, and the command opens none.
        PolicyNotApplied: If the lifetime or a freeze forbids it.
    """
    policy, terms = command.policy, proposal.terms
    if proposal.charged:
        _check_wanted(proposal, command)
    if pen.state.book(policy.dataset).frozen is not None:
        msg = (
            f"dataset {policy.dataset!r} is frozen, and a new term would not be. Run "
            f"`dpflow unfreeze {policy.dataset}` first."
        )
        raise PolicyNotApplied(msg, dataset=policy.dataset)
    check_lifetime(policy, terms, opens=True, raises=command.raise_lifetime)
    opened(
        pen,
        policy,
        reason=command.reason or "the policy was applied",
        changes=[change.line for change in proposal.changes],
    )


def _check_wanted(proposal: Proposal, command: Apply) -> None:
    """Refuse to open a further term that the command does not want, or a silent one."""
    how = f"`dpflow policy apply {proposal.dataset} --new-term --reason TEXT`"
    if not command.new_term:
        lines = [change.line for change in proposal.changes]
        judged = "; ".join(f"{c.line} ({c.verdict})" for c in proposal.changes)
        rest = (
            f". A new term, with {how}, would be refused as well: {proposal.obstacle}"
            if proposal.obstacle
            else f", or open a new term with {how}; the terms so far stay charged "
            "in full."
        )
        why = f"{proposal.why} " if proposal.why else ""
        msg = (
            f"the policy of dataset {proposal.dataset!r} cannot be applied in place: "
            f"{judged}. {why}Undo what is not tighter{rest}"
        )
        raise PolicyChanged(msg, dataset=proposal.dataset, differences=lines)
    if not command.reason.strip():
        msg = f"a new term needs a reason that its journal keeps: {how}"
        raise PolicyNotApplied(msg, dataset=proposal.dataset)
