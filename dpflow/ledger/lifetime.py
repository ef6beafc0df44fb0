"""The terms of a dataset, what they add up to, and the lifetime that caps them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from dpflow.exceptions import LedgerCorrupt
from dpflow.ledger.chain import entry_hash
from dpflow.ledger.database import Session
from dpflow.ledger.records import TermView
from dpflow.ledger.terms import OF_FLOW, Term, all_terms, frozen_by, is_charged

_NAMES = ("epsilon", "delta")


def term_views(
    session: Session, dataset: str, forgotten: Collection[str] = ()
) -> Iterator[TermView]:
    """Yield the terms of a dataset, oldest first.

    Args:
        session: The caller's transaction.
        dataset: The dataset.
        forgotten: Accounts that are known to have been charged, whatever they say.
    """
    terms = all_terms(session, dataset)
    freeze = frozen_by(session, dataset)
    overdrawn = {
        row["term"]
        for row in session.rows("list_accounts", dataset=dataset)
        if row["state"] == "overdrawn" and row["kind"] not in OF_FLOW
    }
    for term in terms:
        pinned = term.pinned
        yield TermView(
            number=term.number,
            unit=pinned["unit"],
            relation=pinned["relation"],
            opened=_opening(session, term),
            divided="whole" in pinned,
            budget=pinned["budget"],
            charged=is_charged(session, term) or _is_among(term, forgotten),
            lifetime=pinned.get("lifetime"),
            officers=term.officers,
            because=term.because,
            opened_at=term.opened_at,
            opened_by=term.opened_by,
            frozen=freeze if term.number == terms[-1].number else None,
            overdrawn=term.number in overdrawn,
        )


def _is_among(term: Term, accounts: Collection[str]) -> bool:
    """Say whether one of these accounts is the term's."""
    return any(f"{name}/".startswith(f"{term.account}/") for name in accounts)


def _opening(session: Session, term: Term) -> Mapping[str, str]:
    """Return the budget that a term was opened with, as its journal tells.

    Raises:
        LedgerCorrupt: If that entry is not what was hashed.
    """
    rows = session.rows("read_entry", account=term.account, seq=1)
    if not rows:
        return dict(term.pinned["budget"])
    entry = {k: v for k, v in dict(rows[0]).items() if k != "hash"}
    if entry_hash("", entry) != rows[0]["hash"]:
        msg = (
            f"the first entry of account {term.account!r} is not what was written. "
            "Someone edited the ledger, or it is damaged: restore a backup."
        )
        raise LedgerCorrupt(msg)
    rule: dict[str, Any] = json.loads(rows[0]["body"])["rule"]
    return {name: rule[name] for name in _NAMES}
