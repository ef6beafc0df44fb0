"""Journal entries that move no budget: they change a gate or close it for a while."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from dpflow.accounting.theorem import Rule
from dpflow.exceptions import LedgerCorrupt
from dpflow.ledger.account import (
    Account,
    journal_entry,
    rule_to_text,
)
from dpflow.ledger.chain import entry_hash
from dpflow.ledger.database import Session
from dpflow.ledger.records import canonical
from dpflow.ledger.writer import writer
from dpflow.rounding import number_text


def gate_facts(rule: Rule, halt: Fraction | None) -> dict[str, Any]:
    """Return a gate as the journal keeps it."""
    text = None if halt is None else number_text(halt)
    return {"rule": json.loads(rule_to_text(rule)), "halt": text}


def change_gate(
    session: Session,
    account: Account,
    *,
    rule: Rule,
    halt: Fraction | None,
    body: Mapping[str, Any],
) -> Account:
    """Give an account a tighter gate, which its entry tells with the one before.

    Raises:
        LedgerCorrupt: If the new rule counts in another currency than the tally.
    """
    if rule.components != account.rule.components:
        msg = f"account {account.id!r} keeps no tally for the gate {rule!r}"
        raise LedgerCorrupt(msg)
    gates = {
        **gate_facts(rule, halt),
        "before": gate_facts(account.rule, account.halt),
    }
    changed = replace(account, rule=rule, halt=halt)
    return _mark(session, changed, "tighten", {**body, **gates})


def change_state(
    session: Session,
    account: Account,
    kind: str,
    *,
    state: str,
    body: Mapping[str, Any],
) -> Account:
    """Freeze or thaw an account; its entry tells the state before."""
    told = {**body, "state": {"before": account.state, "after": state}}
    return _mark(session, replace(account, state=state), kind, told)


def _mark(
    session: Session, account: Account, kind: str, body: Mapping[str, Any]
) -> Account:
    """Append an entry that leaves the tallies, and write the account's row anew."""
    seq = account.seq + 1
    entry = journal_entry(
        account.id,
        seq,
        kind,
        amount=account.rule.zero().to_text(),
        settled_after=account.settled.to_text(),
        held_after=account.held.to_text(),
        body=canonical(dict(body)),
        writer=writer(),
    )
    head = entry_hash(account.head, entry)
    session.change("append_entry", **entry, hash=head)
    moved = session.change(
        "mark_account",
        id=account.id,
        rule=rule_to_text(account.rule),
        halt=None if account.halt is None else number_text(account.halt),
        state=account.state,
        seq=seq,
        head=head,
    )
    if moved != 1:
        msg = f"account {account.id!r} moved under an open transaction"
        raise LedgerCorrupt(msg)
    return replace(account, seq=seq, head=head)
