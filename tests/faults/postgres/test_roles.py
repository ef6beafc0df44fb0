"""Logins of a ledger on PostgreSQL: what each may do, and what a hostile one tries."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from dpflow.ledger.entry import Columns, Entry, entry_hash, written
from dpflow.ledger.journal import KINDS
from dpflow.ledger.storage.postgres import PostgresStorage

from dpflow.exceptions import LedgerUnavailable
from dpflow.ledger import views
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import open_ledger, roles_script
from dpflow.ledger.tables.postgres_connection import SessionOwners
from tests.ledger.support import (
    audit,
    edit,
    granted,
    ledger_on,
    make_policy,
    read,
    waiting,
)
from tests.people.places import step
from tests.postgres import server

DENIED = psycopg.errors.InsufficientPrivilege


@pytest.fixture
def roles(ledger: Ledger, postgres_url: str) -> Iterator[dict[str, str]]:
    """Give the URLs of a login for each role, on a ledger with some history."""
    name = f"u{secrets.token_hex(4)}"
    short = ("owner", "operator", "worker", "reader")
    ledger.settle(granted(ledger, "0.1", key="week/1"), value='"secret"')
    granted(ledger, "0.1", key="week/2")
    for _ in range(2):
        edit(postgres_url, "SET search_path = public", roles_script())
    for role in short:
        create = f"CREATE ROLE {name}_{role} LOGIN IN ROLE dpflow_{role}"
        edit(postgres_url, create)
    yield {role: as_user(postgres_url, f"{name}_{role}") for role in short}
    server().run(*(f"DROP ROLE {name}_{role}" for role in short))


def as_user(url: str, user: str) -> str:
    """Return the URL of a database for another user."""
    return url.replace("//postgres@", f"//{user}@")


def next_entry(url: str, kind: str, charge: str | None = None) -> Columns:
    """Return the columns of an entry that continues the journal under a login."""
    newest = "SELECT number, hash FROM entry ORDER BY number DESC LIMIT 1"
    ((number, previous),) = read(url, newest)
    login = url.partition("//")[2].partition("@")[0]
    draft = Entry(number + 1, kind, charge, {}, "t", login, {})
    return written(previous, draft, {"book/a": None}).columns


def insert(url: str, *entries: Columns, end: str = "") -> None:
    """Insert entries in one statement, as a login may without dpflow."""
    values = ", ".join(["(%s, %s, %s, %s, %s, %s, %s, %s)"] * len(entries))
    with psycopg.connect(url) as connection:
        sql = f"INSERT INTO dpflow.entry VALUES {values} {end}"
        connection.execute(sql.encode(), [each for entry in entries for each in entry])


# Workers


def test_a_worker_runs_steps(roles: dict[str, str], postgres_url: str) -> None:
    """All of a charge's life, replays and claims, on a term that is open."""
    worker = open_ledger(roles["worker"])
    worker.settle(granted(worker, "0.1", key="week/3"), value="1")
    worker.void(granted(worker, "0.1", key="week/4"), reason="test")
    worker.settle(granted(worker, "0.1", key="week/5"), outcome="failed")
    granted(worker, "0.1")
    worker.close()
    logins = {login for (login,) in read(postgres_url, "SELECT writer FROM entry")}
    assert logins == {"postgres", worker.storage.writer}
    assert worker.storage.writer in roles["worker"]
    audit(postgres_url)


def test_a_worker_charges_people(
    roles: dict[str, str], ledger: Ledger, tmp_path: Path
) -> None:
    """Under its login the steps of a store are noted, too, and others go on from it."""
    assert step(ledger, tmp_path, 0.5, 0.5, 0.5) == [True, True, True]
    worker = open_ledger(roles["worker"])
    assert step(worker, tmp_path, 0.4, 0.6, 0.4) == [True, False, True]
    worker.close()
    assert step(ledger, tmp_path, 0.2, 0.2, 0.0) == [False, True, True]
    assert verify(ledger).fine


def test_a_worker_may_not(roles: dict[str, str]) -> None:
    """Whatever lets it run more than the policy says, or hides that it did."""
    for table, column in (("entry", "at"), ("tag", "key"), ("ledger", "secret")):
        for statement in (
            f"UPDATE {table} SET {column} = ''",
            f"DELETE FROM {table}",
            f"TRUNCATE {table}",
            f"ALTER TABLE {table} DISABLE TRIGGER ALL",
        ):
            with pytest.raises(DENIED):
                edit(roles["worker"], statement)
    for statement in (
        "UPDATE kept SET value = ''",
        "TRUNCATE kept",
        "INSERT INTO tag (key, number) VALUES ('account/a#1', 1000000)",
        "CREATE TABLE dpflow.mine (x int)",
        "SELECT dpflow.is_operators()",
    ):
        with pytest.raises(DENIED):
            edit(roles["worker"], statement)


