"""Copies have the rows of the first; after a move one ledger at most decides."""

from __future__ import annotations

import json
from functools import partial
from itertools import permutations, product
from typing import Any

import pytest

from dpflow.exceptions import (
    ConfigurationError,
    DpflowError,
    LedgerCorrupt,
    LedgerUnavailable,
)
from dpflow.ledger.audit import moves
from dpflow.ledger.audit.copies import backup, copy_ledger, export_lines
from dpflow.ledger.audit.moves import move, move_back
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import create_ledger, find_database, open_ledger
from dpflow.ledger.requests import Replayed
from dpflow.ledger.tables.columns import TABLES, tables
from dpflow.ledger.tables.postgres import PostgresDatabase
from dpflow.ledger.tables.sqlite import SqliteDatabase
from tests.ledger.histories import in_sqlite, play
from tests.ledger.support import charged, granted, make, reopen, request, url
from tests.postgres import server
from tests.sizes import scaled, spread


def test_a_copy_is_the_same_ledger(tmp_path, postgres_url):
    """From a file to a server and into a file again: verified, with all rows."""
    ledger = play(5, in_sqlite).ledger
    identity, lines = ledger.database.identity, [*export_lines(ledger)]
    for make_copy in (
        partial(PostgresDatabase.create, postgres_url),
        partial(SqliteDatabase.create, tmp_path / "c.db"),
    ):
        copy: Any = make_copy(identity, b"0", complete=0)
        with pytest.raises(LedgerUnavailable, match="being copied"):
            Ledger(copy, ledger.owners)
        copy_ledger(ledger, copy)
        copy.complete()
        ledger = Ledger(copy, ledger.owners)
        assert verify(ledger).bad == []
        assert [*export_lines(ledger)] == lines


def test_a_backup_is_made_while_steps_run(tmp_path):
    """It replays what was released, and is never made over a file."""
    ledger = make(tmp_path / "ledger.db")
    ledger.settle(granted(ledger, key="k"), value="1")
    open_charge = granted(ledger)
    path = tmp_path / "backup.db"
    backup(ledger, path)
    ledger.settle(open_charge)
    copy = reopen(path)
    assert isinstance(copy.reserve(request(copy, key="k")), Replayed)
    assert verify(copy).bad == []
    with pytest.raises(ConfigurationError, match="never replaces"):
        backup(ledger, path)
    with (
        pytest.raises(LedgerCorrupt, match="append-only"),
        copy.database.transaction() as inside,
    ):
        inside.connection.execute("DELETE FROM journal")  # type: ignore[attr-defined]


def test_an_export_shows_no_secret(tmp_path):
    """Neither the secret of keys, nor values, nor arguments."""
    ledger = make(tmp_path / "ledger.db")
    ledger.settle(
        granted(ledger, key="k", arguments={"x": "f" * 64}), value='"the value"'
    )
    charged(ledger)
    lines = [json.loads(line) for line in export_lines(ledger)]
    assert {line["table"] for line in lines} >= {"ledger", "journal", "charge"}
    texts = "\n".join(export_lines(ledger))
    with ledger.reading() as inside:
        inside.begin(lock=False)
        assert inside.secret().hex() not in texts
    assert "the value" not in texts
    assert {*TABLES, "ledger"} == {*tables()}


def test_a_ledger_moves(tmp_path, postgres_url):
    """With its id, its releases and its witness; the source says where it is."""
    place, target = str(tmp_path / "witness"), postgres_url
    ledger = make(tmp_path / "ledger.db", place)
    ledger.settle(granted(ledger, key="k"), value="1")
    charge = granted(ledger)
    with pytest.raises(ConfigurationError, match="charges are open"):
        move(ledger, target)
    move(ledger, target, anyway=True)
    for call in (lambda: granted(ledger), lambda: ledger.settle(charge)):
        with pytest.raises(LedgerUnavailable, match="moved to"):
            call()
    there = open_ledger(target, witness=place)
    assert there.id == ledger.id
    assert isinstance(there.reserve(request(there, key="k")), Replayed)
    granted(there)
    assert verify(there).bad == []
    with pytest.raises(ConfigurationError, match="moves to"):
        move(ledger, target)
    with pytest.raises(ConfigurationError, match="moved to"):
        move_back(ledger, target)


def test_a_move_that_cannot_be_stops_no_step(tmp_path, postgres_url):
    """Neither onto itself, however it is written, nor to a place out of reach."""
    file = url(tmp_path / "ledger.db")
    for home, other_name in (
        (file, f"{url(tmp_path / '..' / tmp_path.name)}/ledger.db"),
        (postgres_url, f"{postgres_url}&application_name=x"),
    ):
        ledger = create_ledger(home, witness="none")
        for target in (home, other_name, "postgresql://127.0.0.1:1/x"):
            with pytest.raises(DpflowError):
                move(ledger, target, anyway=True)
            assert decides(ledger)
        ledger.close()


