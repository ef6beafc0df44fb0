"""Which accounts a request is charged to: the gates that must all admit it."""

from __future__ import annotations

from fractions import Fraction

from dpflow.accounting.theorem import Rule
from dpflow.exceptions import LedgerCorrupt
from dpflow.ledger.account import (
    Account,
    announce_account,
    open_account,
    read_account,
)
from dpflow.ledger.database import Session
from dpflow.ledger.policy_rules import rules_of
from dpflow.ledger.records import Request
from dpflow.ledger.terms import current_term
from dpflow.ledger.writer import writer
from dpflow.policy import Policy
from dpflow.rounding import number_text


def accounts_of(session: Session, request: Request) -> list[Account]:
    """Return every account that must admit the request, opening new ones."""
    found: list[Account] = []
    for policy in request.policies:
        term = current_term(session, policy)
        # A flow that the policy does not cover gets no account of its own.
        flow = request.flow if policy.covers_flow(request.flow) else None
        found += _of_policy(session, policy, term, flow, request.step)
    return found


def _of_policy(
    session: Session, policy: Policy, term: int, flow: str | None, step: str
) -> list[Account]:
    """Return the accounts that a step of a flow is charged to, opening new ones."""
    base = f"{policy.dataset}#{term}"
    rules = rules_of(policy)
    wanted: list[tuple[str, str, str, Rule, Fraction | None]]
    wanted = [(base, "dataset", "", rules.dataset, None)]
    if flow is not None:
        share, odometer, halt = rules.flow(flow)
        if share is not None:
            wanted.append((f"{base}/flow/{flow}", "flow", flow, share, None))
        if odometer is not None:
            wanted.append((f"{base}/odometer/{flow}", "odometer", flow, odometer, halt))
    for account_id, *_ in wanted:
        announce_account(session, account_id)
        session.soon("read_granted", account=account_id, step=step)
    return [
        _checked(read_account(session, account_id), rule, halt)
        or open_account(
            session,
            account_id,
            rule=rule,
            halt=None if halt is None else number_text(halt),
            writer=writer(),
            dataset=policy.dataset,
            term=term,
            kind=kind,
            name=name,
        )
        for account_id, kind, name, rule, halt in wanted
    ]


def _checked(
    account: Account | None, rule: Rule, halt: Fraction | None
) -> Account | None:
    """Check an account's gate against the term, whose policy is the file's."""
    if account is not None and (account.rule, account.halt) != (rule, halt):
        msg = (
            f"the gate of account {account.id!r} is not the one that its term pinned. "
            "Someone edited the ledger, or it is damaged: restore a backup before any "
            "further step."
        )
        raise LedgerCorrupt(msg)
    return account
