"""A copy into either database has the rows, the releases and the sums of the first."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dpflow.exceptions import ConfigurationError, LedgerCorrupt, LedgerUnavailable
from dpflow.ledger.audit.copies import backup, copy_ledger, export_lines
from dpflow.ledger.audit.moves import move, move_back
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import create_ledger, open_ledger
from dpflow.ledger.requests import Replayed
from dpflow.ledger.tables.columns import TABLES, tables
from dpflow.ledger.tables.postgres import PostgresDatabase
from dpflow.ledger.tables.sqlite import SqliteDatabase
from tests.ledger.histories import LENGTH, People, Play, Workers, in_postgres, in_sqlite
from tests.ledger.support import charged, granted, make, reopen, request
from tests.postgres import server


@pytest.mark.parametrize("source", [in_sqlite, in_postgres])
@pytest.mark.parametrize("target", ["sqlite", "postgres"])
def test_a_copy_is_the_same_ledger(tmp_path, source, target):
    """Verified, with all rows, and replayed from."""
    owners = People()
    workers = Workers(owners, source())
    Play(5, owners, [workers]).play(LENGTH)
    identity = workers.ledger.database.identity
    if target == "sqlite":
        copy: Any = SqliteDatabase.create(tmp_path / "c.db", identity, b"0", complete=0)
    else:
        url = server().new_database()
        copy = PostgresDatabase.create(url, identity, b"0", complete=0)
    with pytest.raises(LedgerUnavailable, match="being copied"):
        Ledger(copy, owners)  # type: ignore[arg-type]
    copy_ledger(workers.ledger, copy)
    copy.complete()
    there = Ledger(copy, owners)  # type: ignore[arg-type]
    assert verify(there).bad == []
    assert [*export_lines(there)] == [*export_lines(workers.ledger)]


def test_a_backup_is_made_while_steps_run(tmp_path):
    """It replays what was released, and is never made over a file."""
    ledger = make(tmp_path / "ledger.db")
    released = request(ledger, key="k")
    ledger.reserve(released)
    ledger.settle(released.reservation, value="1")
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
    released = request(ledger, key="k", arguments={"x": "f" * 64})
    ledger.reserve(released)
    ledger.settle(released.reservation, value='"the value"')
    charged(ledger)
    lines = [json.loads(line) for line in export_lines(ledger)]
    assert {line["table"] for line in lines} >= {"ledger", "journal", "charge"}
    texts = "\n".join(export_lines(ledger))
    with ledger.reading() as inside:
        inside.begin(lock=False)
        assert inside.secret().hex() not in texts
    assert "the value" not in texts
    assert {*TABLES, "ledger"} == {*tables()}


@pytest.mark.parametrize("kinds", [("sqlite", "postgres"), ("postgres", "sqlite")])
def test_a_ledger_moves(tmp_path, kinds):
    """With its id, its releases and its witness; the source says where it is."""
    urls = {
        "sqlite": f"sqlite:///{tmp_path}/ledger.db",
        "postgres": server().new_database(),
    }
    place, target = str(tmp_path / "witness"), urls[kinds[1]]
    ledger = create_ledger(urls[kinds[0]], witness=place)
    released = request(ledger, key="k")
    ledger.reserve(released)
    ledger.settle(released.reservation, value="1")
    charge = granted(ledger)
    with pytest.raises(ConfigurationError, match="charges are open"):
        move(ledger, target)
    move(ledger, target, anyway=True)
    with pytest.raises(LedgerUnavailable, match="moved to"):
        granted(ledger)
    with pytest.raises(LedgerUnavailable, match="moved to"):
        ledger.settle(charge)
    there = open_ledger(target, witness=place)
    assert there.id == ledger.id
    assert isinstance(there.reserve(request(there, key="k")), Replayed)
    granted(there)
    assert verify(there).bad == []
    with pytest.raises(ConfigurationError, match="moves to"):
        move(ledger, target)
    with pytest.raises(ConfigurationError, match="moved to"):
        move_back(ledger, target)
