"""Logins of a ledger on PostgreSQL: what each role may, by right, table and column."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from importlib.resources import files

import psycopg
import pytest

from dpflow import PureDP
from dpflow.exceptions import DpflowError, LedgerUnavailable
from dpflow.ledger.audit.copies import export_lines
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import create_ledger, open_ledger
from dpflow.ledger.requests import Replayed
from dpflow.ledger.tables.columns import TABLES, tables
from dpflow.ledger.tables.postgres import PostgresDatabase
from dpflow.ledger.tables.postgres_connection import Server, SessionOwners
from dpflow.ledger.views import accounts, history
from dpflow.ledger.views.releases import releases
from dpflow.ledger.views.spending import spending
from tests.ledger.support import (
    BASIC,
    charged,
    edit,
    granted,
    ledger_on,
    make_policy,
    read,
    request,
    waiting,
)
from tests.people.places import step
from tests.postgres import name_of, server
from tests.tables import read_tables

DENIED = psycopg.errors.InsufficientPrivilege
ROLES = ("owner", "operator", "worker", "reader")
#: Who may insert and update; who may read a column that not all may read; attacks.
CASES = read_tables(__file__)
INSERT, UPDATE, SELECT = CASES["insert"], CASES["update"], CASES["select"]


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[str, str]]:
    """Give the URLs of a login for each role, on a ledger with some history."""
    url, name = server().new_database(), f"u{secrets.token_hex(4)}"
    with closing(create_ledger(url, witness="none")) as ledger:
        ledger.settle(granted(ledger, key="k"), value='"secret"')
        granted(ledger, "0.01")
        script = files("dpflow.ledger.tables").joinpath("roles.sql").read_text("utf-8")
        server().run(script, script, database=name_of(url))
    logins = {"super": url}
    for role in ROLES:
        server().run(f"CREATE ROLE {name}_{role} LOGIN IN ROLE dpflow_{role}")
        logins[role] = url.replace("//postgres@", f"//{name}_{role}@", 1)
    yield logins
    server().drop(url)
    server().run(*(f"DROP ROLE {name}_{role}" for role in ROLES))


@pytest.fixture
def worker(urls: dict[str, str]) -> Iterator[Ledger]:
    """Give the ledger as a worker has it."""
    with closing(open_ledger(urls["worker"], witness="none")) as ledger:
        yield ledger


@pytest.mark.parametrize("role", ["operator", "worker", "reader"])
def test_each_right_on_each_column(urls, role):
    """As the table says; nobody deletes, truncates, or changes a table."""
    rights: dict[str, Sequence[str]] = {}
    for table in tables().values():
        name = f"dpflow.{table.name}"
        for text in ("DELETE FROM {}", "TRUNCATE {}", "ALTER TABLE {} ADD x int"):
            rights[text.format(name)] = ()
        for column in table.columns:
            place = f"{table.name}.{column}"
            who = UPDATE.get(place, UPDATE[table.name])
            rights |= {
                f"INSERT INTO {name} ({column}) VALUES (NULL)": INSERT[table.name],
                f"UPDATE {name} SET {column} = {column}": who,
                f"SELECT {column} FROM {name} LIMIT 1": SELECT.get(place, ROLES),
            }
    with psycopg.connect(urls[role], autocommit=True) as session:
        wrong = [
            statement
            for statement, who in rights.items()
            if is_permitted(session, statement) != (role in who)
        ]
    assert wrong == []


def is_permitted(session: psycopg.Connection, statement: str) -> bool:
    """Return True if the server checks more than the right to run a statement."""
    try:
        with session.transaction():
            session.execute(statement.encode())
            raise psycopg.Rollback
    except DENIED as error:
        # A trigger's refusal comes after the right was there.
        return "may not" in str(error) or "append-only" in str(error)
    except psycopg.Error:
        return True
    return True


def test_a_worker_runs_steps(worker):
    """All of a charge's life, replays, people and freezes."""
    answer = worker.reserve(request(worker, key="k"))
    assert isinstance(answer, Replayed)
    charged(worker, "0.01")
    worker.void(granted(worker, "0.01"), reason="x")
    failed = request(worker, "0.01", key="f")
    worker.reserve(failed)
    worker.settle(failed.reservation, outcome="failed")
    again = request(worker, "0.01", key="f")
    worker.reserve(again)
    worker.settle(again.reservation, value="2")
    assert worker.withdraw(again.release_key or "", digest=None, reason="x") is False
    assert verify(worker).bad == []