def test_a_worker_appends_entries_that_continue_the_journal(
    roles: dict[str, str], postgres_url: str
) -> None:
    """Gaps, another's name, a wrong hash and a key named twice are refused."""
    worker = roles["worker"]
    good = next_entry(worker, "refuse")
    hash_before = read(postgres_url, "SELECT hash FROM entry ORDER BY number DESC")[0][
        0
    ]

    def hashed(**changed: Any) -> Columns:
        columns = good._replace(**changed)
        return columns._replace(hash=entry_hash(hash_before, columns))

    for wrong, match in (
        (hashed(number=good.number + 1), "does not continue the journal"),
        (hashed(number=good.number - 1), "does not continue the journal"),
        (good._replace(hash="0" * 64), "does not continue the journal"),
        (good._replace(body='{"more":1}'), "does not continue the journal"),
        (hashed(writer="postgres"), "under another name"),
        *((hashed(kind=kind), "operator's") for kind in KINDS if KINDS[kind].operator),
    ):
        with pytest.raises(DENIED, match=match):
            insert(worker, wrong)
    with pytest.raises(DENIED, match="does not continue the journal"):
        insert(worker, good, good)
    for rows in ('{"x":1,"x":2}', "[]", "no JSON"):
        with pytest.raises(psycopg.DatabaseError):
            insert(worker, hashed(rows=rows))
    for wrong in (hashed(at="t\nx"), hashed(kind="refuse\n"), hashed(charge="c\n")):
        with pytest.raises(psycopg.errors.CheckViolation):
            insert(worker, wrong)
    ((made,),) = read(postgres_url, "SELECT min(charge) FROM entry WHERE charge > ''")
    insert(worker, hashed(kind="reserve", charge=made), end="ON CONFLICT DO NOTHING")
    tagged = f"SELECT key FROM tag WHERE number = {good.number}"
    assert read(postgres_url, tagged) == []
    # The control: the good one is taken, and the database tags it.
    insert(worker, good)
    assert read(postgres_url, tagged) == [("book/a",)]
    for kind in ("open", "tighten", "unfreeze", "adjust", "repair"):
        insert(roles["operator"], next_entry(roles["operator"], kind))


def test_a_worker_ends_no_charge_of_another_login(
    roles: dict[str, str], postgres_url: str
) -> None:
    """Neither by a forged settlement nor by a void."""
    charges = "SELECT id FROM charge WHERE state = 'open'"
    ((charge,),) = read(postgres_url, charges)
    for kind in ("settle", "void"):
        for name in (charge, "0" * 32):
            with pytest.raises(DENIED, match="the charge of another login"):
                insert(roles["worker"], next_entry(roles["worker"], kind, name))
    insert(postgres_url, next_entry(postgres_url, "void", charge))


def test_the_owner_removes_an_entry_that_does_not_follow(
    roles: dict[str, str], postgres_url: str
) -> None:
    """`verify` names it, the roles' script prints how, and the journal goes on."""
    bad = next_entry(roles["worker"], "freeze")
    insert(roles["worker"], bad)
    worker = open_ledger(roles["worker"])
    assert verify(worker).bad[0].entry == bad.number
    worker.close()
    lines = [each.removeprefix("--     ") for each in roles_script().split("\n")]
    remove = "\n".join(lines[lines.index("BEGIN;") : lines.index("COMMIT;") + 1])
    remove = remove.replace(">= N", f">= {bad.number}")
    edit(roles["owner"], remove, locked=True)
    worker = open_ledger(roles["worker"])
    granted(worker, "0.1")
    assert verify(worker).fine
    worker.close()
    with pytest.raises(psycopg.IntegrityError, match="append-only"):
        edit(roles["owner"], "DELETE FROM entry", locked=True)
    audit(postgres_url)


def test_a_worker_opens_no_term(roles: dict[str, str]) -> None:
    """Nothing is charged to a dataset whose policy no operator applied."""
    worker, operator = (open_ledger(roles[role]) for role in ("worker", "operator"))
    with pytest.raises(LedgerUnavailable, match=r"kind open.*dpflow_operator"):
        granted(worker, "0.1", policies=[make_policy("b")])
    for opened in (operator, worker):
        granted(opened, "0.1", policies=[make_policy("b")])
        opened.close()


