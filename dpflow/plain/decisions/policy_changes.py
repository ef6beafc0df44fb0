"""Applying a policy's file: three ways lead from the ledger's copy to its content.

Nothing was charged under the copy: it is replaced. All changes are tighter: the
accounts keep their tallies and get lower limits. Anything else needs a new term with
tallies of its own; terms add up by basic composition, each with the budget that it was
opened with, to at most the lifetime.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dpflow.exceptions import LedgerCorrupt, PolicyChanged, PolicyNotApplied
from dpflow.ledger.decision import policy_changes as judged
from dpflow.ledger.decision.gates import is_admitted, is_tighter, rule_and_halt
from dpflow.ledger.decision.lifetime import term_views
from dpflow.ledger.decision.policy_changes import Proposal
from dpflow.ledger.decision.terms import agrees, is_behind
from dpflow.ledger.decision.windows import used_of, window_total
from dpflow.ledger.rows import term_of
from dpflow.plain.decisions.decision import Author, Decision
from dpflow.plain.decisions.freezes import name_entries, name_lost_term
from dpflow.plain.decisions.terms import (
    TermChange,
    claim_source,
    open_term,
    pin_term,
    write_term,
)
from dpflow.plain.tables.loaded import Rows
from dpflow.plain.tables.rows import Term
from dpflow.policy import Policy
from dpflow.policy.changes import tightened_pins


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """Make a policy the ledger's own copy, which governs from then on.

    Attributes:
        policy: The file.
        command: Id of the command.
        reason: Why; a new term needs one.
        new_term: Open a term with tallies of its own.
        raise_lifetime: Raise the lifetime; its promise ends then.
    """

    policy: Policy
    command: str
    reason: str = ""
    new_term: bool = False
    raise_lifetime: bool = False


def propose_application(rows: Rows, policy: Policy) -> Proposal:
    """Return what applying a policy would do."""
    state: Any = rows
    return judged.propose(state, policy, rows.forgotten)


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
    if rows.sent:
        stated = json.loads(rows.sent[0].body)
        answer = replace(
            proposal, action=stated["action"], closed=tuple(stated["closed"])
        )
        return Decision(answer=answer, earlier=name_entries(rows))
    lost = name_lost_term(rows, policy.dataset)
    if lost:
        check_wanted_after_loss(application, lost)
        # A dataset that lost a term is frozen until another one is open.
        thawed = rows.book(policy.dataset)._replace(frozen=None)
        state: Any = replace(rows, datasets={**rows.datasets, thawed.name: thawed})
        action = "new term"
    else:
        action, state = find_action(rows, application, proposal), rows
    error = judged._obstacle(  # noqa: SLF001 (one module at the switch)
        state,
        policy,
        proposal.terms,
        action,
        rows.forgotten,
        raises=application.raise_lifetime,
    )
    if error is not None:
        raise error
    changes = [change.line for change in proposal.changes]
    decision, closed = Decision(), tuple[str, ...]()
    if action == "tighten":
        change = tighten_term(rows, application, changes)
        closed = tuple(find_closed(rows, change.term))
        change.body["closed"] = [*closed]
        write_term(decision, change, author, application.command)
        rows = rows.with_term(change.after, change.term)
    elif action != "nothing":
        change = open_applied(rows, application, author, changes, action)
        write_term(decision, change, author, application.command)
        rows = rows.with_term(change.after, change.term)
    state = rows
    decision.answer = replace(
        proposal,
        action=action,
        term=rows.book(policy.dataset).term,
        terms=term_views(state, policy.dataset),
        closed=closed,
    )
    return decision


def check_wanted_after_loss(application: Application, lost: int) -> None:
    """Refuse to go on behind a lost term without the words for it.

    Raises:
        PolicyNotApplied: If the command does not open a term and raise the lifetime.
    """
    dataset, reason = application.policy.dataset, application.reason.strip()
    if not (application.new_term and application.raise_lifetime and reason):
        msg = (
            f"the ledger lost term {lost} of dataset {dataset!r}, so that its terms "
            f"cannot be added up. Run `dpflow policy apply {dataset} --new-term "
            "--raise-lifetime --reason TEXT`: the promise for all terms ends with it."
        )
        raise PolicyNotApplied(msg, dataset=dataset)


def find_action(rows: Rows, application: Application, proposal: Proposal) -> str:
    """Return how a policy is applied.

    Raises:
        PolicyChanged: If only a new term can hold it, and the command opens none.
        PolicyNotApplied: If a new term has no reason.
    """
    state: Any = rows
    newest, terms = rows.newest(proposal.dataset), proposal.terms
    behind = newest is not None and is_behind(state, newest)
    action = proposal.action
    if application.new_term and (behind or (terms and terms[-1].charged)):
        action = "new term"
    if action != "new term":
        return action
    how = f"`dpflow policy apply {proposal.dataset} --new-term --reason TEXT`"
    if application.new_term and not application.reason.strip():
        msg = f"a new term needs a reason that its journal keeps: {how}"
        raise PolicyNotApplied(msg, dataset=proposal.dataset)
    if not application.new_term:
        judgements = "; ".join(f"{c.line} ({c.verdict})" for c in proposal.changes)
        rest = f", or open a new term with {how}; the terms so far stay charged."
        if proposal.obstacle:
            rest = f". A new term would be refused as well: {proposal.obstacle}"
        msg = (
            f"the policy of dataset {proposal.dataset!r} cannot be applied in "
            f"place: {judgements}. {proposal.why}{' ' if proposal.why else ''}Undo "
            f"each edit that is not tighter{rest}"
        )
        lines = [change.line for change in proposal.changes]
        raise PolicyChanged(msg, dataset=proposal.dataset, differences=lines)
    return action


def open_applied(
    rows: Rows,
    application: Application,
    author: Author,
    changes: Sequence[str],
    action: str,
) -> TermChange:
    """Return the term that a person opens."""
    body: dict[str, Any] = {"changes": [*changes], "action": action, "closed": []}
    if application.raise_lifetime:
        body["raises"] = True
    if rows.forgotten:
        body["forgotten"] = [*rows.forgotten]
    reason = application.reason or "the policy was applied"
    return open_term(rows, application.policy, author, reason, **body)


def tighten_term(
    rows: Rows, application: Application, changes: Sequence[str]
) -> TermChange:
    """Return the newest term with lower gates.

    Raises:
        LedgerCorrupt: If a gate would be loosened: the file was judged wrongly.
    """
    policy = application.policy
    before = rows.newest(policy.dataset)
    assert before is not None
    pins, reason = before.facts["pinned"], "free texts were changed"
    if not agrees(before, policy):
        pins, reason = tightened_pins(pins, policy), "a tighter policy was applied"
    facts = {**before.facts, "pinned": pins}
    term = pin_term(rows, policy, facts, revision=before.entry + 1)
    check_tighter(before, term)
    body = {
        "reason": application.reason or reason,
        "changes": [*changes],
        "action": "tighten",
        "policy": term.facts["policy_hash"],
    }
    dataset = rows.book(policy.dataset)
    return TermChange("tighten", dataset, term, body, claim_source(rows, policy))


def check_tighter(before: Term, after: Term) -> None:
    """Refuse a term with a gate that admits more than before."""
    for place, gate in after.facts["gates"].items():
        old = before.facts["gates"].get(place)
        # The rest may grow when a reserved share ends.
        if place not in before.facts["gates"] or place == "others":
            continue
        if not is_tighter(rule_and_halt(old), rule_and_halt(gate)):
            msg = f"gate {place!r} of term {after.number} was loosened in place"
            raise LedgerCorrupt(msg)


def find_closed(rows: Rows, after: Term) -> list[str]:
    """Return the accounts that admit nothing more after a term was tightened."""
    state: Any = rows
    closed = []
    for row in rows.accounts(after.book):
        if term_of(row.id) not in (0, after.number):
            continue
        account: Any = row
        used = window_total(state, row.id) or used_of(account)
        if not is_admitted(after, row.id, used.amounts):
            closed.append(row.id)
    return closed
