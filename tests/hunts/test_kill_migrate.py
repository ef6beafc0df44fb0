"""SIGKILL at every statement of a migration: the ledger is the old one or the new."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dpflow.ledger import migrate_ledger
from dpflow.ledger.database import SCHEMA_VERSION, migrations
from tests.hunts.support import figure, memory_folder
from tests.hunts.test_faults import FailingDatabase, Wire
from tests.ledger.support import Child, die, read, url

OLD = Path(__file__).parents[1] / "ledger" / "data" / "schema_1.sql"
#: More statements than a migration has.
MOST = 200


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a folder in memory."""
    place = memory_folder()
    yield place
    shutil.rmtree(place)


class Unprotected(FailingDatabase):
    """A database that migrates without a transaction."""

    class wire(Wire):  # noqa: N801
        """A connection that takes each statement by itself."""

        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            """Run a statement, but no BEGIN and no COMMIT."""
            own = sql in {"BEGIN IMMEDIATE", "COMMIT"}
            return super().execute("SELECT 1" if own else sql, *values)


def old_ledger(place: Path) -> Path:
    """Make a ledger file as the first schema wrote it."""
    place.mkdir()
    path = place / "ledger.db"
    connection = sqlite3.connect(path)
    connection.executescript(OLD.read_text("utf-8"))
    connection.close()
    return path


def content(path: Path) -> tuple[list[Any], ...]:
    """Return what a migration may not change, and what it must."""
    journal = read(path, "SELECT * FROM entry ORDER BY account, seq")
    accounts = read(path, "SELECT * FROM account ORDER BY id")
    schema = read(path, "SELECT name, sql FROM sqlite_master ORDER BY name")
    return journal, accounts, schema, read(path, "SELECT schema_version FROM ledger")


def die_at_every_statement(
    folder: Path, when: str, kind: type[FailingDatabase] = FailingDatabase
) -> int:
    """Kill a migration at each statement; return how many there are."""
    before = content(old_ledger(folder / f"before-{when}"))
    whole = old_ledger(folder / f"whole-{when}")
    migrate_ledger(url(whole))
    after = content(whole)
    assert before[:2] == after[:2]
    assert before[2:] != after[2:]
    scripts = list(migrations("sqlite").values())[1:]
    for number in range(MOST):
        path = old_ledger(folder / f"{when}-{number}")

        def run(
            _: Callable[[str], None], path: Path = path, left: int = number
        ) -> None:
            database = kind(path)

            def hook(_: str) -> None:
                nonlocal left
                left -= 1
                if left < 0:
                    die()

            setattr(database, when, hook)
            database.migrate(scripts)

        code, lines = Child(run).end()
        assert code in {0, -9}, lines
        found = content(path)
        assert found in (before, after), "half of a migration"
        if found == before:
            assert migrate_ledger(url(path)) == (1, SCHEMA_VERSION)
            assert content(path) == after
        if code == 0:
            return number
    raise AssertionError("more statements than expected")


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_migration_happens_or_does_not(folder: Path, when: str) -> None:
    """Whatever is left can be migrated, and its journal is as it was."""
    points = die_at_every_statement(folder, when)
    assert points > 10
    figure(f"SIGKILL points of a migration, {when}", violations=0, points=points)


def test_a_migration_without_a_transaction_is_found(folder: Path) -> None:
    """Half of it stays after a death."""
    with pytest.raises((AssertionError, sqlite3.Error)):
        die_at_every_statement(folder, "before", Unprotected)