def test_not_even_the_owner_edits_the_journal(roles: dict[str, str]) -> None:
    """It would have to drop the triggers first, which is no accident."""
    for table, column in (("entry", "at"), ("tag", "key")):
        for statement in (
            f"UPDATE {table} SET {column} = ''",
            f"DELETE FROM {table}",
            f"TRUNCATE {table}",
        ):
            with pytest.raises(psycopg.IntegrityError, match="append-only"):
                edit(roles["owner"], statement, locked=True)
    with pytest.raises(psycopg.IntegrityError, match="never changed"):
        edit(roles["owner"], "UPDATE kept SET value = ''", locked=True)
    edit(roles["owner"], "CREATE TABLE mine (x int)", "DROP TABLE mine")


# Readers


def test_a_reader_reads(roles: dict[str, str]) -> None:
    """Accounts, journal and who lives, but no value, and it charges nothing."""
    reader = open_ledger(roles["reader"])
    assert [view.id for view in views.accounts(reader)] == ["a#1"]
    assert len(views.history(reader)) == 4
    assert [each.alive for each in views.open_reservations(reader)] == [True]
    with reader.storage.read() as reading:
        (key,) = reading.sizes(name[8:] for name in reading.names("release/"))
        assert reading.sizes([key]) == {key: None}
        assert [value for _, value, _ in reading.kept()] == [None]
    for call in (lambda: granted(reader, "0.1"), lambda: reader.digests.of("a")):
        with pytest.raises(LedgerUnavailable, match="may not do this"):
            call()
    assert not verify(reader).values
    reader.close()
    for statement in (
        "SELECT value FROM kept",
        "SELECT * FROM kept",
        "SELECT secret FROM ledger",
        "INSERT INTO kept VALUES ('x', 'y')",
        "DELETE FROM kept",
        "SELECT take_turn()",
        "SELECT 1 FROM dpflow.ledger FOR UPDATE",
        "SELECT key FROM dpflow.tag FOR SHARE",
    ):
        with pytest.raises(DENIED):
            edit(roles["reader"], statement)
    with pytest.raises(DENIED):
        insert(roles["reader"], next_entry(roles["reader"], "refuse"))


def test_a_reader_stops_no_step(roles: dict[str, str]) -> None:
    """Whatever it locks; a worker that has the turn is the control."""
    storage = waiting(PostgresStorage(roles["worker"]), 0.2)
    worker = ledger_on(storage)
    locks = (
        "LOCK TABLE dpflow.entry, dpflow.tag IN ACCESS SHARE MODE; "
        "SELECT key FROM dpflow.kept; "
        "SELECT pg_advisory_lock(key) FROM generate_series(-999, 999) AS key"
    )
    with psycopg.connect(roles["reader"]) as session:
        session.execute(locks)
        granted(worker, "0.1")
    with psycopg.connect(roles["worker"]) as session:
        session.execute("SELECT dpflow.take_turn()")
        with pytest.raises(LedgerUnavailable, match="holds the lock"):
            granted(worker, "0.1")
    entry, slots = next_entry(roles["worker"], "refuse"), ", ".join(["%s"] * 8)
    with psycopg.connect(roles["worker"]) as session:
        session.execute(f"INSERT INTO dpflow.entry VALUES ({slots})".encode(), entry)
        with pytest.raises(LedgerUnavailable, match="holds the lock"):
            granted(worker, "0.1")
        session.rollback()
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


def test_a_reader_that_takes_a_workers_name_is_reported(roles: dict[str, str]) -> None:
    """The message speaks of the name, and of no dataset."""
    server = waiting(PostgresStorage(roles["worker"]), 0.2).server
    owners = SessionOwners(server)
    key = int.from_bytes(bytes.fromhex(owners.mine())[:8], signed=True)
    owners._server.drop()
    with psycopg.connect(roles["reader"]) as session:
        session.execute(LOCK_OF_A_NAME.format(shared="").encode(), [key])
        with pytest.raises(LedgerUnavailable, match="the name of this process"):
            owners.mine()
    assert owners.mine()
    owners.close()


def test_strangers_see_nothing(ledger: Ledger, postgres_url: str) -> None:
    """A login without a role of the ledger is refused immediately."""
    name = f"u{secrets.token_hex(4)}"
    server().run(f"CREATE ROLE {name} LOGIN")
    with pytest.raises(LedgerUnavailable, match="may not do this"):
        open_ledger(as_user(postgres_url, name))
    server().run(f"DROP ROLE {name}")
