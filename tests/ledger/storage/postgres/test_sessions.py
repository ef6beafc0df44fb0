"""Locks, deadlines, sessions and processes of a ledger on PostgreSQL."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from fractions import Fraction

import pytest

from dpflow import PureDP
from dpflow.exceptions import LedgerUnavailable
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.model import Keys
from dpflow.ledger.opening import create_ledger, open_ledger
from dpflow.ledger.records import Request
from dpflow.ledger.storage import postgres_connection as storage_server
from dpflow.ledger.storage.postgres import PostgresStorage
from tests.ledger.processes import Child
from tests.ledger.support import (
    audit,
    granted,
    ledger_on,
    make_policy,
    read,
    request,
    sums,
)

UNITS = Fraction(1, 10**6)
SMALL = PureDP(epsilon=Fraction(1, 10**6))


# Locks and deadlines


def test_a_held_dataset_is_waited_for_and_no_longer(
    ledger: Ledger, postgres_url: str
) -> None:
    """Others go on; the wait ends with a refusal, and nothing runs unguarded."""
    waiting = ledger_on(PostgresStorage(postgres_url, lock_seconds=0.3))
    with ledger.storage.write() as transaction:
        transaction.load(Keys(books=("a",)))
        since = time.monotonic()
        with pytest.raises(LedgerUnavailable, match="holds the lock") as caught:
            granted(waiting, "0.1")
        assert 0.3 <= time.monotonic() - since < 10
        assert caught.value.waited == 0.3
        granted(waiting, "0.1", policies=[make_policy("b")])
    granted(waiting, "0.1")
    assert sums(postgres_url) == (0, Fraction(1, 10))
    waiting.close()


def test_datasets_are_locked_in_one_order(postgres_url: str) -> None:
    """Threads that ask for the same two in either order do not wait in a circle."""
    ledger = create_ledger(postgres_url)
    both = [make_policy("a"), make_policy("b")]
    errors: list[BaseException] = []

    def work(policies: list[object]) -> None:
        try:
            for _ in range(25):
                ledger.settle(granted(ledger, SMALL, policies=policies))
        except BaseException as error:
            errors.append(error)

    orders = [both, both[::-1], both, both[::-1]]
    threads = [threading.Thread(target=work, args=[order]) for order in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    expected = (100 * UNITS, 0)
    assert (sums(postgres_url, "a#1"), sums(postgres_url, "b#1")) == (expected,) * 2
    log = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    assert read(postgres_url, log) == [(0,)]
    ledger.close()


def test_more_threads_than_connections_wait_for_each_other(postgres_url: str) -> None:
    """And are told so when it takes too long."""
    create_ledger(postgres_url).close()
    storage = PostgresStorage(postgres_url, connections=1, lock_seconds=0.2)
    ledger = ledger_on(storage)
    with storage.read():
        told: list[LedgerUnavailable] = []

        def ask() -> None:
            try:
                granted(ledger, "0.1")
            except LedgerUnavailable as error:
                told.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
    assert "1 threads of this process" in told[0].message
    assert told[0].waited == 0.2
    granted(ledger, "0.1")
    ledger.close()


def test_a_holder_that_stopped_is_ended_by_the_server(
    ledger: Ledger, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its transaction is rolled back, and it is told so when it goes on."""
    monkeypatch.setattr(storage_server, "IDLE_SECONDS", 0.3)
    slow = open_ledger(postgres_url)

    def stop() -> None:
        with slow.storage.write() as transaction:
            transaction.load(Keys(books=("a",)))
            granted(ledger, "0.1")
            transaction.books()

    with pytest.raises(LedgerUnavailable, match="server closed the connection"):
        stop()
    granted(slow, "0.1")
    slow.close()


def test_a_server_that_stopped_answering_is_given_up(
    ledger: Ledger, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No step waits for ever; what was asked is decided in another session."""
    granted(ledger, "0.1")
    monkeypatch.setattr(storage_server, "STATEMENT_SECONDS", 1)
    monkeypatch.setattr(storage_server, "_GRACE_SECONDS", 0)
    sessions = (
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'dpflow' AND "
        "datname = current_database()"
    )
    stopped = [pid for (pid,) in read(postgres_url, sessions)]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        granted(ledger, "0.1")
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    assert sums(postgres_url) == (0, Fraction(2, 10))


# Sessions and processes


def test_an_idle_session_that_ended_is_replaced_unnoticed(
    ledger: Ledger, postgres_url: str
) -> None:
    """Also the owner's, whose name stays the same."""
    name, owner = granted(ledger, "0.1"), ledger.owners.mine()
    kill = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name "
        "= 'dpflow' AND datname = current_database()"
    )
    assert len(read(postgres_url, kill)) == 2
    time.sleep(0.1)
    ledger.settle(name)
    granted(ledger, "0.1")
    assert ledger.owners.mine() == owner
    other = open_ledger(postgres_url)
    assert other.owners.alive(owner)
    other.close()
    assert sums(postgres_url) == (Fraction(1, 10), Fraction(1, 10))


