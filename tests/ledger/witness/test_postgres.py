"""The witness in a PostgreSQL database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from dpflow.exceptions import (
    ConfigurationError,
    LedgerMissing,
    LedgerUnavailable,
    LedgerUnwitnessed,
)
from dpflow.ledger import create_ledger, open_ledger
from tests.ledger.support import edit, granted, kinds, read, url
from tests.ledger.witness.accidents import keep
from tests.ledger.witness.witness_contract import (
    CONTRACT,
    loses_no_line_of_many_writers,
    made_at,
    witness_of,
)
from tests.postgres import server

PASSWORD = "s3cret-word"
TOLD = "SELECT count(*) FROM dpflow_witness.line WHERE epoch IS NULL"


@pytest.fixture
def database() -> Iterator[str]:
    """Give the URL of an empty database."""
    result = server().new_database()
    yield result
    server().drop(result)


def name_of(database: str) -> str:
    """Return the name of a database."""
    return database.partition("@/")[2].partition("?")[0]


@pytest.mark.parametrize("promise", CONTRACT)
def test_a_database_keeps_a_witness(
    promise: Callable[[str, Path], None], tmp_path: Path, database: str
) -> None:
    """Each promise of the contract."""
    promise(database, tmp_path)


def test_the_ledgers_own_database_is_refused(database: str) -> None:
    """One restore would bring both back; another database serves."""
    with pytest.raises(ConfigurationError, match="in the ledger's own database"):
        create_ledger(database, witness=database)
    with pytest.raises(LedgerMissing):
        open_ledger(database, witness="none")
    create_ledger(database, witness="none").close()
    with pytest.raises(ConfigurationError, match="in the ledger's own database"):
        granted(open_ledger(database, witness=f"{database}&application_name=x"))
    assert kinds(database) == []
    other = server().new_database()
    granted(create_ledger(other, witness=database))
    assert read(database, TOLD) == [(1,)]
    server().drop(other)


def test_nothing_in_it_can_be_changed(tmp_path: Path, database: str) -> None:
    """Rows are only added, by any login."""
    granted(made_at(database, tmp_path))
    for statement in (
        "UPDATE dpflow_witness.line SET content = ''",
        "DELETE FROM dpflow_witness.line",
        "TRUNCATE dpflow_witness.line",
    ):
        with pytest.raises(psycopg.errors.RaiseException, match="append-only"):
            edit(database, statement, locked=True)


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        ("DELETE FROM dpflow_witness.line", LedgerUnwitnessed),
        ("DROP SCHEMA dpflow_witness CASCADE", LedgerUnwitnessed),
        ("DELETE FROM dpflow_witness.line WHERE number = 2", LedgerUnavailable),
    ],
)
def test_missing_lines_fail_closed(
    tmp_path: Path, database: str, damage: str, error: type[Exception]
) -> None:
    """One missing line or all of them: lines are numbered without gaps."""
    ledger = made_at(database, tmp_path)
    for _ in range(3):
        granted(ledger)
    edit(database, f"SET session_replication_role = replica; {damage}")
    opened = open_ledger(url(tmp_path / "ledger.db"), witness=database)
    with pytest.raises(error, match=r"dpflow ledger trust|lines are missing"):
        granted(opened)


def test_a_server_that_may_lose_commits_is_refused(
    tmp_path: Path, database: str
) -> None:
    """As for a ledger; its settings are read back with each line, too."""
    ledger = made_at(database, tmp_path)
    granted(ledger)
    watch = ledger.watch.witness
    assert watch is not None
    for call in (
        lambda: granted(ledger),
        lambda: watch.enrol(1, [], anew=True),
    ):
        connection = witness_of(ledger)._server._connection  # type: ignore[attr-defined]
        connection.execute("SET synchronous_commit = off")
        with pytest.raises(LedgerUnavailable, match="synchronous_commit = off"):
            call()
        witness_of(ledger).read(None)
    assert read(database, TOLD) == [(1,)]
    server().run(f"ALTER DATABASE {name_of(database)} SET synchronous_commit = off")
    with pytest.raises(LedgerUnavailable, match="synchronous_commit = off"):
        made_at(database, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_no_answer_means_no_step_and_shows_no_password(tmp_path: Path) -> None:
    """No server listens; the error names the place without its password."""
    setting = f"postgresql://me:{PASSWORD}@127.0.0.1:9/x"
    path = tmp_path / "ledger.db"
    with pytest.raises(LedgerUnavailable) as error:
        made_at(setting, tmp_path)
    assert not path.exists()
    create_ledger(url(path), witness="none").close()
    with pytest.raises(LedgerUnavailable, match="step did not run") as refused:
        granted(open_ledger(url(path), witness=setting))
    assert kinds(path) == []
    for failure in (error.value, refused.value):
        assert PASSWORD not in f"{failure}{failure.details}"
        assert "me@127.0.0.1:9/x" in failure.message


def test_what_a_database_sets_for_transactions_loses_no_line(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simultaneous writers get numbers one after the other; each line is accepted."""
    for setting in ("isolation = 'serializable'", "read_only = on"):
        alter = f"ALTER DATABASE {name_of(database)} SET default_transaction_{setting}"
        server().run(alter)
    keep(4, monkeypatch)
    loses_no_line_of_many_writers(database, tmp_path)
