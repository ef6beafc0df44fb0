"""A ledger on PostgreSQL: URLs, secrets, roles, owners, what nobody may change."""

from __future__ import annotations

import secrets
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from dpflow.exceptions import (
    ConfigurationError,
    LedgerCorrupt,
    LedgerMissing,
    LedgerUnavailable,
)
from dpflow.ledger import views
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import create_ledger, open_ledger, roles_script
from dpflow.ledger.storage.base import SCHEMA_VERSION
from dpflow.ledger.storage.postgres import PostgresStorage
from dpflow.ledger.storage.postgres_owners import SessionOwners
from tests.ledger.forging import settle_for
from tests.ledger.processes import Child
from tests.ledger.support import audit, edit, granted, ledger_on, make_policy, read
from tests.postgres import server

SECRET = "s3cr3t/w@rd"


def as_user(url: str, user: str) -> str:
    """Return the URL of a database for another user."""
    return url.replace("//postgres@", f"//{user}@")


# Making and opening


def test_a_ledger_is_made_once(ledger: Ledger, postgres_url: str) -> None:
    """A second one in the same database is refused, and the first goes on."""
    granted(ledger, "0.1")
    with pytest.raises(ConfigurationError, match="already"):
        create_ledger(postgres_url)
    again = open_ledger(postgres_url)
    assert again.id == ledger.id
    assert len(views.history(again)) == 2
    again.close()


def test_two_who_make_a_ledger_at_once_make_one(postgres_url: str) -> None:
    """The other is told."""
    told: list[str] = []

    def make() -> None:
        try:
            told.append(create_ledger(postgres_url).id)
        except (ConfigurationError, LedgerCorrupt) as error:
            told.append(type(error).__name__)

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told.count("ConfigurationError") == 3
    assert read(postgres_url, "SELECT count(*) FROM ledger") == [(1,)]


def test_no_ledger_is_missing(postgres_url: str) -> None:
    """Nothing is made by opening; neither is a database."""
    for url in (postgres_url, postgres_url.replace("?", "x?")):
        with pytest.raises(LedgerMissing, match="dpflow ledger init"):
            open_ledger(url)
    assert read(postgres_url, "SELECT to_regnamespace('dpflow')") == [(None,)]


def test_a_newer_schema_is_refused_at_each_write(
    ledger: Ledger, postgres_url: str
) -> None:
    """Also by who had opened it before."""
    edit(postgres_url, f"UPDATE ledger SET min_writer = {SCHEMA_VERSION + 1}")
    with pytest.raises(LedgerUnavailable, match="Upgrade dpflow"):
        granted(ledger, "0.1")
    with pytest.raises(LedgerUnavailable, match="Upgrade dpflow"):
        open_ledger(postgres_url)


def test_a_ledger_of_another_version_is_refused(
    postgres_url: str,
) -> None:
    """Its tables are other ones; the message says what to do with it."""
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE SCHEMA dpflow")
        connection.execute("CREATE TABLE dpflow.ledger (schema_version bigint)")
        connection.execute("INSERT INTO dpflow.ledger VALUES (7)")
    with pytest.raises(LedgerUnavailable, match="another version of dpflow"):
        open_ledger(postgres_url)
    with pytest.raises(ConfigurationError, match="already"):
        create_ledger(postgres_url)


def test_both_kinds_of_database_have_the_same_tables(
    ledger: Ledger, postgres_url: str, tmp_path: Path
) -> None:
    """Column by column."""
    create_ledger(f"sqlite:///{tmp_path}/ledger.db").close()
    sql = (
        "SELECT table_name, column_name FROM information_schema.columns WHERE "
        "table_schema = 'dpflow'"
    )
    columns = set(read(postgres_url, sql))
    tables = {table for table, _ in columns}
    path = tmp_path / "ledger.db"
    assert tables == {
        name
        for (name,) in read(path, "SELECT name FROM sqlite_master WHERE type = 'table'")
    }
    for table in tables:
        told = read(path, f"SELECT name FROM pragma_table_xinfo('{table}')")
        assert {name for (name,) in told} == {c for t, c in columns if t == table}


# Owners


def await_end(owners: SessionOwners, name: str) -> None:
    """Wait until the server has ended the session behind a name."""
    until = time.monotonic() + 5
    while owners.alive(name):
        assert time.monotonic() < until