def test_a_worker_freezes_and_an_operator_ends_that(worker, urls):
    """Who runs steps may stop all, and may not start them again."""
    assert worker.freeze("a", reason="x")
    with pytest.raises(DpflowError):
        granted(worker, "0.01")
    with pytest.raises(LedgerUnavailable, match="operator"):
        worker.freeze("a", reason="x", unfreeze=True)
    with closing(open_ledger(urls["operator"], witness="none")) as operator:
        assert operator.freeze("a", reason="x", unfreeze=True)
        granted(worker, "0.01")
        assert verify(operator).bad == []


def test_a_worker_opens_no_term(worker):
    """Its first step on a dataset says that an operator applies the policy."""
    with pytest.raises(LedgerUnavailable, match="operator"):
        granted(worker, "0.01", policies=[make_policy("new")])
    with pytest.raises(LedgerUnavailable):
        worker.apply(make_policy("a", budget="{epsilon: 0.9}"), reason="x")
    with pytest.raises(LedgerUnavailable):
        worker.charge_prior(BASIC, PureDP(epsilon="0.01"), reason="x")


def test_an_operator_does_the_rest(urls):
    """Terms, charges by hand and forfeits."""
    with closing(open_ledger(urls["operator"], witness="none")) as operator:
        policy = make_policy(f"d{uuid.uuid4().hex[:6]}")
        operator.apply(policy)
        charge = granted(operator, "0.01", policies=[policy])
        operator.amend(charge, PureDP(epsilon="0.02"), reason="x")
        operator.charge_prior(policy, PureDP(epsilon="0.01"), reason="x", evidence="e")
        assert verify(operator).bad == []


@pytest.mark.parametrize("what", CASES["attacks"])
def test_a_worker_may_not(urls, what):
    """Whatever lets it run more than the policy says, or hides that it did."""
    with pytest.raises(DENIED):
        edit(urls["worker"], CASES["attacks"][what], locked=True)


#: All that a function could change.
DATASETS = "SELECT * FROM dataset ORDER BY name"


@pytest.mark.promise("forged-entry")
@pytest.mark.parametrize(("more", "writer", "kind"), CASES["entries"])
def test_a_worker_appends_no_such_entry(urls, more, writer, kind):
    """Gaps, another's name and kinds of operators; an operator may write these."""
    statement = CASES["entry"].format(more=more, writer=writer, kind=kind)
    with pytest.raises(DENIED):
        edit(urls["worker"], statement, locked=True)
    if kind != "reserve":
        with psycopg.connect(urls["operator"]) as session:
            session.execute(statement.encode())
            session.rollback()


@pytest.mark.parametrize(("frozen", "reason"), [("'{}'", "'{1}'"), ("NULL", "NULL")])
def test_a_frozen_dataset_is_opened_by_no_function(urls, frozen, reason):
    """The function of freezes writes a row that is open, and none without a reason."""
    edit(urls["super"], f"UPDATE dataset SET frozen = {frozen} WHERE name = 'a'")
    before = read(urls["super"], DATASETS)
    for text in ("NULL", reason):
        call = f"SELECT dpflow.freeze('a', {text}, 1, 'h', 'm')"
        edit(urls["worker"], call, locked=True)
    assert read(urls["super"], DATASETS) == before
    edit(urls["super"], "UPDATE dataset SET frozen = NULL WHERE name = 'a'")


def test_a_reader_reads_all_but_secrets(urls, worker):
    """It verifies the ledger but for values, and reads every view.

    Status, spending, history, an export, and releases with lengths of values.
    """
    worker.settle(granted(worker, "0.001", key="a value"), value="zyzzy")
    with closing(open_ledger(urls["reader"], witness="none", read_only=True)) as reader:
        result = verify(reader)
        assert result.bad == []
        assert not result.values
        listed = releases(reader, "a")
        assert [item.size for item in listed if item.key == "a value"] == [5]
        assert accounts(reader, "a")
        assert history(reader, "a", limit=5)
        lines = [*export_lines(reader)]
        assert len(lines) > len(TABLES)
        assert not [line for line in lines if "zyzzy" in line]
        assert spending(reader, "a", ("step", "cost", "release", "who"), term=1)[0]


