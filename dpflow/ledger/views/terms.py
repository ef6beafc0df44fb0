"""The terms of a dataset, and how a policy file stands to the one that governs."""

from __future__ import annotations

from dpflow.ledger.decision.policy_changes import term_views
from dpflow.ledger.decision.terms import agrees, may_be_replaced
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.model import newest_terms
from dpflow.ledger.records import TermView
from dpflow.ledger.rows import Term
from dpflow.ledger.state import State
from dpflow.ledger.storage.tables import Reading
from dpflow.ledger.views.parts import load_book, overdrawn
from dpflow.policy import Policy
from dpflow.policy.pinned import difference_lines


def terms(ledger: Ledger, dataset: str) -> list[TermView]:
    """Return the terms of a dataset, oldest first."""
    with ledger.storage.read() as reading:
        state = load_book(reading, dataset, overdrawn(reading))
        return list(term_views(state, dataset))


def newest_term(ledger: Ledger, dataset: str) -> Term | None:
    """Return the term that governs a dataset; None if nothing was applied yet."""
    with ledger.storage.read() as reading:
        return governing(reading, dataset)


def governing(reading: Reading, book: str) -> Term | None:
    """Return the term that governs a book; None if nothing was applied yet."""
    return reading.load(lambda state: newest_terms(state, book)).newest(book)


def differences(term: Term, policy: Policy) -> list[str]:
    """Return how a file differs from a term's copy, in lines; none if it agrees."""
    if agrees(term, policy):
        return []
    return difference_lines(term.facts["declared"], policy.declared())


def is_replaceable(state: State, dataset: str) -> bool:
    """Say whether the next step applies a file that differs from the copy by itself.

    Args:
        state: With the book of the dataset and its newest term.
        dataset: Its name.
    """
    term = state.newest(dataset)
    return term is None or may_be_replaced(state, term)