def test_an_owner_lives_until_it_is_closed(postgres_url: str) -> None:
    """One name per object, alive for others while its session stands."""
    first, second = (SessionOwners(PostgresStorage(postgres_url).server) for _ in "ab")
    assert first.mine() == first.mine() != second.mine()
    name = first.mine()
    held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
    assert read(postgres_url, held) == [(2,)]

    def look(say: Callable[[str], None]) -> None:
        owners = SessionOwners(PostgresStorage(postgres_url).server)
        say(str([owners.alive(owner) for owner in (name, "0" * 32, "no name", "")]))

    assert Child(look).end() == (0, ["[True, False, False, False]"])
    first.close()
    await_end(second, name)
    second.close()


def test_many_names_do_not_collide(postgres_url: str) -> None:
    """The two halves of a lock's number are looked up as they were taken."""
    asking = SessionOwners(PostgresStorage(postgres_url).server)
    for name in ("f" * 32, "0" * 31 + "1", "7fffffff80000000" * 2, "8" + "0" * 31):
        holder = SessionOwners(PostgresStorage(postgres_url).server)
        holder.mine()
        assert not asking.alive(name)
        key = int.from_bytes(bytes.fromhex(name)[:8], signed=True)
        with psycopg.connect(postgres_url) as connection:
            connection.execute("SELECT pg_advisory_lock_shared(%s)", (key,))
            assert asking.alive(name)
        await_end(asking, name)
        holder.close()
    asking.close()


def test_an_owner_of_another_database_is_not_here(postgres_url: str) -> None:
    """Locks belong to a database, as a ledger does."""
    elsewhere = server().new_database()
    with psycopg.connect(elsewhere) as connection:
        connection.execute("SELECT pg_advisory_lock_shared(1)")
        owners = SessionOwners(PostgresStorage(postgres_url).server)
        assert not owners.alive("0" * 15 + "1" + "0" * 16)
        owners.close()
    server().drop(elsewhere)


# Roles


@pytest.fixture
def roles(ledger: Ledger, postgres_url: str) -> Iterator[dict[str, str]]:
    """Give the URLs of a login for each role, on a ledger with some history."""
    name = f"u{secrets.token_hex(4)}"
    short = ("owner", "operator", "worker", "reader")
    ledger.settle(granted(ledger, "0.1", key="week/1"), value='"secret"')
    granted(ledger, "0.1", key="week/2")
    edit(
        postgres_url,
        "INSERT INTO run (id, refused, halted) VALUES ('r', '[]', '[]')",
        "INSERT INTO claim (name, said) VALUES ('c', '{}')",
    )
    for _ in range(2):
        edit(postgres_url, "SET search_path = public", roles_script())
    for role in short:
        create = f"CREATE ROLE {name}_{role} LOGIN"
        edit(postgres_url, create, f"GRANT dpflow_{role} TO {name}_{role}")
    yield {role: as_user(postgres_url, f"{name}_{role}") for role in short}
    server().run(*(f"DROP ROLE {name}_{role}" for role in short))


WORKER_MAY_NOT = [
    "UPDATE entry SET postings = '{}'",
    "DELETE FROM entry",
    "TRUNCATE entry",
    "ALTER TABLE entry DISABLE TRIGGER ALL",
    "DROP TABLE entry",
    "DELETE FROM book",
    "DELETE FROM account",
    "DELETE FROM charge",
    "DELETE FROM granted",
    "DELETE FROM run",
    "DELETE FROM claim",
    "DELETE FROM term",
    "UPDATE term SET entry = 1",
    "INSERT INTO term (book, number, entry) VALUES ('a', 2, 1)",
    "UPDATE book SET name = 'b'",
    "UPDATE book SET terms = 2",
    "UPDATE account SET book = 'b'",
    "UPDATE charge SET key = 'other'",
    "UPDATE charge SET epoch = 7",
    "UPDATE release SET key = 'other'",
    "UPDATE ledger SET min_writer = 1",
    "INSERT INTO row (key, value) VALUES ('epoch:', '[7]')",
    "UPDATE ledger SET release_secret = ''",
    "CREATE TABLE dpflow.mine (x int)",
]


def test_a_worker_may_not(roles: dict[str, str]) -> None:
    """Whatever lets it run more than the policy says, or hides that it did."""
    for statement in WORKER_MAY_NOT:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            edit(roles["worker"], statement)


def test_a_worker_writes_no_entry_of_an_officer(roles: dict[str, str]) -> None:
    """Who opens a term or unfreezes needs more than the right to append."""
    for kind in ("open", "tighten", "unfreeze", "repair", "checkpoint"):
        forged = (
            "INSERT INTO entry (book, number, kind, postings, body, at, writer, hash) "
            f"SELECT book, number + 100, '{kind}', '{{}}', '{{}}', at, writer, hash "
            "FROM entry WHERE number = 1"
        )
        with pytest.raises(
            psycopg.errors.InsufficientPrivilege, match="only an operator"
        ):
            edit(roles["worker"], forged)


