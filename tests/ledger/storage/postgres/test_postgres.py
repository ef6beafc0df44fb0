"""A ledger on PostgreSQL: making it, the owners of its charges, what a version is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import psycopg
import pytest

from dpflow.exceptions import (
    ConfigurationError,
    LedgerMissing,
    LedgerUnavailable,
)
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import create_ledger, open_ledger
from dpflow.ledger.storage.base import VERSION
from dpflow.ledger.storage.postgres import PostgresStorage, SessionOwners
from dpflow.ledger.storage.postgres_connection import Server
from tests.ledger.processes import Child
from tests.ledger.support import audit, edit, granted, read
from tests.postgres import server

# Making and opening


def test_two_who_make_a_ledger_at_once_make_one(postgres_url: str) -> None:
    """The others are refused."""
    answers: list[str] = []

    def make() -> None:
        try:
            answers.append(create_ledger(postgres_url).id)
        except ConfigurationError as error:
            answers.append(type(error).__name__)

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers.count("ConfigurationError") == 3
    assert read(postgres_url, "SELECT count(*) FROM ledger") == [(1,)]


def test_no_ledger_is_missing(postgres_url: str) -> None:
    """Nothing is made by opening; neither is a database."""
    for url in (postgres_url, postgres_url.replace("?", "x?")):
        with pytest.raises(LedgerMissing, match="dpflow ledger init"):
            open_ledger(url)
    assert read(postgres_url, "SELECT to_regnamespace('dpflow')") == [(None,)]


def test_a_ledger_of_another_version_is_refused(
    ledger: Ledger, postgres_url: str
) -> None:
    """At the opening, and at the next write if another version comes meanwhile."""
    edit(postgres_url, f"UPDATE ledger SET version = {VERSION + 1}")
    for call in (lambda: granted(ledger, "0.1"), lambda: open_ledger(postgres_url)):
        with pytest.raises(LedgerUnavailable, match="another version of dpflow"):
            call()
    edit(postgres_url, "DROP TABLE kept", locked=True)
    with pytest.raises(LedgerUnavailable, match="another version of dpflow"):
        open_ledger(postgres_url)
    with pytest.raises(ConfigurationError, match="already"):
        create_ledger(postgres_url)


def test_what_a_database_sets_for_its_sessions_is_not_in_the_way(
    postgres_url: str,
) -> None:
    """Neither isolation, nor how texts are read."""
    name = postgres_url.partition("@/")[2].partition("?")[0]
    for setting in (
        "default_transaction_isolation = 'serializable'",
        "default_transaction_read_only = on",
        "standard_conforming_strings = off",
        "search_path = public",
    ):
        server().run(f"ALTER DATABASE {name} SET {setting}")
    ledger = create_ledger(postgres_url)
    ledger.settle(granted(ledger, "0.1"))
    ledger.close()
    audit(postgres_url)


# Owners

LOCKS = (
    "SELECT count(*) FROM pg_locks JOIN pg_database ON database = pg_database.oid "
    "WHERE locktype = 'advisory' AND datname = current_database()"
)


def await_end(owners: SessionOwners, name: str) -> None:
    """Wait until the server has ended the session behind a name."""
    until = time.monotonic() + 5
    while owners.alive(name):
        assert time.monotonic() < until


def test_an_owner_lives_until_it_is_closed(postgres_url: str) -> None:
    """One name per object, alive for others while its session stands."""
    first, second = (SessionOwners(Server(postgres_url)) for _ in "ab")
    assert first.mine() == first.mine() != second.mine()
    name = first.mine()
    assert read(postgres_url, LOCKS) == [(2,)]

    def look(say: Callable[[str], None]) -> None:
        owners = SessionOwners(PostgresStorage(postgres_url).server)
        say(str([owners.alive(owner) for owner in (name, "0" * 32, "no name", "")]))

    assert Child(look).end() == (0, ["[True, False, False, False]"])
    first.close()
    await_end(second, name)
    # To ask for others takes no name that was given up.
    last = second.mine()
    assert not first.alive(f"{int(last[0], 16) ^ 1:x}{last[1:]}")
    assert not second.alive(name)
    assert first.mine() != name
    first.close()
    second.close()


def test_a_forked_child_takes_no_name_of_its_parent(postgres_url: str) -> None:
    """Neither for itself, nor when it asks for others."""
    mine = SessionOwners(Server(postgres_url))
    name = mine.mine()

    def ask(say: Callable[[str], None]) -> None:
        say(str(mine.alive("0" * 32)))
        with psycopg.connect(postgres_url) as connection:
            say(str(connection.execute(LOCKS.encode()).fetchall()))
        say(str(mine.mine() != name))

    assert Child(ask).end() == (0, ["False", "[(1,)]", "True"])
    mine.close()


def test_many_names_do_not_collide(postgres_url: str) -> None:
    """The two halves of a lock's number are looked up as they were taken."""
    asking = SessionOwners(PostgresStorage(postgres_url).server)
    elsewhere = server().new_database()
    for name in ("f" * 32, "0" * 31 + "1", "7fffffff80000000" * 2, "8" + "0" * 31):
        key = int.from_bytes(bytes.fromhex(name)[:8], signed=True)
        for url, alive in ((elsewhere, False), (postgres_url, True)):
            with psycopg.connect(url) as connection:
                connection.execute("SELECT pg_advisory_lock_shared(%s)", (key,))
                assert asking.alive(name) is alive
        await_end(asking, name)
    asking.close()
    server().drop(elsewhere)
