"""The witness in a PostgreSQL database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dpflow.exceptions import (
    ConfigurationError,
    LedgerMissing,
    LedgerUnavailable,
    LedgerUnwitnessed,
)
from dpflow.ledger import create_ledger, open_ledger
from dpflow.ledger.witness import postgres as module
from tests.ledger.processes import Child
from tests.ledger.support import edit, granted, kinds, read, url
from tests.ledger.witness.witness_contract import (
    CONTRACT,
    fresh_witness,
    log_of,
    made_at,
)
from tests.postgres import server

PASSWORD = "s3cret-word"


@pytest.fixture
def database() -> Iterator[str]:
    """Give the URL of an empty database."""
    found = server().new_database()
    yield found
    server().drop(found)


@pytest.mark.parametrize("promise", CONTRACT)
def test_a_database_keeps_a_witness(
    promise: Callable[[str, Path], None], tmp_path: Path, database: str
) -> None:
    """Each promise of the contract."""
    promise(database, tmp_path)


def test_the_ledgers_own_database_is_refused(database: str) -> None:
    """One restore would bring both back; no ledger is made then."""
    with pytest.raises(ConfigurationError, match="in the ledger's own database"):
        create_ledger(database, witness=database)
    with pytest.raises(LedgerMissing):
        open_ledger(database, witness="none")
    create_ledger(database, witness="none")
    # Also by another of its names.
    other = f"{database}&application_name=x"
    with pytest.raises(ConfigurationError, match="in the ledger's own database"):
        granted(open_ledger(database, witness=other))
    assert kinds(database) == []


def test_another_database_serves_a_ledger_on_postgres(database: str) -> None:
    """Both are databases, and each is its own."""
    ledger_url = server().new_database()
    try:
        ledger = create_ledger(ledger_url, witness=database)
        granted(ledger)
        ledger.close()
        granted(open_ledger(ledger_url, witness=database))
        sql = "SELECT count(*) FROM dpflow_witness.line WHERE number > 0"
        assert read(database, sql) == [(2,)]
    finally:
        server().drop(ledger_url)


def test_nothing_in_it_can_be_changed(tmp_path: Path, database: str) -> None:
    """Rows are only added, whoever asks."""
    granted(made_at(database, tmp_path))
    for statement in (
        "UPDATE dpflow_witness.line SET content = ''",
        "DELETE FROM dpflow_witness.line",
        "TRUNCATE dpflow_witness.line",
        "DELETE FROM dpflow_witness.source",
    ):
        with pytest.raises(psycopg.errors.RaiseException, match="append-only"):
            edit(database, statement, locked=True)


def _without_triggers(database: str, statement: str) -> None:
    edit(database, f"SET session_replication_role = replica; {statement}")


@pytest.mark.parametrize("gone", ["DELETE FROM dpflow_witness.line", "DROP"])
def test_a_witness_that_goes_missing_fails_closed(
    tmp_path: Path, database: str, gone: str
) -> None:
    """Also in a process that has it open."""
    ledger = made_at(database, tmp_path)
    granted(ledger)
    every = "DROP SCHEMA dpflow_witness CASCADE" if gone == "DROP" else gone
    _without_triggers(database, every)
    for asked in (ledger, open_ledger(url(tmp_path / "ledger.db"), witness=database)):
        with pytest.raises(LedgerUnwitnessed, match="dpflow ledger trust"):
            granted(asked)


def test_a_line_that_was_taken_out_is_noticed(tmp_path: Path, database: str) -> None:
    """Lines are numbered without gaps."""
    ledger = made_at(database, tmp_path)
    for _ in range(3):
        granted(ledger)
    _without_triggers(database, "DELETE FROM dpflow_witness.line WHERE number = 2")
    opened = open_ledger(url(tmp_path / "ledger.db"), witness=database)
    with pytest.raises(LedgerUnavailable, match="lines are missing"):
        granted(opened)


def test_a_server_that_may_lose_commits_is_refused(
    tmp_path: Path, database: str
) -> None:
    """As for a ledger."""
    name = database.partition("@/")[2].partition("?")[0]
    server().run(f"ALTER DATABASE {name} SET synchronous_commit = off")
    with pytest.raises(LedgerUnavailable, match="synchronous_commit = off"):
        made_at(database, tmp_path)
    assert not (tmp_path / "ledger.db").exists()


def test_no_answer_means_no_step_and_shows_no_password(tmp_path: Path) -> None:
    """Nothing listens there; what is told names the place without its secret."""
    setting = f"postgresql://me:{PASSWORD}@127.0.0.1:9/x"
    path = tmp_path / "ledger.db"
    with pytest.raises(LedgerUnavailable) as error:
        made_at(setting, tmp_path)
    assert not path.exists()
    create_ledger(url(path), witness="none").close()
    ledger = open_ledger(url(path), witness=setting)
    with pytest.raises(LedgerUnavailable, match="step did not run") as refused:
        granted(ledger)
    assert kinds(path) == []
    for told in (error.value, refused.value):
        assert PASSWORD not in f"{told}{told.details}{ledger.watch.witness.place}"
        assert "me@127.0.0.1:9/x" in told.message


def test_a_session_that_the_server_ended_is_made_anew(
    tmp_path: Path, database: str
) -> None:
    """At the next step; a restart of the server is no accident of the ledger's."""
    ledger = made_at(database, tmp_path)
    granted(ledger)
    connection = log_of(ledger)._session._connection
    server().run(f"SELECT pg_terminate_backend({connection.info.backend_pid})")
    granted(ledger)