WORKER_MAY_NOT_UNDO = [
    "DELETE FROM release WHERE state = 'settled'",
    "UPDATE release SET value = 'null' WHERE state = 'settled'",
    "UPDATE release SET digest = '' WHERE state = 'settled'",
    "UPDATE release SET state = 'claimed' WHERE state = 'settled'",
    "UPDATE release SET state = 'withdrawn' WHERE state = 'settled'",
    "UPDATE release SET state = 'claimed', charge = 'mine' WHERE state = 'settled'",
    "UPDATE charge SET state = 'open' WHERE state = 'settled'",
    "UPDATE charge SET places = '{}' WHERE state = 'settled'",
    "UPDATE book SET number = number - 1",
    "UPDATE account SET entry = entry - 1",
]


def test_a_worker_may_not_undo(roles: dict[str, str]) -> None:
    """A settled release stays, an ended charge stays ended: triggers see to it."""
    for statement in WORKER_MAY_NOT_UNDO:
        with pytest.raises(psycopg.IntegrityError):
            edit(roles["worker"], statement)


def test_a_worker_makes_no_settled_release_a_claim_to_delete(
    roles: dict[str, str],
) -> None:
    """Only a new charge that makes it anew claims it; then nothing is lost unseen."""
    claim = (
        "UPDATE release SET state = 'claimed', charge = (SELECT id FROM charge WHERE "
        "state = 'open' LIMIT 1) WHERE state = 'settled'"
    )
    with pytest.raises(psycopg.IntegrityError, match="claimed by a new charge only"):
        edit(roles["worker"], claim)


def test_a_worker_may_not_unfreeze(roles: dict[str, str], postgres_url: str) -> None:
    """An officer may; what runs already may be settled meanwhile."""
    edit(postgres_url, "UPDATE book SET frozen = '{}'")
    unfreeze = "UPDATE book SET frozen = NULL"
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="only an operator"):
        edit(roles["worker"], unfreeze)
    edit(roles["operator"], unfreeze)
    edit(roles["worker"], "UPDATE book SET frozen = '{}'")


def test_a_worker_runs_steps(roles: dict[str, str], postgres_url: str) -> None:
    """All of a charge's life, replays and claims, on a term that is open."""
    worker = open_ledger(roles["worker"])
    for call in (
        lambda: worker.settle(granted(worker, "0.1", key="week/3"), value="1"),
        lambda: worker.void(granted(worker, "0.1", key="week/4"), reason="test"),
        lambda: worker.settle(granted(worker, "0.1", key="week/5"), outcome="failed"),
        lambda: granted(worker, "0.1"),
    ):
        call()
    assert len(views.history(worker)) == 11
    worker.close()
    # What the fixture wrote by hand, no entry says.
    edit(postgres_url, "DELETE FROM run WHERE id = 'r'", "DELETE FROM claim")
    audit(postgres_url)


