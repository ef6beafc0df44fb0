"""Locks, deadlines, sessions and processes of a ledger on PostgreSQL."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from fractions import Fraction

import pytest

from dpflow.exceptions import LedgerUnavailable
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import create_ledger, open_ledger
from dpflow.ledger.storage import postgres_connection as storage_server
from dpflow.ledger.storage.postgres import PostgresStorage
from tests.ledger.processes import Child
from tests.ledger.support import (
    audit,
    granted,
    ledger_on,
    read,
    refusal,
    sums,
    waiting,
)

# Locks and deadlines


def test_a_held_ledger_is_waited_for_and_no_longer(
    ledger: Ledger, postgres_url: str
) -> None:
    """The wait ends with a refusal, of another process or thread, and nothing runs."""
    patient = ledger_on(waiting(PostgresStorage(postgres_url), 0.3))
    with ledger.storage.write() as transaction:
        transaction.books()
        since = time.monotonic()
        with pytest.raises(LedgerUnavailable, match="another process holds the lock"):
            granted(patient, "0.1")
        assert 0.3 <= time.monotonic() - since < 10
    answers: list[str] = []
    with patient.storage.read():
        thread = threading.Thread(
            target=lambda: answers.append(refusal(lambda: granted(patient, "0.1")))
        )
        thread.start()
        thread.join()
    assert answers == ["LedgerUnavailable"]
    granted(patient, "0.1")
    assert sums(postgres_url) == (0, Fraction(1, 10))
    patient.close()


def test_a_holder_that_stopped_is_ended_by_the_server(
    ledger: Ledger, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its transaction is rolled back, and the process gets an error when it goes on."""
    monkeypatch.setattr(storage_server, "IDLE_SECONDS", 0.3)
    slow = open_ledger(postgres_url)

    def stop() -> None:
        with slow.storage.write() as transaction:
            transaction.books()
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
