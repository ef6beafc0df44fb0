"""Freezing a dataset: everything is refused at once, until someone thaws it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dpflow.accounting.tally import Tally
from dpflow.exceptions import PolicyNotApplied
from dpflow.ledger.account import Account, overdraws
from dpflow.ledger.approval import check_officer
from dpflow.ledger.database import Session
from dpflow.ledger.kernel import Ledger
from dpflow.ledger.marks import change_state
from dpflow.ledger.terms import Term, accounts_of_term, frozen_by, newest_term


def freeze(ledger: Ledger, dataset: str, *, who: str, because: str) -> tuple[str, ...]:
    """Freeze all accounts of a dataset's term; steps that run already may end.

    Anyone may freeze. Freezing twice changes nothing.

    Returns:
        The accounts that were frozen.

    Raises:
        PolicyNotApplied: If no policy of the dataset was applied yet.
    """
    with ledger.writing([dataset]) as session:
        term = _term(session, dataset)
        frozen = freeze_accounts(session, term, _body(ledger, term, who, because))
    ledger.watch.tell_of_gates(frozen)
    return tuple(account.id for account in frozen)


def freeze_accounts(
    session: Session, term: Term, body: Mapping[str, Any]
) -> list[Account]:
    """Freeze the accounts of a term that are not frozen; return those."""
    return [
        change_state(session, account, "freeze", state="frozen", body=body)
        for account in accounts_of_term(session, term)
        if account.state != "frozen"
    ]


def thaw(ledger: Ledger, dataset: str, *, who: str, because: str) -> tuple[str, ...]:
    """Thaw the accounts of a dataset; an officer's business where there are any.

    Returns:
        The accounts that were thawed.

    Raises:
        PolicyNotApplied: If the policy names officers and this is none of them.
    """
    with ledger.writing([dataset]) as session:
        term = _term(session, dataset)
        check_officer(term.officers, dataset, who, "thaw it")
        body = _body(ledger, term, who, because)
        accounts = [a for a in accounts_of_term(session, term) if a.state == "frozen"]
        for account in accounts:
            state = _state_after(session, account)
            change_state(session, account, "thaw", state=state, body=body)
    return tuple(account.id for account in accounts)


def freeze_of(ledger: Ledger, dataset: str) -> Mapping[str, Any] | None:
    """Return who froze a dataset and why; None if it is not frozen."""
    with ledger.database.read() as session:
        return frozen_by(session, dataset)


def _body(ledger: Ledger, term: Term, who: str, because: str) -> Mapping[str, Any]:
    policy = {term.dataset: term.policy_hash}
    facts = ledger.conditions.facts
    return {**facts, "who": who, "because": because, "policy": policy}


def _term(session: Session, dataset: str) -> Term:
    term = newest_term(session, dataset)
    if term is None:
        msg = (
            f"the ledger has applied no policy of dataset {dataset!r}, so there is "
            f"nothing to freeze. Run `dpflow policy apply {dataset}` first."
        )
        raise PolicyNotApplied(msg, dataset=dataset)
    return term


def _state_after(session: Session, account: Account) -> str:
    """Return the state that a thawed account has: as before, or overdrawn since."""
    told = session.rows("newest_of_kind", account=account.id, kind="freeze")
    if not told:
        return "overdrawn"  # frozen by no entry; nobody knows what was before
    before = json.loads(told[0]["body"])["state"]["before"]
    if before != "open":
        return str(before)
    then = replace(
        account,
        settled=Tally.from_text(told[0]["settled_after"]),
        held=Tally.from_text(told[0]["held_after"]),
    )
    total = account.settled + account.held
    return "overdrawn" if overdraws(then, total) else "open"