def test_a_worker_that_settles_anothers_charge_for_nothing_is_found(
    roles: dict[str, str], postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its right to append is enough to write it, and `verify` refuses it for good."""
    edit(postgres_url, "DELETE FROM run WHERE id = 'r'", "DELETE FROM claim")
    worker = open_ledger(roles["worker"])
    granted(worker, "0.1")
    (dead, _) = sorted(views.open_reservations(worker), key=lambda each: each.at)
    assert verify(worker).fine
    settle_for(worker, dead.reservation, monkeypatch, 0, reported=0)
    (found,) = verify(worker).bad
    assert "settled for less than its outcome costs" in found.problem
    worker.close()
    worker = open_ledger(roles["worker"])
    with pytest.raises(LedgerCorrupt, match="settled for less"):
        granted(worker, "0.1")
    worker.close()


def test_a_worker_opens_no_term(roles: dict[str, str]) -> None:
    """Nothing is charged to a dataset whose policy no officer applied."""
    worker = open_ledger(roles["worker"])
    with pytest.raises(LedgerUnavailable, match=r"open a term.*dpflow_operator"):
        granted(worker, "0.1", policies=[make_policy("b")])
    worker.close()
    officer = open_ledger(roles["operator"])
    granted(officer, "0.1", policies=[make_policy("b")])
    officer.close()
    worker = open_ledger(roles["worker"])
    granted(worker, "0.1", policies=[make_policy("b")])
    worker.close()


def test_a_reader_reads(roles: dict[str, str]) -> None:
    """Accounts, journal and who lives, but no value, and it charges nothing."""
    reader = open_ledger(roles["reader"])
    assert [view.id for view in views.accounts(reader)] == ["a#1"]
    assert len(views.history(reader)) == 4
    assert [each.alive for each in views.open_reservations(reader)] == [True]
    with pytest.raises(LedgerUnavailable, match="may not do this"):
        granted(reader, "0.1")
    with pytest.raises(LedgerUnavailable, match="may not do this"):
        reader.digests.of("a")
    assert not verify(reader, sign=False).values
    reader.close()
    for statement in (
        "SELECT output FROM row",
        "SELECT * FROM row",
        "SELECT release_secret FROM ledger",
        "UPDATE book SET frozen = '{}'",
        "INSERT INTO book (name, number, hash, ran, terms) VALUES ('x', 0, '', '', 0)",
        "SELECT take_turn()",
        "SELECT 1 FROM dpflow.ledger FOR UPDATE",
        "SELECT key FROM dpflow.row FOR SHARE",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            edit(roles["reader"], statement)


def test_a_reader_stops_no_step(roles: dict[str, str]) -> None:
    """Whatever it locks; a worker that has the turn is the control."""
    storage = PostgresStorage(roles["worker"], lock_seconds=0.2)
    worker = ledger_on(storage)
    locks = (
        "LOCK TABLE dpflow.entry IN ACCESS SHARE MODE; SELECT key FROM dpflow.row; "
        "SELECT pg_advisory_lock(key) FROM generate_series(-9, 9) AS key"
    )
    with psycopg.connect(roles["reader"]) as session:
        session.execute(locks)
        granted(worker, "0.1")
    with psycopg.connect(roles["worker"]) as session:
        session.execute("SELECT dpflow.take_turn()")
        with pytest.raises(LedgerUnavailable, match="holds the lock"):
            granted(worker, "0.1")
    worker.close()


LOCK_OF_A_NAME = "SELECT pg_advisory_lock{shared}(%s)"


def test_a_reader_holds_no_dead_workers_name(roles: dict[str, str]) -> None:
    """Any session may take such a lock; only a login that may charge keeps a key."""
    dead = uuid.uuid4().hex
    key = int.from_bytes(bytes.fromhex(dead)[:8], signed=True)
    owners = SessionOwners(PostgresStorage(roles["worker"]).server)
    for role, alive in (("reader", False), ("worker", True)):
        with psycopg.connect(roles[role]) as session:
            session.execute(LOCK_OF_A_NAME.format(shared="_shared").encode(), [key])
            assert owners.alive(dead) is alive
    owners.close()


def test_a_reader_that_takes_a_workers_name_is_told_of(roles: dict[str, str]) -> None:
    """The message speaks of the name, and of no dataset."""
    server = PostgresStorage(roles["worker"], lock_seconds=0.2).server
    owners = SessionOwners(server)
    key = int.from_bytes(bytes.fromhex(owners.mine())[:8], signed=True)
    owners._session.drop()
    with psycopg.connect(roles["reader"]) as session:
        session.execute(LOCK_OF_A_NAME.format(shared="").encode(), [key])
        with pytest.raises(LedgerUnavailable, match="the name of this process"):
            owners.mine()
    assert owners.mine()
    owners.close()


def test_not_even_the_owner_edits_the_journal(roles: dict[str, str]) -> None:
    """It would have to drop the triggers first, which is no accident."""
    for statement in (
        "UPDATE entry SET postings = '{}'",
        "DELETE FROM entry",
        "TRUNCATE entry",
    ):
        with pytest.raises(psycopg.IntegrityError, match="append-only"):
            edit(roles["owner"], statement, locked=True)
    edit(roles["owner"], "CREATE TABLE mine (x int)", "DROP TABLE mine")


def test_strangers_see_nothing(ledger: Ledger, postgres_url: str) -> None:
    """A login without a role of the ledger is refused at once."""
    name = f"u{secrets.token_hex(4)}"
    server().run(f"CREATE ROLE {name} LOGIN")
    with pytest.raises(LedgerUnavailable, match="may not do this"):
        open_ledger(as_user(postgres_url, name))
    server().run(f"DROP ROLE {name}")


def test_what_a_database_sets_for_its_sessions_is_not_in_the_way(
    postgres_url: str,
) -> None:
    """Neither isolation, nor how texts are read."""
    name = postgres_url.partition("@/")[2].partition("?")[0]
    for setting in (
        "default_transaction_isolation = 'serializable'",
        "default_transaction_read_only = on",
        "standard_conforming_strings = off",
    ):
        server().run(f"ALTER DATABASE {name} SET {setting}")
    ledger = create_ledger(postgres_url)
    ledger.settle(granted(ledger, "0.1"))
    ledger.close()
    audit(postgres_url)
