"""Terms: stretches of a dataset's life under one set of pinned policy fields."""

from __future__ import annotations

import json

from dpflow.exceptions import PolicyChanged
from dpflow.ledger.account import now, read_account
from dpflow.ledger.database import Session
from dpflow.ledger.policy_rules import rules_of
from dpflow.ledger.records import digest
from dpflow.ledger.writer import writer
from dpflow.policy import Policy


def current_term(session: Session, policy: Policy) -> int:
    """Return the dataset's term; the first decision opens it by itself."""
    text = rules_of(policy).pinned_text
    rows = session.rows("newest_term", dataset=policy.dataset)
    if rows and rows[0]["pinned"] == text:
        return int(rows[0]["number"])
    newest = int(rows[0]["number"]) if rows else 0
    if rows and not _unspent(session, policy.dataset, newest):
        differences = policy.differences(json.loads(rows[0]["pinned"]))
        msg = (
            f"the policy of dataset {policy.dataset!r} was edited after its first "
            f"charge: {'; '.join(differences)}. The ledger's copy governs: undo "
            "the edit. The step did not run."
        )
        raise PolicyChanged(msg, dataset=policy.dataset, differences=differences)
    session.post(
        "open_term",
        dataset=policy.dataset,
        number=newest + 1,
        pinned=text,
        policy_hash=digest(text),
        at=now(),
        writer=writer(),
        because="first decision" if not rows else "nothing was charged before",
    )
    return newest + 1


def _unspent(session: Session, dataset: str, term: int) -> bool:
    """Say whether a term has charged nothing, so that leaving it costs nothing."""
    account = read_account(session, f"{dataset}#{term}")
    if account is None:
        return True
    return account.settled == account.held == account.rule.zero()
