"""What may come next in the journal, by the pure rules alone."""

from __future__ import annotations

from typing import Any

import pytest
from dpflow.ledger.entry import Entry, JournalError
from dpflow.ledger.journal import after
from dpflow.ledger.state import State, whole_book

from dpflow.ledger.canonical import canonical


def draft(kind: str, body: dict[str, Any], **fields: Any) -> Entry:
    """Make an entry without its rows."""
    return Entry(1, kind, None, body, "t", "w", {})._replace(**fields)


def test_a_key_that_was_not_loaded_is_not_taken_for_a_new_one() -> None:
    """Its value would be written over; a key that was loaded and is absent is new."""
    with pytest.raises(JournalError, match="account/a#1 was not loaded"):
        State().account("a#1")
    assert State(loaded={"account/a#1"}).account("a#1") is None
    assert State(loaded={whole_book("a")}).account("a#1/flow/x") is None
    for read in (State(loaded={whole_book("a")}).account, State().claimed):
        with pytest.raises(JournalError, match="was not loaded"):
            read("ba#1")
    with pytest.raises(JournalError, match="term/a#1 was not loaded"):
        State().term("a", 1)


def test_a_trial_collects_the_keys_that_it_lacks() -> None:
    """They read as absent until they are loaded."""
    state = State(missing=set(), loaded={"book/a"})
    assert (state.book("a").terms, state.term("a", 1)) == (0, None)
    assert [*state.accounts("a")] == []
    assert state.missing == {"term/a#1", whole_book("a")}


@pytest.mark.parametrize(
    ("kind", "body", "match"),
    [
        ("refuse", {"people": "p", "accounts": ["a#1"]}, "nothing of 'people'"),
        ("settle", {"overdrawn": ["a#1"]}, "nothing of 'overdrawn'"),
        ("open", {"evidence": "e"}, "nothing of 'evidence'"),
        ("unfreeze", {"book": "a", "frozen": {}}, "nothing of 'frozen'"),
        ("open", {"book": "a", "term": {"number": 2}}, "comes after term 0"),
        ("tighten", {"book": "a", "term": {"number": 1}}, "comes after term 0"),
        ("repair", {"repairs": 0}, "there were 0"),
        ("withdraw", {"release": "k"}, "no release/k"),
        ("mend", {}, "no entry is of kind"),
    ],
)
def test_what_no_entry_says_is_refused(
    kind: str, body: dict[str, Any], match: str
) -> None:
    """A fact that moves a key belongs to its kinds, and a number to its place."""
    with pytest.raises(JournalError, match=match):
        after(State(whole=True), draft(kind, body))


def test_a_freeze_posts_nothing() -> None:
    """Amounts belong to the kinds that post."""
    said = draft("freeze", {"book": "a", "frozen": {}}, amounts={"a#1": (1,)})
    with pytest.raises(JournalError, match="posts nothing"):
        after(State(whole=True), said)


def test_what_holds_itself_is_refused() -> None:
    """Also what goes too deep."""
    inner: list[Any] = []
    inner.append(inner)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for bad in (inner, deep):
        with pytest.raises(ValueError, match=r"Circular|too deep"):
            canonical(bad)
