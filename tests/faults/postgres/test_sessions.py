"""A ledger on PostgreSQL: making it, the owners of its charges, what a version is."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from fractions import Fraction
from typing import Any

import pytest

from dpflow.exceptions import ConfigurationError, LedgerMissing, LedgerUnavailable
from dpflow.ledger.opening import create_ledger, open_ledger
from dpflow.ledger.tables import postgres_connection as sessions
from dpflow.ledger.tables.loading import find_scope, load_rows
from tests.ledger.processes import answer_of_child
from tests.ledger.support import audit, granted, read, request, sums
from tests.postgres import server

# Making and opening


def test_makers_in_parallel_make_one_ledger(postgres_url):
    """The others are refused."""
    with ThreadPoolExecutor(4) as threads:
        makers = [threads.submit(create_ledger, postgres_url) for _ in range(4)]
    errors = [type(maker.exception()) for maker in makers]
    assert errors.count(ConfigurationError) == 3
    assert errors.count(type(None)) == 1
    assert read(postgres_url, "SELECT count(*) FROM ledger") == [(1,)]


def test_no_ledger_is_missing(postgres_url):
    """Nothing is made by opening; neither is a database."""
    for url in (postgres_url, postgres_url.replace("?", "x?")):
        with pytest.raises(LedgerMissing, match="dpflow ledger init"):
            open_ledger(url)
    assert read(postgres_url, "SELECT to_regnamespace('dpflow')") == [(None,)]


def test_what_a_database_sets_for_its_sessions_is_not_in_the_way(postgres_url):
    """Neither isolation, nor how texts are read."""
    for setting in (
        "default_transaction_isolation = 'serializable'",
        "default_transaction_read_only = on",
        "standard_conforming_strings = off",
        "search_path = public",
    ):
        server().alter(postgres_url, setting)
    with closing(create_ledger(postgres_url)) as ledger:
        ledger.settle(granted(ledger, "0.1"))
    audit(postgres_url)


_FETCHED = (
    "SELECT sum(seq_tup_read + idx_tup_fetch) FROM pg_stat_xact_user_tables "
    "WHERE schemaname = 'dpflow'"
)


def test_a_plan_made_for_an_empty_ledger_reads_no_whole_table(ledger):
    """A session plans its statements once, when the tables are perhaps still small."""
    for number in range(60):
        key = f"{number:064x}"
        ledger.settle(granted(ledger, "0.01", release_key=key), value="1")
    asked = request(ledger, "0.01", release_key="0" * 64)
    with ledger.database.snapshot() as reading:
        before = reading.ask(_FETCHED)[0][0]
        load_rows(reading, find_scope(asked), {}, lock=False)
        after = reading.ask(_FETCHED)[0][0]
    assert after - before < 20


def test_a_database_that_cannot_keep_every_name_is_refused():
    """At the first connection, before anything is charged."""
    odd = server().new_database("ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    with pytest.raises(LedgerUnavailable, match="encoding LATIN1"):
        create_ledger(odd)
    server().drop(odd)


# Locks and deadlines


@pytest.mark.promise("stopped-holder")
def test_a_holder_that_stopped_is_ended_by_the_server(
    ledger, postgres_url, monkeypatch
):
    """Its transaction is rolled back, and the process gets an error when it goes on."""
    granted(ledger, "0.1")
    with monkeypatch.context() as patch:
        patch.setattr(sessions, "IDLE_SECONDS", 0.3)
        slow = open_ledger(postgres_url)
    with closing(slow):
        closed = pytest.raises(LedgerUnavailable, match="server closed the connection")
        with closed, slow.database.transaction() as transaction:
            transaction.begin(["a"], lock=True)
            granted(ledger, "0.1")
            transaction.begin(["a"], lock=True)
        granted(slow, "0.1")


def own_sessions(url: str) -> list[int]:
    """Return the server's processes for a ledger and for its owner.

    The one that made the ledger has been closed, and may take a moment to end.
    """
    text = "SELECT pid FROM pg_stat_activity WHERE application_name = 'dpflow'"
    for _ in range(3000):
        found = read(url, f"{text} AND datname = current_database()")
        if len(found) == 2:
            break
        time.sleep(0.01)
    return [pid for (pid,) in found]


@pytest.mark.promise("stopped-holder")
def test_a_server_that_stopped_answering_is_given_up(ledger, postgres_url, monkeypatch):
    """No step waits without end; another session decides the request."""
    granted(ledger, "0.1")
    stopped, real = own_sessions(postgres_url), sessions.Connection.wait

    def wait(connection: sessions.Connection, *values: Any, **named: Any) -> Any:
        # A busy server may take longer to answer in the other sessions.
        with monkeypatch.context() as patch:
            if not connection.closed and connection.info.backend_pid in stopped:
                patch.setattr(sessions, "STATEMENT_SECONDS", 0.5)
                patch.setattr(sessions, "_GRACE_SECONDS", 0)
            return real(connection, *values, **named)

    monkeypatch.setattr(sessions.Connection, "wait", wait)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        granted(ledger, "0.1")
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    assert sums(postgres_url) == (0, Fraction(2, 10))


# Sessions and processes

#: End sessions, and wait for their ends.
END = "SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity"


@pytest.mark.promise("ended-sessions")
def test_an_idle_session_that_ended_is_replaced_unnoticed(ledger, postgres_url):
    """Also the owner's, whose name stays the same."""
    name, owner = granted(ledger, "0.1"), ledger.owners.mine()
    kill = f"{END} WHERE pid = ANY(ARRAY{own_sessions(postgres_url)})"
    assert read(postgres_url, kill) == [(True,)] * 2
    ledger.settle(name)
    granted(ledger, "0.1")
    assert ledger.owners.mine() == owner
    with closing(open_ledger(postgres_url)) as other:
        assert other.owners.alive(owner)
    assert sums(postgres_url) == (Fraction(1, 10), Fraction(1, 10))


@pytest.mark.promise("dead-owner")
def test_who_looks_dead_and_lives_is_charged_and_so_is_its_successor(postgres_url):
    """Its session ended, not its body: two charges, one release, nothing given back."""
    first, second = create_ledger(postgres_url), open_ledger(postgres_url)
    early = granted(first, "0.25", key="week/1")
    kill = f"{END} JOIN pg_locks USING (pid) WHERE locktype = 'advisory' "
    kill += "AND datname = current_database()"
    assert read(postgres_url, kill) == [(True,)]
    # In this process the name counts as alive; another process asks.
    answer_of_child(lambda: granted(open_ledger(postgres_url), "0.25", key="w"))

    def charge_again() -> str:
        ledger = open_ledger(postgres_url)
        late = granted(ledger, "0.25", key="week/1")
        ledger.settle(late, value='"second"')
        return late

    late = answer_of_child(charge_again)
    first.settle(early, value='"first"')
    assert sums(postgres_url) == (Fraction(1, 2), Fraction(1, 4))
    kept = "SELECT charge, value FROM release WHERE state = 'settled'"
    assert read(postgres_url, kept) == [(late, '"second"')]
    audit(postgres_url)
    first.close()
    second.close()
