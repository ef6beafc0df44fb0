"""Applying a policy's file: four ways lead from the ledger's copy to its content.

Nothing was charged under the copy: it is replaced. All changes are tighter: the
accounts keep their tallies and get lower limits. All changes are about access: shares
and flows change, and every gate of the dataset stays. Anything else needs a new term
with tallies of its own; terms add up, each with the budget that it was opened with, to
at most the lifetime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from dpflow.exceptions import (
    InvalidCost,
    LedgerCorrupt,
    PolicyChanged,
    PolicyNotApplied,
)
from dpflow.ledger.account_ids import split
from dpflow.ledger.decisions.decision import Author, Decision
from dpflow.ledger.decisions.freezes import name_lost_term
from dpflow.ledger.decisions.gates import (
    is_admitted,
    is_tighter,
    preview_gate,
    rule_and_halt,
)
from dpflow.ledger.decisions.lifetimes import TermView, lifetime_error, term_views
from dpflow.ledger.decisions.pinned_rules import gate_in
from dpflow.ledger.decisions.reserve import without_empty
from dpflow.ledger.decisions.terms import (
    BY_ITSELF,
    TermChange,
    agrees,
    is_behind,
    open_term,
    pin_term,
    pins_of,
    view_policy,
    write_term,
)
from dpflow.ledger.decisions.windows import continuation_problem, use_of, window_total
from dpflow.ledger.tables.loaded import Rows
from dpflow.ledger.tables.rows import Term
from dpflow.policy import Policy
from dpflow.policy.changes import Change, Verdict, judge, overall, tighten_pins
from dpflow.policy.reserved import list_reserved

#: Actions that keep the term, by what all changes together do.
_IN_PLACE = {"tighter": "tighten", "neutral": "tighten", "access": "access"}


@dataclass(frozen=True, slots=True)
class Proposal:
    """What applying a policy would do, or did.

    Attributes:
        action: "nothing", "open", "replace", "tighten", "access", or "new term", which
            `apply` opens only if the command says so.
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


class Application(NamedTuple):
    """Make a policy the ledger's own copy, which governs from then on.

    Attributes:
        policy: The file.
        reason: Why; a new term needs one.
        new_term: Open a term with tallies of its own.
        raise_lifetime: Raise the lifetime; its promise ends then.
    """

    policy: Policy
    reason: str
    new_term: bool
    raise_lifetime: bool


def propose_application(rows: Rows, policy: Policy) -> Proposal:
    """Return what applying a policy would do."""
    term, book = rows.newest(policy.dataset), rows.book(policy.dataset)
    terms = term_views(rows, policy.dataset)
    changes: tuple[Change, ...] = ()
    action, why = "open", ""
    if term is not None:
        same = agrees(term, policy)
        action = "new term" if terms[-1].charged else "replace"
        copy = policy.to_declared() if same else term.fields["declared"]
        copy = {**copy, "about": term.fields["about"]}
        changes = judge(copy, policy.to_described(), charged_flows={*book.flows})
        verdicts = {change.verdict for change in changes} - {"neutral"}
        if same:
            action = "tighten" if changes else "nothing"
        elif action == "new term" and verdicts == {"access", "tighter"}:
            why = "Apply what is tighter and what is access one after the other."
        elif action == "new term" and overall(changes) in _IN_PLACE:
            try:
                pins = tighten_pins(term.fields["pinned"], policy)
                _check_reserved(rows, term, pins)
                action = _IN_PLACE[overall(changes)]
            except InvalidCost as exceeded:
                why = exceeded.message
    error = find_obstacle(rows, policy, terms, action)
    obstacle = "" if error is None else error.message
    return Proposal(policy.dataset, action, book.term, changes, terms, why, obstacle)


def find_obstacle(
    rows: Rows,
    policy: Policy,
    terms: Sequence[TermView],
    action: str,
    *,
    raises: bool = False,
) -> PolicyNotApplied | None:
    """Return the error of a freeze or of the lifetime, if one forbids an action."""
    if action == "nothing":
        return None
    opens, dataset, problem = action not in _IN_PLACE.values(), policy.dataset, ""
    # A dataset that lost a term is frozen until another one is open.
    is_thawed = raises and bool(name_lost_term(rows, dataset))
    if opens and rows.book(dataset).frozen is not None and not is_thawed:
        problem = (
            f"is frozen, and opens no term. Run `dpflow unfreeze {dataset}` first."
        )
    elif opens:
        why = continuation_problem(rows, dataset, pins_of(policy))
        problem = why and f"opens no such term: {why}"
    if problem:
        return PolicyNotApplied(f"dataset {dataset!r} {problem}", dataset=dataset)
    new = view_policy(policy, len(terms) + 1)
    return lifetime_error(dataset, terms, new, opens=opens, raises=raises)


def _check_reserved(rows: Rows, term: Term, pins: Mapping[str, Any]) -> None:
    """Refuse reserved shares that accounts of a charged term already exceed.

    Raises:
        InvalidCost: If an account is above its new threshold: a share that stays
            reserved would not be free any more.
    """
    shares = [("flow", flow) for flow in list_reserved(pins)]
    for kind, name in [("others", ""), *shares]:
        gate = preview_gate(pins, kind, name)
        row = rows.account("/".join(filter(None, (term.root, kind, name))))
        if gate and row and not gate.admits(use_of(row)):
            whose = f"flow {name!r}" if name else "the flows without a reserved share"
            msg = f"{whose} used more in this term than the file leaves to them."
            raise InvalidCost(msg, name="reserved", value=name)


