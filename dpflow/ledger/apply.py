"""Applying a policy: opening terms, tightening in place, and what forbids either.

Three ways lead from the ledger's copy to an edited file. Nothing was charged under
the copy: it is replaced. All changes are tighter: the accounts keep their tallies and
get lower limits. Anything else needs a new term with tallies of its own; terms add up
by basic composition, each with the budget that it was opened with, to at most the
lifetime.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, Literal

from dpflow.accounting.theorem import Filter, Odometer, Rule
from dpflow.accounting.tightening import admits_less
from dpflow.exceptions import (
    InvalidCost,
    LedgerCorrupt,
    PolicyChanged,
    PolicyNotApplied,
)
from dpflow.ledger.account import Account, read_account, rule_from_text
from dpflow.ledger.approval import Approval, check_approval
from dpflow.ledger.database import Session
from dpflow.ledger.decision.lifetime import Budgets, check_lifetime, check_raise
from dpflow.ledger.grants import Grant, check_covers
from dpflow.ledger.kernel import Ledger
from dpflow.ledger.lifetime import term_views
from dpflow.ledger.marks import change_gate
from dpflow.ledger.records import TermView, canonical, digest
from dpflow.ledger.sources import check_alone, grant_of
from dpflow.ledger.terms import (
    Term,
    accounts_of_term,
    frozen_by,
    gate_of,
    newest_term,
    open_term,
    taken_off,
)
from dpflow.policy import Policy
from dpflow.policy_changes import (
    Change,
    Verdict,
    declared_before,
    incomparable,
    judge,
    overall,
    tightened_pins,
)

Action = Literal["nothing", "open", "replace", "tighten", "new term"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What applying a policy would do.

    Attributes:
        term: The term that governs now; None if nothing was applied yet.
        changes: Each field that differs, judged.
        action: What `apply` does; "new term" it does only if asked for one.
        why: Why a policy that is tighter nevertheless needs a new term.
        pins: For "tighten", the copy that will govern.
        terms: The dataset's terms so far.
        obstacle: What the lifetime has against it; empty if nothing.
    """

    dataset: str
    term: Term | None
    changes: tuple[Change, ...]
    verdict: Verdict | Literal["same"]
    action: Action
    why: str
    pins: Mapping[str, Any] | None
    terms: tuple[TermView, ...]
    obstacle: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What was applied.

    Attributes:
        term: Number of the term that governs now.
        accounts: Accounts whose gate was tightened.
        closed: Those of them that admit nothing more, for their usage was above.
        terms: The dataset's terms, this one included.
    """

    dataset: str
    action: Action
    term: int
    changes: tuple[Change, ...]
    accounts: tuple[str, ...]
    closed: tuple[str, ...]
    terms: tuple[TermView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What whoever applies a policy asks for, besides the file.

    Attributes:
        because: Why; a new term has to say.
        new_term: Open a term with tallies of its own.
        raise_lifetime: Raise or drop the lifetime; the promise it made is void then.
        grant: A part of another ledger's budget, under which the term is opened.
    """

    because: str = ""
    new_term: bool = False
    raise_lifetime: bool = False
    grant: Grant | None = None


def propose(ledger: Ledger, policy: Policy) -> Proposal:
    """Say what applying a policy would do; nothing is written."""
    with ledger.database.read() as session:
        return _propose(session, policy)


def apply_policy(
    ledger: Ledger, policy: Policy, wish: Wish, approval: Approval
) -> Applied:
    """Make a policy the ledger's own copy, which governs from then on.

    Raises:
        PolicyChanged: If only a new term can hold the policy, and none was asked for.
        PolicyNotApplied: If the lifetime, a freeze or a missing approval forbids it.
        ConfigurationError: If a grant is not for this ledger or does not cover the
            policy, or another dataset has its source.
    """
    if wish.grant is not None:
        check_covers(wish.grant, policy, ledger.id, ledger.environment)
        ledger.sources.check_given(wish.grant)
    with ledger.writing([policy.dataset]) as session:
        found = _propose(session, policy)
        if not all(view.charged for view in found.terms):
            found = _propose(session, policy, ledger.watch.forgotten(session))
        if found.action == "nothing" and not (wish.new_term or wish.grant):
            return _applied(session, found, ())
        check_approval(policy, found.term, approval)
        facts = {**ledger.conditions.facts, **approval.facts()}
        check_alone(session, policy, wish.grant)
        if found.action == "tighten" and not wish.new_term:
            applied, written = _tighten(session, policy, found, wish, facts)
        else:
            applied, written = _open(session, policy, found, wish, facts)
    ledger.watch.tell_of_gates(written)
    return applied


