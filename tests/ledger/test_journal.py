"""What may come next in a journal, asked of the pure rules alone."""

from __future__ import annotations

from typing import Any

import pytest

from dpflow.ledger.entry import Entry
from dpflow.ledger.journal import follow, next_entry
from dpflow.ledger.model import State
from dpflow.ledger.rows import Changes, JournalError, Key, Row


def written(rows: dict[Key, Row], kind: str, **fields: Any) -> tuple[Entry, Changes]:
    """Write the next entry of a book, and keep the rows that it changes."""
    label = {"at": "2026-11-23", "writer": "me"}
    entry, changes = next_entry(rows, "a", kind, {}, fields, charge=None, **label)
    rows.update((key, row) for key, row in changes.items() if row is not None)
    return entry, changes


def test_an_entry_that_is_missing_is_noticed() -> None:
    """The second may follow the first only, and not itself."""
    rows: dict[Key, Row] = {}
    first, _ = written(rows, "unfreeze", who="ann")
    before = dict(rows)
    second, changes = written(rows, "unfreeze", who="bob")
    assert follow(before, second) == changes
    for held, entry in (({}, second), (before, first), (rows, second)):
        with pytest.raises(JournalError, match="is missing"):
            follow(held, entry)


def test_an_account_that_nobody_looked_for_is_not_taken_for_a_new_one() -> None:
    """Its row would be written over; one of a term to come, or looked for, is new."""
    term = ("term", "a", "1")
    with pytest.raises(JournalError, match="'a#1/flow/x' was not looked for"):
        State(rows={}, looked_for={term}).account("a#1/flow/x")
    assert State(rows={}, looked_for={term}).account("a#2") is None
    assert State(rows={}, looked_for={term}, whole={"a"}).account("a#1") is None
    known = {term, ("account", "a#1")}
    assert State(rows={}, looked_for=known).account("a#1") is None
