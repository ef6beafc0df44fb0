"""Who lives is known by a lock that the operating system drops, and by nothing else."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psycopg
import pytest

from dpflow.ledger.tables.owners import Owners
from dpflow.ledger.tables.postgres import PostgresDatabase
from dpflow.ledger.tables.postgres_connection import SessionOwners
from tests.ledger.processes import Child, Gate, answer_of_child, await_end
from tests.postgres import server


@pytest.fixture(params=["file", "postgres"])
def owners(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Give the owners of a ledger, in a file or in a database.

    `another` returns the owners of the same ledger, as another object has them.
    """
    if request.param == "file":
        result: Any = Owners(tmp_path / "owners")
        result.another = lambda: Owners(tmp_path / "owners")
    else:
        at = request.getfixturevalue("postgres_url")
        result = SessionOwners(PostgresDatabase(at).server)
        result.another = lambda: SessionOwners(PostgresDatabase(at).server)
    yield result
    result.close()


def seen_from_outside(owners: Any, name: str) -> bool:
    """Ask another process whether an owner lives."""
    return answer_of_child(lambda: owners.another().alive(name)) == "True"


class Worker:
    """Another process that owns something until its gate opens."""

    def __init__(self, owners: Any) -> None:
        self.gate = Gate()

        def work(say: Callable[[str], None]) -> None:
            say(owners.mine())
            self.gate.wait()

        self.child = Child(work)
        self.name = self.child.line()


def test_threads_get_one_name(owners):
    """However many ask for it first at the same time."""
    start = threading.Barrier(8)

    def ask(_: int) -> str:
        start.wait()
        return owners.mine()

    with ThreadPoolExecutor(8) as threads:
        names = [*threads.map(ask, range(8))]
    assert names == [owners.mine()] * 8


def test_a_worker_lives_until_it_is_killed(owners):
    """SIGKILL runs no handler; the system frees the lock all the same."""
    worker = Worker(owners)
    assert owners.alive(worker.name)
    worker.child.kill()
    await_end(owners, worker.name)
    # What no process has is dead as well.
    assert not any(map(owners.alive, ("0" * 32, "no name", "")))


def test_a_forked_child_is_another_owner(owners):
    """Its parent's charges are not its own; both see the other as what it is."""
    mine = owners.mine()
    worker = Worker(owners)
    assert worker.name != mine
    assert owners.alive(worker.name)
    assert answer_of_child(lambda: owners.alive(mine)) == "True"
    worker.gate.open()
    worker.child.end()
    await_end(owners, worker.name)
    # The name that a child inherited is not its own to give up.
    answer_of_child(owners.close)
    assert mine == owners.mine()
    assert seen_from_outside(owners, mine)


@pytest.mark.parametrize("owners", ["file"], indirect=True)
def test_a_parent_does_not_outlive_itself_in_its_child(owners):
    """A child inherits the open file, and must not keep its parent alive by it."""
    gate = Gate()

    def parent(say: Callable[[str], None]) -> None:
        say(owners.mine())
        if os.fork() == 0:
            gate.wait()
            os._exit(0)

    child = Child(parent)
    name = child.line()
    os.waitpid(child.pid, 0)
    assert not owners.alive(name)
    gate.open()


def test_closing_gives_the_name_up(owners):
    """Its open reservations then have no owner, and the next name is a new one."""
    first = owners.mine()
    owners.close()
    asking = owners.another()
    await_end(asking, first)
    asking.close()
    assert not seen_from_outside(owners, first)
    assert first != owners.mine()
    owners.close()
    owners.close()


@pytest.mark.parametrize("owners", ["file"], indirect=True)
def test_a_name_that_cannot_be_checked_lives(owners, monkeypatch):
    """Another user's file, say: the answer that frees nothing."""
    answer_of_child(owners.mine)
    assert not owners.alive("f" * 32)

    refused = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    monkeypatch.setattr(os, "open", Mock(side_effect=refused))
    assert owners.alive("f" * 32)


@pytest.mark.parametrize("owners", ["file"], indirect=True)
def test_names_in_one_file_keep_their_locks(owners):
    """Other objects of this process may read, take and give up names there."""
    dead, other = Worker(owners), owners.another()
    dead.child.kill()
    name, second = owners.mine(), other.mine()
    for asking in (owners, other, owners.another()):
        assert not asking.alive(dead.name)
        assert not asking.alive("f" * 32)
    assert seen_from_outside(owners, second)
    other.close()
    assert seen_from_outside(owners, name)
    assert not seen_from_outside(owners, second)


# Of a server

LOCKS = (
    "SELECT count(*) FROM pg_locks JOIN pg_database ON database = pg_database.oid "
    "WHERE locktype = 'advisory' AND datname = current_database()"
)


def test_a_forked_child_takes_no_name_of_its_parent(postgres_url):
    """Neither for itself, nor when it asks for others."""
    mine = SessionOwners(PostgresDatabase(postgres_url).server)
    name = mine.mine()

    def ask(say: Callable[[str], None]) -> None:
        say(str(mine.alive("0" * 32)))
        with psycopg.connect(postgres_url) as connection:
            say(str(connection.execute(LOCKS.encode()).fetchall()))
        say(str(mine.mine() != name))

    assert Child(ask).end() == (0, ["False", "[(1,)]", "True"])
    mine.close()


def test_many_names_do_not_collide(postgres_url):
    """The two halves of a lock's number are looked up as they were taken."""
    asking = SessionOwners(PostgresDatabase(postgres_url).server)
    elsewhere = server().url("postgres")
    for name in ("f" * 32, "0" * 31 + "1", "7fffffff80000000" * 2, "8" + "0" * 31):
        key = int.from_bytes(bytes.fromhex(name)[:8], signed=True)
        for url, alive in ((elsewhere, False), (postgres_url, True)):
            with psycopg.connect(url) as connection:
                connection.execute("SELECT pg_advisory_lock_shared(%s)", (key,))
                assert asking.alive(name) is alive
        await_end(asking, name)
    asking.close()