def _propose(
    session: Session, policy: Policy, forgotten: Collection[str] = ()
) -> Proposal:
    term = newest_term(session, policy.dataset)
    terms = tuple(term_views(session, policy.dataset, forgotten))
    changes: tuple[Change, ...] = ()
    action: Action = "open"
    pins, why = None, ""
    if term is not None and term.agrees(policy):
        action = "nothing"
    elif term is not None:
        changes = _changes(session, term, policy)
        action = "new term" if terms[-1].charged else "replace"
        if action == "new term" and overall(changes) in ("tighter", "neutral"):
            try:
                pins = tightened_pins(term.pinned, policy)
                action = "tighten"
            except InvalidCost as error:
                why = error.message
    return Proposal(
        dataset=policy.dataset,
        term=term,
        changes=changes,
        verdict=overall(changes),
        action=action,
        why=why,
        pins=pins,
        terms=terms,
        obstacle=_obstacle(policy, action, terms),
    )


def _obstacle(policy: Policy, action: Action, terms: tuple[TermView, ...]) -> str:
    try:
        _check_sum(policy, action, terms, raised=False)
    except PolicyNotApplied as error:
        return error.message
    return ""


def _check_sum(
    policy: Policy, action: Action, terms: tuple[TermView, ...], *, raised: bool
) -> None:
    """Refuse what would bring all terms above the lifetime, or raise it unasked."""
    if not any(view.charged for view in terms) or action == "nothing":
        return
    if action != "tighten":
        check_lifetime(policy, Budgets.of(terms, policy.promised), opens=True)
        check_raise(policy, terms, allowed=raised)
    elif policy.lifetime is not None:
        check_lifetime(policy, Budgets.of(terms), opens=False)


def _changes(session: Session, term: Term, policy: Policy) -> tuple[Change, ...]:
    declared: Mapping[str, Any] | None
    if term.declared is not None:
        declared = json.loads(term.declared)
    else:
        declared = declared_before(term.pinned, policy)
    if declared is not None:
        charged = _charged_flows(session, term)
        return judge(declared, policy.declared(), charged_flows=charged)
    # An old term does not tell options from derived numbers.
    return incomparable(term.pinned, policy.pinned())


def _charged_flows(session: Session, term: Term) -> set[str]:
    rows = session.rows("bodies_of_kind", account=term.account, kind="reserve")
    flows = (json.loads(row["body"]).get("flow") for row in rows)
    return {flow for flow in flows if flow is not None}


# In place


def _tighten(
    session: Session,
    policy: Policy,
    found: Proposal,
    wish: Wish,
    facts: Mapping[str, Any],
) -> tuple[Applied, list[Account]]:
    """Lower the gates; return also the accounts whose journal tells of it."""
    before, pins = found.term, found.pins
    if before is None or pins is None:
        msg = f"nothing of dataset {policy.dataset!r} can be tightened"
        raise ValueError(msg)
    _check_sum(policy, "tighten", found.terms, raised=False)
    text = canonical(pins)
    session.change(
        "tighten_term",
        dataset=policy.dataset,
        number=before.number,
        pinned=text,
        declared=canonical(policy.declared()),
        policy_hash=digest(text),
    )
    after = newest_term(session, policy.dataset) or before
    body = {
        **facts,
        "because": wish.because or "a tighter policy was applied",
        "policy": after.policy_hash,
        "changes": [change.line for change in found.changes],
    }
    written, lowered = [], []
    for account in accounts_of_term(session, before):
        told = _retold(session, account, after, body)
        if told is not None:
            written.append(told)
            if (told.rule, told.halt) != (account.rule, account.halt):
                lowered.append(told)
    return _applied(session, found, lowered), written


