"""Edits by hand are noticed or refused, and a reader of a ledger takes nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from contextlib import nullcontext as does_not_raise

import psycopg
import pytest
from dpflow.ledger.decision.office import Freeze

from dpflow.exceptions import LedgerCorrupt, LedgerError, LedgerUnavailable
from dpflow.ledger import views
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import open_ledger
from dpflow.ledger.views.spending import spending
from tests.ledger.support import (
    Place,
    audit,
    edit,
    everything,
    granted,
    in_memory,
    make_ledger,
    read,
    request,
    url,
    write_a_row,
)

# The journal


LATER = "WHERE key = 'account/a#1' AND number = 4"


@pytest.mark.storages("sqlite")
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entry SET rows = replace(rows, '0,0', '1,0') WHERE number = 4",
        "UPDATE entry SET rows = '{}' WHERE number = 4",
        "UPDATE entry SET body = '{}' WHERE number = 4",
        "UPDATE entry SET at = 'then' WHERE number = 4",
        "UPDATE entry SET writer = 'me' WHERE number = 4",
        "UPDATE entry SET kind = 'settle' WHERE number = 4",
        f"UPDATE entry SET hash = '{'0' * 64}' WHERE number = 3",
        "DELETE FROM entry WHERE number = 4",
        "DELETE FROM entry WHERE number = 3",
        "UPDATE entry SET body = replace(body, 'epsilon', 'delta') WHERE number = 1",
        f"DELETE FROM tag {LATER}",
        f"UPDATE tag SET number = 5 {LATER}",
        f"UPDATE tag SET key = 'account/b#1' {LATER}",
        "INSERT INTO tag VALUES ('account/a#1', 5)",
        "DELETE FROM tag",
    ],
)
def test_an_edit_by_hand_is_noticed_at_the_next_decision(
    ledger: Ledger, path: Place, statement: str
) -> None:
    """No step runs, no charge ends on an older sum, and the damage stays as it is."""
    ledger.settle(granted(ledger, "0.8"))
    charge = granted(ledger, "0.1")
    edit(path, statement)
    before = everything(path)
    for asking in (ledger, open_ledger(url(path))):
        # The sums that an end goes on from do not depend on the term's body.
        if "number = 1" not in statement:
            with pytest.raises(LedgerCorrupt):
                asking.forfeit(charge, reason="over")
        with pytest.raises(LedgerCorrupt):
            asking.reserve(request(asking, "0.05"))
    assert before == everything(path)


@pytest.mark.storages("sqlite")
def test_a_process_that_begins_misses_a_tag_of_a_newest_entry(
    ledger: Ledger, path: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that a disk lost would hide the entry; older ones are for `verify`."""
    granted(ledger, "0.8")
    edit(path, "DELETE FROM tag WHERE key = 'account/a#1' AND number = 2")
    begun = open_ledger(url(path), witness="none")
    with pytest.raises(LedgerCorrupt, match="No tag says that entry 2 names"):
        granted(begun, "0.1")
    monkeypatch.setattr("dpflow.ledger.continuity._RECENT", 0)
    granted(open_ledger(url(path), witness="none"), "0.8")


@pytest.mark.storages("sqlite")
def test_an_unedited_ledger_goes_on(ledger: Ledger, path: Place) -> None:
    """The control of the tests above: dropping the triggers alone changes nothing."""
    ledger.settle(granted(ledger, "0.8"))
    edit(path)
    granted(ledger, "0.05")
    audit(path)


@pytest.mark.storages("sqlite")
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entry SET rows = '{}'",
        "UPDATE entry SET at = at",
        "DELETE FROM entry",
        "DELETE FROM entry WHERE number = 2",
        "DELETE FROM tag",
        "UPDATE tag SET number = 9",
    ],
)
def test_the_journal_is_append_only(
    ledger: Ledger, path: Place, statement: str
) -> None:
    """The database itself refuses every login."""
    granted(ledger)
    before = everything(path)
    errors = (sqlite3.IntegrityError, psycopg.IntegrityError)
    with pytest.raises(errors, match="append-only"):
        edit(path, statement, locked=True)
    assert before == everything(path)


pytestmark = pytest.mark.storages("sqlite", "postgres")


@contextmanager
def reader(path: Place) -> Iterator[Ledger]:
    """Open a ledger for reading."""
    ledger = open_ledger(url(path), read_only=True)
    try:
        yield ledger
    finally:
        ledger.close()


@pytest.fixture
def writer(path: Place) -> Iterator[Ledger]:
    """Give a ledger with a charge, open for writing."""
    opened = make_ledger(path)
    granted(opened, "0.1")
    yield opened
    opened.close()


def test_it_shows_what_a_writer_charges_meanwhile(writer: Ledger, path: Place) -> None:
    """Neither keeps the other waiting for long, and the journal can be verified."""
    with reader(path) as ledger:
        for number in range(2, 5):
            (view,) = views.accounts(ledger)
            assert view.used_fraction == pytest.approx((number - 1) / 10)
            granted(writer, "0.1")
            assert verify(ledger).fine


def test_it_takes_no_charge(writer: Ledger, path: Place) -> None:
    """Nor anything else that writes; the journal stays as it is."""
    before = views.history(writer, all_accounts=True)
    with reader(path) as ledger:
        with pytest.raises(LedgerUnavailable, match="opened for reading only"):
            ledger.reserve(request(ledger, "0.1"))
        with pytest.raises(LedgerUnavailable, match="opened for reading only"):
            ledger.ask(Freeze(book="a", reason="test"))
    assert views.history(writer, all_accounts=True) == before


def test_the_database_itself_refuses(writer: Ledger, path: Place) -> None:
    """A statement that writes, slipped into a reading transaction, fails."""
    with reader(path) as ledger:
        refused = does_not_raise() if in_memory(path) else pytest.raises(LedgerError)
        with refused, ledger.storage.read() as reading:
            write_a_row(reading)
    assert read(path, "SELECT * FROM kept") == []
    with writer.storage.write() as within:
        write_a_row(within)


def test_a_journal_of_several_pages_is_read_whole(
    writer: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No entry is twice on a page, none between two."""
    for _ in range(6):
        granted(writer, "0.01")
    whole, spent = (
        views.usage(writer, "a", ["a#1"], most=100)["a#1"],
        spending(writer, "a", ("step",), term=1),
    )
    assert [point.seq for point in whole] == list(range(2, 9))
    for page in (1, 2, 7, 8):
        monkeypatch.setattr("dpflow.ledger.storage.tables._PAGE", page)
        assert views.usage(writer, "a", ["a#1"], most=100)["a#1"] == whole
        assert spending(writer, "a", ("step",), term=1) == spent
