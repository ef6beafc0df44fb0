"""Which accounts a request is charged to: the gates that must all admit it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpflow.ledger.account import Account
from dpflow.ledger.database import Session
from dpflow.ledger.records import Request
from dpflow.ledger.terms import Term, governing_term, open_gate

#: Kinds of gates that a flow adds, in the order in which they are asked.
_OF_FLOW = ("flow", "odometer")


def terms_of(
    session: Session, request: Request, *, applies: bool, facts: Mapping[str, Any]
) -> list[Term]:
    """Return the term of each dataset that a request reads."""
    return [
        governing_term(session, policy, applies=applies, facts=facts)
        for policy in request.policies
    ]


def accounts_of(
    session: Session, request: Request, terms: Sequence[Term], facts: Mapping[str, Any]
) -> list[Account]:
    """Return every account that must admit the request, opening new ones."""
    found: list[Account | None] = []
    for term in terms:
        told = {**facts, "policy": term.policy_hash}
        found.append(open_gate(session, term, "dataset", "", told))
        # A flow that the policy does not cover gets no account of its own.
        if request.flow is not None and term.covers_flow(request.flow):
            found += [
                open_gate(session, term, kind, request.flow, told) for kind in _OF_FLOW
            ]
    return [account for account in found if account is not None]