def decide_application(
    rows: Rows, application: Application, author: Author
) -> Decision:
    """Make a policy the ledger's own copy, which governs from then on.

    Raises:
        PolicyChanged: If only a new term can hold it, and the command opens none.
        PolicyNotApplied: If the lifetime or a freeze forbids it.
        ConfigurationError: If another dataset has its source.
    """
    policy = application.policy
    proposal = propose_application(rows, policy)
    action = choose_action(rows, application, proposal)
    raises = application.raise_lifetime
    error = find_obstacle(rows, policy, proposal.terms, action, raises=raises)
    if error is not None:
        raise error
    decision, closed = Decision(author), tuple[str, ...]()
    if action != "nothing":
        body = {"changes": [change.line for change in proposal.changes]}
        if action in _IN_PLACE.values():
            change = change_term(rows, application, action)
            closed = find_closed(rows, change.term)
        else:
            body |= without_empty(raises=raises, forgotten=[*rows.forgotten])
            reason = application.reason or "the policy was applied"
            # A person's term is never taken for a step's.
            reason += " (applied)" * (reason in BY_ITSELF)
            change = open_term(rows, policy, author, reason)
        change.body.update(body, action=action, closed=closed)
        write_term(decision, change)
        rows = rows.with_term(change.after, change.term)
    term, terms = rows.book(policy.dataset).term, term_views(rows, policy.dataset)
    decision.answer = replace(
        proposal, action=action, term=term, terms=terms, closed=closed
    )
    return decision


def choose_action(rows: Rows, application: Application, proposal: Proposal) -> str:
    """Return how a policy is applied.

    Raises:
        PolicyChanged: If only a new term can hold it, and the command opens none.
        PolicyNotApplied: If a new term or a change of access has no reason; or if a
            term was lost, and the command does not raise the lifetime.
    """
    name, newest, problem = proposal.dataset, rows.newest(proposal.dataset), ""
    new_term, has_reason = application.new_term, bool(application.reason.strip())
    behind = newest is not None and is_behind(rows, newest)
    charged = bool(proposal.terms) and proposal.terms[-1].charged
    action = "new term" if new_term and (behind or charged) else proposal.action
    how = f"`dpflow policy apply {name} --new-term --reason TEXT`"
    lost = name_lost_term(rows, name)
    if lost:
        action = "new term"
        if not (new_term and application.raise_lifetime and has_reason):
            problem = (
                f"the ledger lost term {lost} of dataset {name!r}, so that its terms "
                f"cannot be added up. Run `dpflow policy apply {name} --new-term "
                "--raise-lifetime --reason TEXT`: the promise for all terms ends "
                "with it."
            )
    elif action == "access" and not has_reason:
        problem = (
            "a change of access needs a reason that its journal keeps: `dpflow policy "
            f"apply {name} --reason TEXT`"
        )
    elif action == "new term" and not new_term:
        raise _refuse_in_place(proposal, how)
    elif action == "new term" and not has_reason:
        problem = f"a new term needs a reason that its journal keeps: {how}"
    if problem:
        raise PolicyNotApplied(problem, dataset=name)
    return action


def _refuse_in_place(proposal: Proposal, how: str) -> PolicyChanged:
    """Return the error for a file that only a new term can hold."""
    judgements = "; ".join(
        f"{c.line} ({c.verdict}{f': {c.why}' if c.why else ''})"
        for c in proposal.changes
    )
    advice = f", or open a new term with {how}; the terms so far stay charged."
    if proposal.obstacle:
        advice = f". A new term would be refused as well: {proposal.obstacle}"
    why = f"{proposal.why} " if proposal.why else ""
    msg = (
        f"the policy of dataset {proposal.dataset!r} cannot be applied in place: "
        f"{judgements}. {why}Undo each edit that is not tighter{advice}"
    )
    lines = [change.line for change in proposal.changes]
    return PolicyChanged(msg, dataset=proposal.dataset, differences=lines)


def change_term(rows: Rows, application: Application, action: str) -> TermChange:
    """Return the newest term with lower gates, or with other shares.

    Raises:
        LedgerCorrupt: If a gate would be loosened: the file was judged wrongly.
    """
    policy = application.policy
    before = rows.newest(policy.dataset)
    assert before is not None
    pins, reason = before.fields["pinned"], "free texts were changed"
    if not agrees(before, policy):
        pins, reason = tighten_pins(pins, policy), "a tighter policy was applied"
    fields = {**before.fields, "pinned": pins}
    change = pin_term(rows, policy, action, fields, application.reason or reason)
    check_tighter(before, change.term, action)
    return change


def check_tighter(before: Term, after: Term, action: str) -> None:
    """Refuse a term with a gate that admits more than before.

    A change of access moves gates of shares only, and every other gate stays.
    """
    gates = before.fields["gates"]
    for path, gate in after.fields["gates"].items():
        is_share, is_access = path.partition("/")[0] == "flow", action == "access"
        # The rest may grow when a reserved share ends.
        if path not in gates or path == "others" or (is_share and is_access):
            continue
        moved = is_access and "/" not in path and gates[path] != gate
        if moved or not is_tighter(rule_and_halt(gates[path]), rule_and_halt(gate)):
            msg = f"gate {path!r} of term {after.number} was loosened in place"
            raise LedgerCorrupt(msg)


def find_closed(rows: Rows, after: Term) -> tuple[str, ...]:
    """Return the accounts that admit nothing more after a term was changed."""
    closed = []
    for row in rows.accounts(after.book):
        _, number, kind, name, _ = split(row.id)
        gate = gate_in(after.fields["gates"], kind, name)
        if number in (0, after.number) and gate is not None:
            used = window_total(rows, row.id) or use_of(row)
            if not is_admitted(after, row.id, used.amounts):
                closed.append(row.id)
    return tuple(closed)
