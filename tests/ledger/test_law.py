"""The law: after every command of every history, rows are the fold of the journal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest

from dpflow.ledger import journal
from dpflow.ledger.entry import (
    Posting,
    canonical,
    columns_of,
    entry_of,
    postings_from_text,
)
from dpflow.ledger.rows import JournalError
from dpflow.ledger.storage.row_texts import key_of_text
from tests.ledger.journals import unordered
from tests.ledger.laws import played
from tests.ledger.recordings import (
    InMemory,
    InPostgres,
    InSqlite,
    Noting,
    folded_anew,
    folded_apart,
    lawful,
    plain,
)
from tests.sizes import scaled

pytestmark = pytest.mark.quick

#: Fewer do not meet every answer.
HISTORIES = max(6, scaled(6))

once = cache(played)


#: On a server each history takes some seconds.
STORED = [(seed, InSqlite) for seed in range(HISTORIES)]
STORED += [(seed, InPostgres) for seed in range(2)]
PLAYED = [*((seed, InMemory) for seed in range(HISTORIES)), *STORED]


@pytest.mark.parametrize(("seed", "store"), PLAYED)
def test_rows_are_the_fold_of_the_journal(seed: int, store: type[Any]) -> None:
    """After every command of random histories, in the order of writing and apart."""
    play = once(seed, store)
    assert lawful(play.storage)
    assert unordered(folded_apart(play.storage)) == unordered(play.storage.stored())
    assert {"Granted", "BudgetRefused"} <= {name for name, _ in play.answers}


@pytest.mark.parametrize(("seed", "store"), STORED)
def test_every_storage_answers_alike(seed: int, store: type[Any]) -> None:
    """The same history has the same answers and comes to the same rows."""
    play, twin = once(seed, store), once(seed, InMemory)
    assert play.answers == twin.answers
    assert plain(play.storage.stored()) == plain(twin.storage.stored())


class Forgetting(Noting):
    """A transaction that forgets what was changed of releases that were there."""

    def store(self, changes: Any, entries: Any, values: Any) -> None:
        """Leave them as they are."""
        there = {key_of_text(text) for text, _, _ in self.within.kept("release")}
        left = {key: row for key, row in changes.items() if key not in there}
        super().store(left, entries, values)


class Forgetful(InMemory):
    """A store that leaves out a row that an entry implies."""

    @contextmanager
    def write(self) -> Iterator[Any]:
        """Give a transaction that forgets."""
        with super().write() as within:
            yield Forgetting(within.within, within.written)


def test_a_store_that_leaves_a_row_out_breaks_the_law():
    """The control: a release whose settlement is not written is noticed."""
    assert not all(lawful(once(seed, Forgetful).storage) for seed in range(3))


def test_a_follow_that_forgets_what_a_charge_holds_breaks_the_law(monkeypatch):
    """The control: rows that were written by another `follow` are not its fold."""
    kinds = dict(journal.KINDS)
    storage = once(1, InMemory).storage
    assert lawful(storage)
    kinds["settle"] = kinds["settle"]._replace(settles=False)
    monkeypatch.setattr(journal, "KINDS", kinds)
    with pytest.raises(JournalError, match="the entries give"):
        folded_anew(storage)


def test_an_edited_entry_is_refused():
    """Every column of an entry is in its hash, and every sum follows from it."""
    storage = once(2, InMemory).storage
    for number, written in enumerate(storage.written[:12]):
        told = columns_of(written)
        edits = {
            "at": "then",
            "writer": "eve",
            "kind": "void" if told.kind != "void" else "seal",
            "charge": "x",
            "body": told.body.replace("ann", "eve"),
            "number": told.number + 1,
            "book": told.book + "x",
            "postings": "{}" if told.postings != "{}" else '{"a#1":[[1],[1],[1]]}',
        }
        before = [e for e in storage.written[:number] if e.book == written.book]
        previous = before[-1].hash if before else ""
        assert entry_of(previous, told, written.hash).number == written.number
        for name, value in edits.items():
            with pytest.raises(JournalError):
                entry_of(previous, told._replace(**{name: value}), written.hash)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        '{"a":[[1],[1]]}',
        '{"a":[[1.0],[1],[0]]}',
        '{"a":[[true],[1],[0]]}',
        '{"a":[[-1],[1],[0]]}',
        '{"a":[[],[],[]]}',
        '{"a": [[1],[1],[0]]}',
        '{"a":[["1"],[1],[0]]}',
        '{"a":[[01],[1],[0]]}',
        '{"a":[[1_0],[1],[0]]}',
        '{"a":[[+1],[1],[0]]}',
        '{"a":[[1,],[1],[0]]}',
        '{"a":[[1,,1],[1],[0]]}',
        '{"a":[[\u0661],[1],[0]]}',
        '{"a":[[ 1],[1],[0]]}',
        '{"a":[[1],[1],[0]]} ',
        '{"a":[[1],[1],[0]],}',
        '{"b":[[1],[1],[0]],"a":[[1],[1],[0]]}',
        '{"a":[[1],[1],[0]],"a":[[1],[1],[0]]}',
        '{"\\u0061":[[1],[1],[0]]}',
        '{"a":[[1],[1],[0],[0]]}',
        '["a":[[1],[1],[0]]}',
    ],
)
def test_what_are_no_postings_is_refused(text):
    """Amounts are non-negative integers in one form; anything else is damage."""
    with pytest.raises(JournalError, match="posting"):
        postings_from_text(text)


def test_accounts_of_any_name_are_read_as_they_were_written():
    """Whatever a name holds of what stands between amounts."""
    names = ["a]],", 'a":[[1],[1],[1]],"b', "],[", "\u00e9\n\\", "a", '"', "]]}", ""]
    told = {name: Posting((1, 2), (3, 4), (0, 5)) for name in names}
    assert postings_from_text(canonical(told)) == told