@pytest.mark.storages("sqlite", "postgres")
def test_declared_texts_of_any_characters_are_no_obstacle_to_views(ledger):
    """PostgreSQL reads no document with a NUL or half of a surrogate pair as JSON."""
    for text in ("a\x00", "\ud800", "\\\ud83d", "\U0001f600", "\\u0000"):
        charged(ledger, "0.001", body={"versions": [text]})
    (group,) = spending(ledger, "a", ("step", "cost", "who"), term=1)[0]
    assert (group.charges, group.group[1]) == (5, "PureDP(epsilon=0.001)")


LOCK_OF_A_NAME = "SELECT pg_advisory_lock{shared}(%s)"


def key_of(name: str) -> int:
    """Return the number of the lock that says that an owner lives."""
    return int.from_bytes(bytes.fromhex(name)[:8], signed=True)


@pytest.mark.promise("reader-locks", "long-read")
def test_a_reader_stops_no_step(urls):
    """Whatever it locks; a worker that has the dataset's row is the control."""
    with closing(ledger_on(waiting(PostgresDatabase(urls["worker"]), 0.2))) as worker:
        with psycopg.connect(urls["reader"]) as session:
            session.execute("; ".join(CASES["reader"]).encode())
            charged(worker, "0.001")
            for statement in CASES["locks"]:
                session.rollback()
                with pytest.raises(DENIED):
                    session.execute(statement.encode())
        with psycopg.connect(urls["worker"]) as session:
            session.execute(
                "SELECT name FROM dpflow.dataset WHERE name = 'a' FOR UPDATE"
            )
            with pytest.raises(LedgerUnavailable, match="holds the lock"):
                granted(worker, "0.001")
            session.rollback()


@pytest.mark.promise("reader-locks")
def test_a_reader_holds_no_dead_workers_name(urls):
    """Any session may take such a lock; only a login that may charge keeps a key."""
    dead, owners = uuid.uuid4().hex, SessionOwners(Server(urls["worker"]))
    for role, alive in (("reader", False), ("worker", True)):
        with psycopg.connect(urls[role]) as session:
            sql = LOCK_OF_A_NAME.format(shared="_shared")
            session.execute(sql.encode(), [key_of(dead)])
            assert owners.alive(dead) is alive
    owners.close()


@pytest.mark.promise("reader-locks")
def test_a_reader_that_takes_a_workers_name_is_reported(urls):
    """The message speaks of the name, and of no dataset."""
    reached = waiting(PostgresDatabase(urls["worker"]), 0.2).server
    owners = SessionOwners(reached)
    key = key_of(owners.mine())
    reached.drop()
    with psycopg.connect(urls["reader"]) as session:
        session.execute(LOCK_OF_A_NAME.format(shared="").encode(), [key])
        with pytest.raises(LedgerUnavailable, match="the name of this process"):
            owners.mine()
    assert owners.mine()
    owners.close()


def test_a_worker_charges_people(urls, tmp_path):
    """Under its login the steps of a store are noted, too, and others go on from it."""
    ledger, worker = (open_ledger(urls[r], witness="none") for r in ("super", "worker"))
    assert step(ledger, tmp_path, 0.5, 0.5, 0.5) == [True, True, True]
    assert step(worker, tmp_path, 0.4, 0.6, 0.4) == [True, False, True]
    assert step(ledger, tmp_path, 0.2, 0.2, 0.0) == [False, True, True]
    assert verify(ledger).bad == []
    ledger.close()
    worker.close()


def test_not_even_the_owner_edits_the_journal(urls):
    """It would have to drop the triggers first, which is no accident."""
    for statement in CASES["journal"]:
        with pytest.raises(psycopg.Error, match=r"append-only|never replaced"):
            edit(urls["owner"], statement, locked=True)
    table = "CREATE TABLE dpflow.mine (x int)", "DROP TABLE dpflow.mine"
    edit(urls["owner"], *table, locked=True)


def test_strangers_see_nothing(urls):
    """A login without a role of the ledger is refused immediately."""
    name = f"u{secrets.token_hex(4)}"
    server().run(f"CREATE ROLE {name} LOGIN")
    with pytest.raises(LedgerUnavailable, match="may not do this"):
        open_ledger(urls["super"].replace("//postgres@", f"//{name}@"), witness="none")
    server().run(f"DROP ROLE {name}")
