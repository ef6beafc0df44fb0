"""A copy into either database has the rows, the releases and the sums of the first."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpflow.exceptions import ConfigurationError, LedgerCorrupt, LedgerUnavailable
from dpflow.ledger.records import Replayed
from dpflow.plain.audit.copies import backup, copy_ledger, export_lines
from dpflow.plain.audit.verify import verify
from dpflow.plain.ledger import Ledger
from dpflow.plain.tables.columns import TABLES, tables
from dpflow.plain.tables.postgres import PostgresDatabase
from dpflow.plain.tables.sqlite import SqliteDatabase
from tests.plain.histories import LENGTH, People, Plain, Play, in_postgres, in_sqlite
from tests.plain.support import charged, granted, make, reopen, request
from tests.postgres import server


@pytest.mark.parametrize("source", [in_sqlite, in_postgres])
@pytest.mark.parametrize("target", ["sqlite", "postgres"])
def test_a_copy_is_the_same_ledger(
    tmp_path: Path, source: Callable[[], Any], target: str
) -> None:
    """Verified, with all rows, and replayed from."""
    owners = People()
    plain = Plain(owners, source())
    history = Play(5, owners, [plain])
    for _ in range(LENGTH):
        history.step()
    identity = plain.ledger.database.identity
    if target == "sqlite":
        copy: Any = SqliteDatabase.create(tmp_path / "c.db", identity, b"0", complete=0)
    else:
        url = server().new_database()
        copy = PostgresDatabase.create(url, identity, b"0", complete=0)
    with pytest.raises(LedgerUnavailable, match="being copied"):
        Ledger(copy, owners)  # type: ignore[arg-type]
    copy_ledger(plain.ledger, copy)
    copy.complete()
    there = Ledger(copy, owners)  # type: ignore[arg-type]
    assert verify(there).bad == []
    assert [*export_lines(there)] == [*export_lines(plain.ledger)]


def test_a_backup_is_made_while_steps_run(tmp_path: Path) -> None:
    """It replays what was released, and is never made over a file."""
    ledger = make(tmp_path / "ledger.db")
    released = request(ledger, key="k")
    ledger.reserve(released)
    ledger.settle(released.reservation, value="1")
    open_charge = granted(ledger)
    path = backup(ledger, tmp_path / "backup.db")
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


def test_an_export_shows_no_secret(tmp_path: Path) -> None:
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