def _retold(
    session: Session, account: Account, term: Term, body: Mapping[str, Any]
) -> Account | None:
    """Give an account the gate of its term; the dataset's tells every change."""
    gate = gate_of(term, account.kind, account.name)
    named = account.kind != "dataset"
    if gate is None or taken_off(term.pinned, account.kind, account.name):
        return None
    rule, halt = rule_from_text(canonical(gate[0])), gate[1]
    same = (account.rule, account.halt) == (rule, halt)
    if same and named:
        return None
    if not _is_tighter(account, rule, halt):
        msg = (
            f"the policy would loosen account {account.id!r} in place, which is never "
            "done. Undo the edit, or open a new term."
        )
        raise LedgerCorrupt(msg)
    return change_gate(session, account, rule=rule, halt=halt, body=body)


def _is_tighter(account: Account, rule: Rule, halt: Fraction | None) -> bool:
    """Check once more, by the rules themselves, that a gate admits no more."""
    before = account.rule
    if isinstance(before, Filter) and isinstance(rule, Filter):
        return rule == before or admits_less(rule, before)
    lower = account.halt is None or (halt is not None and halt <= account.halt)
    return rule == before and lower


def _admits_nothing(account: Account) -> bool:
    """Say whether what was charged is above a gate, so that nothing more fits."""
    total, rule = account.settled + account.held, account.rule
    if isinstance(rule, Filter):
        return not rule.admits(total)
    if account.halt is None or not isinstance(rule, Odometer):
        return False
    reading = rule.read(total)
    return reading == float("inf") or Fraction(reading) > account.halt


# New terms


def _open(
    session: Session,
    policy: Policy,
    found: Proposal,
    wish: Wish,
    facts: Mapping[str, Any],
) -> tuple[Applied, list[Account]]:
    """Open a term; return also the account whose journal tells of it."""
    uncharged = not found.terms or not found.terms[-1].charged
    if uncharged and found.action == "nothing" and wish.grant is None:
        return _applied(session, found, ()), []
    grant = wish.grant
    if grant is None and found.term is not None:
        # It was given once, for all terms of this ledger.
        grant = grant_of(session, found.term)
    if not uncharged:
        _check_asked_for(found, wish)
    freeze = frozen_by(session, policy.dataset)
    if freeze is not None:
        msg = (
            f"dataset {policy.dataset!r} is frozen, and a new term would not be. Run "
            f"`dpflow thaw {policy.dataset}` first."
        )
        raise PolicyNotApplied(msg, dataset=policy.dataset)
    _check_sum(policy, "new term", found.terms, raised=wish.raise_lifetime)
    opened = open_term(
        session,
        policy,
        number=1 if found.term is None else found.term.number + 1,
        because=wish.because or "the policy was applied",
        facts={
            **facts,
            "changes": [change.line for change in found.changes],
            "total": Budgets.of(found.terms, policy.promised).total(),
            "lifetime": policy.declared().get("lifetime"),
            **({} if grant is None else {"grant": asdict(grant)}),
        },
    )
    account = read_account(session, opened.account)
    written = [] if account is None else [account]
    return _applied(session, found, (), opened=True), written


def _check_asked_for(found: Proposal, wish: Wish) -> None:
    """Refuse to open a further term that nobody asked for, or without a reason."""
    how = f"`dpflow policy apply {found.dataset} --new-term --because TEXT`"
    if not wish.new_term:
        lines = [change.line for change in found.changes]
        told = "; ".join(f"{c.line} ({c.verdict})" for c in found.changes)
        msg = (
            f"the policy of dataset {found.dataset!r} cannot be applied in place: "
            f"{told}. {found.why} Undo what is not tighter"
            + (
                f". A new term, with {how}, would be refused as well: {found.obstacle}"
                if found.obstacle
                else f", or open a new term with {how}; the terms so far stay charged "
                "in full."
            )
        ).replace("  ", " ")
        raise PolicyChanged(msg, dataset=found.dataset, differences=lines)
    if not wish.because.strip():
        msg = f"a new term needs a reason that its journal keeps: {how}"
        raise PolicyNotApplied(msg, dataset=found.dataset)


def _applied(
    session: Session,
    found: Proposal,
    accounts: tuple[Account, ...] | list[Account],
    *,
    opened: bool = False,
) -> Applied:
    term = newest_term(session, found.dataset)
    action = found.action
    if opened and action in ("nothing", "tighten"):
        action = "new term"
    return Applied(
        dataset=found.dataset,
        action=action,
        term=0 if term is None else term.number,
        changes=found.changes,
        accounts=tuple(account.id for account in accounts),
        closed=tuple(a.id for a in accounts if _admits_nothing(a)),
        terms=tuple(term_views(session, found.dataset)),
    )
