"""Applying a policy's file: three ways lead from the ledger's copy to what it says.

Nothing was charged under the copy: it is replaced. All changes are tighter: the
accounts keep their tallies and get lower limits. Anything else needs a new term with
tallies of its own; terms add up by basic composition, each with the budget that it was
opened with, to at most the lifetime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from dpflow.exceptions import InvalidCost, PolicyChanged, PolicyNotApplied
from dpflow.ledger.decision.gates import (
    announced_gate,
    is_admitted,
    is_tighter,
    rule_and_halt,
)
from dpflow.ledger.decision.lifetime import lifetime_error, term_views
from dpflow.ledger.decision.terms import (
    agrees,
    check_currencies,
    is_behind,
    opened,
    opened_as,
    pin,
    pinned,
)
from dpflow.ledger.decision.windows import continuation_problem, used_of, window_total
from dpflow.ledger.entry import JournalError
from dpflow.ledger.model import Command, Decision
from dpflow.ledger.records import TermView
from dpflow.ledger.rows import Term, roots_of, term_of
from dpflow.ledger.state import State
from dpflow.policy import Policy
from dpflow.policy.changes import Change, Verdict, judge, overall, tightened_pins
from dpflow.policy.reserved import reserved_flows


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What applying a policy would do, or did.

    Attributes:
        action: "nothing", "open", "replace", "tighten", or "new term", which `apply`
            opens only if the command says so.
        term: Number of the term that governs; 0 if nothing was applied yet.
        changes: Each field that differs, judged.
        terms: The terms so far, or with the one that was opened.
        why: Why a policy that is tighter nevertheless needs a new term.
        obstacle: Reason of a freeze or of the lifetime to refuse it; empty if none.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply(Command):
    """Make a policy the ledger's own copy, which governs from then on.

    Attributes:
        reason: Why; a new term needs one.
        new_term: Open a term with tallies of its own.
        raise_lifetime: Raise the lifetime; its promise ends then.
        forgotten: Terms that the witness knows to have been charged, as in `Repair`.
    """

    policy: Policy
    reason: str = ""
    new_term: bool = False
    raise_lifetime: bool = False
    forgotten: frozenset[tuple[str, str]] = frozenset()

    def decide(self, state: State) -> Decision:
        """Make a policy the ledger's own copy, which governs from then on.

        Raises:
            PolicyChanged: If only a new term can hold it, and the command opens none.
            PolicyNotApplied: If the lifetime or a freeze forbids it.
            ConfigurationError: If another dataset has its source, or lost charges of
                this term are in another currency.
        """
        pen, book = Decision(state, self), self.policy.dataset
        lost, closed = roots_of(whole for whole, _ in sorted(self.forgotten)), []
        proposal = propose(state, self.policy, lost)
        action, terms = proposal.action, proposal.terms
        newest = state.newest(book)
        behind = newest is not None and is_behind(state, newest)
        if self.new_term and (behind or (terms and terms[-1].charged)):
            action = "new term"
        if action == "new term":
            self._check_wanted(proposal)
        raises = self.raise_lifetime
        error = _obstacle(state, self.policy, terms, action, lost, raises=raises)
        if error is not None:
            raise error
        changes = [change.line for change in proposal.changes]
        if action == "tighten":
            closed = _tighten(pen, self, changes)
        elif action != "nothing":
            reason = self.reason or "the policy was applied"
            body: dict[str, Any] = {"changes": changes}
            if raises:
                body["raises"] = True
            if lost:
                body["forgotten"] = lost
            opened(pen, self.policy, reason=reason, **body)
            check_currencies(pen.state, self.forgotten)
        applied = replace(
            proposal,
            action=action,
            term=pen.state.book(book).terms,
            terms=term_views(pen.state, book),
            closed=tuple(closed),
        )
        return pen.answered(applied)

    def _check_wanted(self, proposal: Proposal) -> None:
        """Refuse a further term that the command does not open, or without a reason."""
        how = f"`dpflow policy apply {proposal.dataset} --new-term --reason TEXT`"
        if self.new_term and not self.reason.strip():
            msg = f"a new term needs a reason that its journal keeps: {how}"
            raise PolicyNotApplied(msg, dataset=proposal.dataset)
        if not self.new_term:
            judged = "; ".join(f"{c.line} ({c.verdict})" for c in proposal.changes)
            rest = f", or open a new term with {how}; the terms so far stay charged."
            if proposal.obstacle:
                rest = f". A new term would be refused as well: {proposal.obstacle}"
            msg = (
                f"the policy of dataset {proposal.dataset!r} cannot be applied in "
                f"place: {judged}. {proposal.why}{' ' if proposal.why else ''}Undo "
                f"each edit that is not tighter{rest}"
            )
            lines = [change.line for change in proposal.changes]
            raise PolicyChanged(msg, dataset=proposal.dataset, differences=lines)


def propose(state: State, policy: Policy, forgotten: Sequence[str] = ()) -> Proposal:
    """Say what applying a policy would do."""
    term, book = state.newest(policy.dataset), state.book(policy.dataset)
    terms = term_views(state, policy.dataset, forgotten)
    changes: tuple[Change, ...] = ()
    action, why = "open", ""
    if term is not None:
        same = agrees(term, policy)
        action = "new term" if terms[-1].charged else "replace"
        copy = policy.declared() if same else term.facts["declared"]
        copy = {**copy, "about": term.facts["about"]}
        changes = judge(copy, policy.described(), charged_flows={*book.flows})
        if same:
            action = "tighten" if changes else "nothing"
        elif action == "new term" and overall(changes) in ("tighter", "neutral"):
            try:
                pins = tightened_pins(term.facts["pinned"], policy)
                _check_reserved(state, term, pins)
                action = "tighten"
            except InvalidCost as error:
                why = error.message
    obstacle = _obstacle(state, policy, terms, action, forgotten)
    return Proposal(
        dataset=policy.dataset,
        action=action,
        term=book.terms,
        changes=changes,
        terms=terms,
        why=why,
        obstacle="" if obstacle is None else obstacle.message,
    )


def _obstacle(
    state: State,
    policy: Policy,
    terms: Sequence[TermView],
    action: str,
    forgotten: Sequence[str],
    *,
    raises: bool = False,
) -> PolicyNotApplied | None:
    """Return the error of a freeze or of the lifetime, if one forbids an action."""
    if action == "nothing":
        return None
    opens, dataset = action != "tighten", policy.dataset
    if opens and state.book(dataset).frozen is not None:
        msg = (
            f"dataset {dataset!r} is frozen, and opens no term. Run `dpflow unfreeze "
            f"{dataset}` first."
        )
        return PolicyNotApplied(msg, dataset=dataset)
    pins = pinned(policy)
    if opens and (why := continuation_problem(state, dataset, pins, forgotten)):
        msg = f"dataset {dataset!r} opens no such term: {why}"
        return PolicyNotApplied(msg, dataset=dataset)
    new = opened_as(policy, len(terms) + 1)
    return lifetime_error(dataset, terms, new, opens=opens, raises=raises)


def _check_reserved(state: State, term: Term, pins: Mapping[str, Any]) -> None:
    """Refuse reserved shares that accounts of a charged term already exceed.

    Raises:
        InvalidCost: If an account is above its new threshold: a share that stays
            reserved would not be free any more.
    """
    shares = [("flow", flow) for flow in reserved_flows(pins)]
    for kind, name in [("others", ""), *shares]:
        gate = announced_gate(pins, kind, name)
        row = state.account("/".join(filter(None, (term.whole, kind, name))))
        if gate and row and not gate.admits(used_of(row)):
            whose = f"flow {name!r}" if name else "the flows without a reserved share"
            msg = f"{whose} used more in this term than the file leaves to them."
            raise InvalidCost(msg, name="reserved", value=name)


def _tighten(pen: Decision, command: Apply, changes: list[str]) -> list[str]:
    """Lower the gates of a term; return the accounts that admit nothing more.

    Raises:
        JournalError: If a gate would be loosened: the file was judged wrongly.
    """
    policy, was = command.policy, pen.state.copy()
    before = was.newest(policy.dataset)
    assert before is not None
    pins, reason = before.facts["pinned"], "free texts were changed"
    if not agrees(before, policy):
        pins, reason = tightened_pins(pins, policy), "a tighter policy was applied"
    body = {"reason": command.reason or reason}
    facts = {**before.facts, "pinned": pins}
    entry = pin(pen, "tighten", policy, facts, {**body, "changes": changes})
    after = before._replace(facts=entry.body["term"])
    for place, gate in before.facts["gates"].items():
        tighter = map(rule_and_halt, (gate, after.facts["gates"][place]))
        # The rest may grow when a reserved share ends.
        if place != "others" and not is_tighter(*tighter):
            what = f"gate {place!r} would be loosened in place"
            raise JournalError(what)
    return [
        row.id
        for row in was.accounts(before.book)
        if term_of(row.id) in (0, before.number)
        and (used := window_total(was, row.id) or used_of(row))
        and not is_admitted(after, row.id, used.amounts)
    ]
