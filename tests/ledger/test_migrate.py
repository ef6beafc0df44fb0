"""A ledger of an earlier schema is refused, migrated as it is, and goes on."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from dpflow.ledger.database import MIN_WRITER, SCHEMA_VERSION, migrations

from dpflow.exceptions import LedgerCorrupt, LedgerUnavailable
from dpflow.ledger import create_ledger, migrate_ledger, open_ledger, views

OLD = Path(__file__).parent / "data" / "schema_1.sql"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Return a ledger file as the first schema wrote it: two settled, one held."""
    path = tmp_path / "ledger.db"
    connection = sqlite3.connect(path)
    connection.executescript(OLD.read_text("utf-8"))
    connection.close()
    return path


def rows(path: Path, sql: str) -> list[tuple[object, ...]]:
    """Read a file as it is, without the ledger."""
    connection = sqlite3.connect(path)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def test_an_old_ledger_is_refused_with_the_command_that_helps(old: Path) -> None:
    """Nothing is migrated by opening it."""
    with pytest.raises(LedgerUnavailable, match="dpflow ledger migrate"):
        open_ledger(f"sqlite:///{old}")


def test_migrating_changes_nothing_that_was_charged(old: Path) -> None:
    """Journal and accounts stay, to the letter."""
    journal = rows(old, "SELECT * FROM entry ORDER BY account, seq")
    accounts = rows(old, "SELECT * FROM account ORDER BY id")
    assert len(journal) > len(accounts) > 1
    assert migrate_ledger(f"sqlite:///{old}") == (1, SCHEMA_VERSION)
    assert rows(old, "SELECT * FROM entry ORDER BY account, seq") == journal
    assert rows(old, "SELECT * FROM account ORDER BY id") == accounts


def test_a_migrated_ledger_goes_on(old: Path) -> None:
    """What was held can be ended; the dead stay charged."""
    url = f"sqlite:///{old}"
    migrate_ledger(url)
    ledger = open_ledger(url)
    before = views.accounts(ledger, "shop")
    ledger.forfeit("r2", because="its process is gone")
    after = views.accounts(ledger, "shop")
    assert [view.forfeited for view in after] == [view.forfeited for view in before]
    assert views.open_reservations(ledger) == []
    ledger.close()


def test_the_journal_stays_append_only(old: Path) -> None:
    """The triggers move with the table."""
    migrate_ledger(f"sqlite:///{old}")
    connection = sqlite3.connect(old)
    for sql in (
        "UPDATE entry SET amount = '[0]'",
        "DELETE FROM entry",
        "INSERT OR REPLACE INTO entry SELECT * FROM entry LIMIT 1",
    ):
        with pytest.raises(sqlite3.DatabaseError, match="append-only"):
            connection.execute(sql)
    connection.close()


def test_migrating_twice_changes_nothing(old: Path) -> None:
    """The second time there is nothing to do."""
    migrate_ledger(f"sqlite:///{old}")
    once = old.read_bytes()
    assert migrate_ledger(f"sqlite:///{old}") == (SCHEMA_VERSION, SCHEMA_VERSION)
    assert old.read_bytes() == once


def test_a_migrated_ledger_has_the_tables_of_a_new_one(
    old: Path, tmp_path: Path
) -> None:
    """One schema, however a ledger came to it."""
    migrate_ledger(f"sqlite:///{old}")
    create_ledger(f"sqlite:///{tmp_path}/new.db").close()
    sql = "SELECT type, name, sql FROM sqlite_master ORDER BY type, name"
    assert rows(old, sql) == rows(tmp_path / "new.db", sql)


def test_a_broken_ledger_is_not_migrated(old: Path) -> None:
    """Not half, either."""
    connection = sqlite3.connect(old)
    connection.execute("INSERT INTO refused VALUES ('run', 'nobody', 7, 0)")
    connection.commit()
    connection.close()
    with pytest.raises(LedgerCorrupt, match="FOREIGN KEY"):
        migrate_ledger(f"sqlite:///{old}")
    assert rows(old, "SELECT schema_version FROM ledger") == [(1,)]
    assert rows(old, "SELECT name FROM sqlite_master WHERE name = 'checkpoint'") == []


def test_the_newest_migration_is_this_versions_schema() -> None:
    """Folder and constant agree."""
    assert max(migrations("sqlite")) == SCHEMA_VERSION >= MIN_WRITER