def test_a_child_leaves_its_parents_sessions_alone(
    ledger: Ledger, postgres_url: str
) -> None:
    """It has its own, and its end closes none of the parent's."""
    first, owner = granted(ledger, "0.1"), ledger.owners.mine()

    def work(say: Callable[[str], None]) -> None:
        assert ledger.owners.alive(owner)
        say(ledger.owners.mine())
        ledger.settle(granted(ledger, "0.2"))
        ledger.close()

    child = Child(work)
    name = child.line()
    assert child.end() == (0, [])
    assert name != owner
    ended = "SELECT sessions_abandoned, sessions_fatal FROM pg_stat_database"
    before = read(postgres_url, f"{ended} WHERE datname = current_database()")
    ledger.settle(first)
    assert ledger.owners.alive(owner)
    other = open_ledger(postgres_url)
    assert other.owners.alive(owner)
    assert not other.owners.alive(name)
    other.close()
    assert before == [(0, 0)]
    assert sums(postgres_url) == (Fraction(3, 10), 0)


def test_a_childs_session_outlives_its_parent_by_no_lock(postgres_url: str) -> None:
    """A killed parent looks dead although its child still runs."""
    create_ledger(postgres_url).close()

    def parent(say: Callable[[str], None]) -> None:
        ledger = open_ledger(postgres_url)
        say(granted(ledger, "0.1"))
        say(ledger.owners.mine())
        pid = os.fork()
        if pid == 0:
            time.sleep(30)
            os._exit(0)
        say(str(pid))
        time.sleep(30)

    child = Child(parent)
    child.line()
    owner, grandchild = child.line(), int(child.line())
    other = open_ledger(postgres_url)
    assert other.owners.alive(owner)
    os.kill(child.pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)
    until = time.monotonic() + 5
    while other.owners.alive(owner):
        assert time.monotonic() < until
    os.kill(grandchild, signal.SIGKILL)
    other.close()


def test_who_looks_dead_and_lives_is_charged_and_so_is_its_successor(
    postgres_url: str,
) -> None:
    """Its session ended, not its body: two charges, one release, nothing given back."""
    first, second = create_ledger(postgres_url), open_ledger(postgres_url)
    early = granted(first, "0.25", key="week/1")
    kill = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity JOIN pg_locks USING "
        "(pid) WHERE locktype = 'advisory' AND datname = current_database()"
    )
    assert len(read(postgres_url, kill)) == 1
    time.sleep(0.1)
    # In this process the name counts as alive; another process asks.
    child = Child(lambda say: say(granted(open_ledger(postgres_url), "0.25", key="w")))
    assert child.end()[0] == 0

    def work(say: Callable[[str], None]) -> None:
        ledger = open_ledger(postgres_url)
        late = granted(ledger, "0.25", key="week/1")
        say(late)
        ledger.settle(late, value='"second"')

    child = Child(work)
    late = child.line()
    assert child.end() == (0, [])
    first.settle(early, value='"first"')
    assert sums(postgres_url) == (Fraction(1, 2), Fraction(1, 4))
    kept = "SELECT charge, value FROM release WHERE state = 'settled'"
    assert read(postgres_url, kept) == [(late, '"second"')]
    audit(postgres_url)
    first.close()
    second.close()


def test_two_who_use_one_id_at_once_are_told(ledger: Ledger, postgres_url: str) -> None:
    """On different datasets no lock is in the way, but the id is one."""
    made = request(ledger, "0.1")
    other = request(
        ledger, "0.1", policies=[make_policy("b")], reservation=made.reservation
    )
    answers: list[str] = []

    def ask(each: Request) -> None:
        try:
            answers.append(type(ledger.reserve(each)).__name__)
        except Exception as error:
            answers.append(type(error).__name__)

    threads = [threading.Thread(target=ask, args=[each]) for each in (made, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == ["Granted", "ReservationConflict"]
    audit(postgres_url)