def test_a_child_has_a_session_of_its_own(tmp_path: Path, database: str) -> None:
    """Two processes on one connection would read each other's answers."""
    ledger = made_at(database, tmp_path)
    granted(ledger)

    def session() -> int:
        granted(ledger)
        pid: int = log_of(ledger)._session._connection.info.backend_pid
        return pid

    mine = session()
    code, (theirs,) = Child(lambda say: say(str(session()))).end()
    assert (code, session()) == (0, mine)
    assert int(theirs) != mine


def test_a_claim_is_kept_whatever_becomes_of_another_threads_lines(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that is rolled back must not take it along."""
    ledger = made_at(database, tmp_path)
    witness, answers = ledger.watch.witness, []
    assert witness is not None
    claimer = threading.Thread(target=lambda: answers.append(witness.claim("shop")))
    run = module._run

    def fail(connection: Any, statement: str, **values: object) -> Any:
        if statement == "append":
            claimer.start()
            claimer.join(1)
            raise psycopg.OperationalError("the connection is lost")
        return run(connection, statement, **values)

    monkeypatch.setattr(module, "_run", fail)
    with pytest.raises(LedgerUnavailable, match="the connection failed or is lost"):
        granted(ledger)
    monkeypatch.setattr(module, "_run", run)
    claimer.join(30)
    assert answers == [ledger.id]
    assert fresh_witness(database, "0" * 31 + "1").claim("shop") == ledger.id


def test_what_a_database_sets_for_transactions_loses_no_line(
    tmp_path: Path, database: str
) -> None:
    """Two who tell at once are numbered one after the other; neither is refused."""
    name = database.partition("@/")[2].partition("?")[0]
    server().run(
        f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'"
    )
    ledger = made_at(database, tmp_path)
    log = log_of(ledger)
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory' AND "
    with psycopg.connect(database) as other:
        other.execute(module._statements()["lock"].encode(), {"name": ledger.id})
        told: list[object] = []
        lines = [("a", "late")]
        late = threading.Thread(
            target=lambda: told.append(log.append(ledger.id, lines, None))
        )
        late.start()
        while read(database, f"{waits} datname = '{name}'") != [(1,)]:
            assert late.is_alive()
        other.execute(
            "INSERT INTO dpflow_witness.line VALUES (%s, 0, 1, 'a', 'first')",
            [ledger.id],
        )
    late.join(30)
    assert told == [None]
    sql = "SELECT number, content FROM dpflow_witness.line WHERE number > 0 ORDER BY 1"
    assert read(database, sql) == [(1, "first"), (2, "late")]
    server().run(
        f"ALTER DATABASE {name} SET default_transaction_read_only = on",
        f"ALTER DATABASE {name} RESET default_transaction_isolation",
    )
    assert fresh_witness(database, ledger.id).claim("shop") == ledger.id


def test_a_server_that_stops_to_keep_commits_is_refused(
    tmp_path: Path, database: str
) -> None:
    """Its settings are read back with each line, not with the connection only."""
    ledger = made_at(database, tmp_path)
    granted(ledger)
    connection = log_of(ledger)._session._connection
    for call in (
        lambda: granted(ledger),
        lambda: ledger.watch.witness.claim("shop"),
        lambda: ledger.watch.witness.enrol(1, [], anew=True),
    ):
        connection.execute("SET synchronous_commit = off")
        with pytest.raises(LedgerUnavailable, match="synchronous_commit = off"):
            call()
        log_of(ledger).read(ledger.id, "", None)
        connection = log_of(ledger)._session._connection
    sql = "SELECT count(*) FROM dpflow_witness.line WHERE number > 0"
    assert read(database, sql) == [(1,)]
