"""Edits by hand are noticed or refused, and a reader of a ledger takes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from dpflow.exceptions import LedgerCorrupt, LedgerError, LedgerUnavailable
from dpflow.ledger import views
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import open_ledger
from tests.ledger.support import (
    Place,
    audit,
    edit,
    everything,
    granted,
    make_ledger,
    read,
    request,
    url,
    write_a_row,
)
from tests.tables import read_tables

pytestmark = pytest.mark.storages("sqlite", "postgres")


@pytest.mark.promise("damaged-bytes")
@pytest.mark.parametrize(("statement", "is_noticed_by_ends"), read_tables(__file__))
def test_an_edit_by_hand_is_noticed_at_the_next_decision(
    path, tmp_path, statement, is_noticed_by_ends, monkeypatch
):
    """No step runs, no charge ends on an older sum, and the damage stays as it is.

    The witness is what knows of a row that is not there any more.
    """
    monkeypatch.setenv("DPFLOW_WITNESS", str(tmp_path / "witness"))
    ledger = make_ledger(path)
    ledger.settle(granted(ledger, "0.8"))
    charge = granted(ledger, "0.1")
    edit(path, statement)
    before = everything(path)
    # A process that is open remembers terms, by number and revision.
    is_remembered = "FROM term" in statement
    for asking in (ledger, open_ledger(url(path)))[is_remembered:]:
        if "UPDATE charge" not in statement:
            with pytest.raises(LedgerError):
                asking.reserve(request(asking, "0.05"))
        if is_noticed_by_ends:
            with pytest.raises(LedgerError):
                asking.forfeit(charge, reason="over")
        asking.close()
    assert before == everything(path)


@pytest.mark.promise("damaged-bytes")
@pytest.mark.storages("sqlite")
def test_an_older_row_of_an_account_is_noticed_by_its_charge(ledger, path):
    """A page of a disk may be of an older time, whole and with its mark."""
    granted(ledger, "0.1")
    ((*row,),) = read(path, "SELECT settled, held, version, mark FROM account")
    charge = granted(ledger, "0.2")
    values = "settled = '{}', held = '{}', version = {}, mark = '{}'".format(*row)
    edit(path, f"UPDATE account SET {values}")
    for witness in (None, "none"):
        asking = open_ledger(url(path), witness=witness)
        asking.owners = ledger.owners
        with pytest.raises(LedgerCorrupt, match="older than its charge"):
            asking.settle(charge)


@pytest.mark.storages("sqlite")
def test_an_unedited_ledger_goes_on(ledger, path):
    """The control of the tests above: dropping the triggers alone changes nothing."""
    ledger.settle(granted(ledger, "0.8"))
    edit(path)
    granted(ledger, "0.05")
    audit(path)


@pytest.fixture
def writer(path: Place) -> Iterator[Ledger]:
    """Give a ledger with a charge, open for writing."""
    with closing(make_ledger(path)) as opened:
        granted(opened, "0.1")
        yield opened


@pytest.fixture
def reader(writer: Ledger, path: Place) -> Iterator[Ledger]:
    """Give the same ledger, open for reading."""
    with closing(open_ledger(url(path), read_only=True)) as opened:
        yield opened


def test_it_shows_what_a_writer_charges_meanwhile(writer, reader):
    """Neither keeps the other waiting for long, and the journal can be verified."""
    for number in range(2, 5):
        (view,) = views.accounts(reader)
        assert view.used_fraction == pytest.approx((number - 1) / 10)
        granted(writer, "0.1")
        assert verify(reader).fine


def test_it_takes_no_charge(reader, path):
    """Nor anything else that writes; the ledger stays as it is."""
    before = everything(path)
    with pytest.raises(LedgerUnavailable, match="opened for reading only"):
        reader.reserve(request(reader, "0.1"))
    with pytest.raises(LedgerUnavailable, match="opened for reading only"):
        reader.freeze("a", reason="test")
    assert everything(path) == before


def test_the_database_itself_refuses(writer, reader, path):
    """A statement that writes, slipped into a reading transaction, fails."""
    with pytest.raises(LedgerError), reader.database.snapshot() as reading:
        write_a_row(reading)
    assert read(path, "SELECT name FROM dataset") == [("a",)]
    with writer.database.transaction() as within:
        write_a_row(within)
