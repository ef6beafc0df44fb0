"""Edits by hand are noticed or refused, and a reader of a ledger takes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from contextlib import nullcontext as does_not_raise

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
    in_memory,
    make_ledger,
    read,
    request,
    url,
    write_a_row,
)

#: What someone edits, and whether the end of an open charge notices it, too.
EDITS = {
    "UPDATE account SET held = '[0,0]'": True,
    "UPDATE account SET settled = '[0,0]'": True,
    "UPDATE account SET version = version + 1": True,
    "UPDATE account SET id = 'b#1'": True,
    "DELETE FROM account": True,
    "UPDATE charge SET amounts = replace(amounts, '1', '2')": True,
    "UPDATE charge SET request = replace(request, 'PureDP', 'X')": True,
    "UPDATE dataset SET number = number - 1": True,
    "UPDATE dataset SET term = 0, revision = 0": True,
    f"UPDATE dataset SET hash = '{'0' * 64}'": True,
    "DELETE FROM dataset": True,
    "DELETE FROM term": False,
}


@pytest.mark.promise("damaged-bytes")
@pytest.mark.storages("sqlite", "postgres")
@pytest.mark.parametrize("statement", EDITS)
def test_an_edit_by_hand_is_noticed_at_the_next_decision(
    path, tmp_path, statement, monkeypatch
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
        if EDITS[statement]:
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
    with closing(make_ledger(path)) as opened:
        granted(opened, "0.1")
        yield opened


def test_it_shows_what_a_writer_charges_meanwhile(writer, path):
    """Neither keeps the other waiting for long, and the journal can be verified."""
    with reader(path) as ledger:
        for number in range(2, 5):
            (view,) = views.accounts(ledger)
            assert view.used_fraction == pytest.approx((number - 1) / 10)
            granted(writer, "0.1")
            assert verify(ledger).fine


def test_it_takes_no_charge(writer, path):
    """Nor anything else that writes; the ledger stays as it is."""
    before = everything(path)
    with reader(path) as ledger:
        with pytest.raises(LedgerUnavailable, match="opened for reading only"):
            ledger.reserve(request(ledger, "0.1"))
        with pytest.raises(LedgerUnavailable, match="opened for reading only"):
            ledger.freeze("a", reason="test")
    assert everything(path) == before


def test_the_database_itself_refuses(writer, path):
    """A statement that writes, slipped into a reading transaction, fails."""
    with reader(path) as ledger:
        refused = does_not_raise() if in_memory(path) else pytest.raises(LedgerError)
        with refused, ledger.database.snapshot() as reading:
            write_a_row(reading)
    names = read(path, "SELECT name FROM dataset")
    assert names == [("a",)]
    with writer.database.transaction() as within:
        write_a_row(within)