def test_a_move_never_ends_in_the_witness_of_the_ledger(tmp_path, postgres_url):
    """No step could run there, and steps still run where the ledger is."""
    for home in (url(tmp_path / "ledger.db"), server().new_database()):
        ledger = create_ledger(home, witness=postgres_url)
        for target in (postgres_url, f"{postgres_url}&connect_timeout=9"):
            with pytest.raises(ConfigurationError, match="ledger's own database"):
                move(ledger, target, anyway=True)
        assert decides(ledger)
        ledger.close()


def test_a_move_goes_on_from_another_folder(tmp_path, monkeypatch):
    """A relative path means the file that it meant where the move began."""
    ledger = make(tmp_path / "ledger.db")
    charged(ledger, "0.1")
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    cut_move(ledger, "sqlite:///t.db", "complete", after=True)
    monkeypatch.chdir(tmp_path / "sub")
    for again in (move, move_back):
        with pytest.raises(ConfigurationError, match="moves to"):
            again(ledger, "sqlite:///t.db")
    assert move(ledger, "sqlite:///../t.db") == url(tmp_path / "t.db")


#: Where a move is cut short: before a function, or after it.
PLACES = [
    ("begin_move", True),
    ("copy_ledger", False),
    ("copy_ledger", True),
    ("write_upgrades", False),
    ("write_upgrades", True),
    ("finish_move", False),
    ("complete", True),
]
CUTS = [("sqlite", *cut) for cut in product(("on", "back"), PLACES)]
CUTS += spread([("postgres", *cut) for cut in product(("on", "back"), PLACES)], 5)


def cut_move(ledger: Ledger, target: str, name: str, *, after: bool) -> None:
    """Move a ledger, and interrupt that before a function, or after it."""
    kind, _ = find_database(target)
    owner: Any = kind if name == "complete" else moves
    call = getattr(owner, name)

    def stop(*values: object, **named: object) -> None:
        if after:
            call(*values, **named)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, stop)
        with pytest.raises(KeyboardInterrupt):
            move(ledger, target)


def decides(ledger: Ledger) -> bool:
    """Return True if a step is granted."""
    try:
        granted(ledger, "0.001")
    except LedgerUnavailable:
        return False
    return True


@pytest.mark.parametrize(("target", "then", "place"), CUTS)
def test_a_move_that_is_cut_short(tmp_path, target, then, place):
    """It goes on, or back as long as the target is not complete."""
    witness = str(tmp_path / "witness")
    ledger, (name, after) = make(tmp_path / "ledger.db", witness), place
    charged(ledger, "0.1")
    at = url(tmp_path / "t.db") if target == "sqlite" else server().new_database()
    cut_move(ledger, at, name, after=after)
    assert not decides(ledger)
    if then == "back" and name != "complete":
        move_back(ledger, at)
        assert verify(ledger).bad == []
        assert decides(ledger)
        with pytest.raises(DpflowError):
            open_ledger(at, witness=witness)
        return
    if then == "back":
        for other in (at, url(tmp_path / "other.db")):
            with pytest.raises(ConfigurationError):
                move_back(ledger, other)
    move(ledger, at)
    assert not decides(ledger)
    there = open_ledger(at, witness=witness)
    assert decides(there)
    assert verify(there).bad == []


def test_a_restored_backup_is_no_finished_move(tmp_path):
    """A complete ledger at the target that lacks an entry is never moved to."""
    ledger = make(tmp_path / "ledger.db")
    charged(ledger, "0.1")
    target = url(tmp_path / "t.db")
    cut_move(ledger, target, "begin_move", after=True)
    move_back(ledger, target)
    backup(ledger, tmp_path / "t.db")
    charged(ledger, "0.1")
    with pytest.raises(ConfigurationError, match="none is overwritten"):
        move(ledger, target)


@pytest.mark.parametrize("order", sorted({*permutations("mmbb")}))
def test_orders_of_a_move_and_its_way_back(tmp_path, order):
    """Each order of two moves and two ways back leaves one ledger that decides."""
    ledger = make(tmp_path / "ledger.db")
    charged(ledger, "0.1")
    target = url(tmp_path / "t.db")
    for who in order:
        try:
            move(ledger, target) if who == "m" else move_back(ledger, target)
        except ConfigurationError:
            continue
    assert not decides(ledger)
    assert decides(open_ledger(target, witness="none"))


@pytest.mark.parametrize("seed", range(scaled(2, push=1)))
def test_there_and_back_with_everything(tmp_path, postgres_url, seed):
    """A random history moves to a server and into a file again, row by row."""
    ledger = play(seed, in_sqlite).ledger
    before = kept_lines(ledger)
    for target in (postgres_url, url(tmp_path / "back.db")):
        move(ledger, target, anyway=True)
        ledger = open_ledger(target, witness="none")
    assert before <= kept_lines(ledger)
    assert verify(ledger).bad == []


def kept_lines(ledger: Ledger) -> set[str]:
    """Return the rows that no move changes: all but the heads of journals."""
    return {line for line in export_lines(ledger) if '"table": "dataset"' not in line}
