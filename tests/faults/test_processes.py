"""Many processes and threads, one budget; no connection crosses a fork."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from fractions import Fraction
from functools import partial

import pytest

from dpflow import PureDP
from dpflow.exceptions import BudgetRefused, LedgerUnavailable
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.decisions.gates import Gate as LedgerGate
from dpflow.ledger.opening import open_ledger
from dpflow.ledger.requests import Granted, Replayed
from tests.ledger.processes import Child, Gate, answer_of_child, die, holding
from tests.ledger.support import (
    audit,
    granted,
    impatient,
    kinds,
    make_ledger,
    make_policy,
    read,
    refusal,
    refused,
    request,
    sums,
    url,
    waiting,
    write_a_row,
)
from tests.sizes import spread

PROCESSES = 4
RESERVING = make_policy(
    budget="{epsilon: 100}",
    flows="{report: {epsilon: 52, reserved: true}}",
    other_flows="allow",
)
SMALL = Fraction(1, 10**6)


def racers(
    target: Callable[[int, Callable[[str], None]], None], processes: int = PROCESSES
) -> list[list[str]]:
    """Start processes together and return what each said."""
    gate = Gate()

    def run(number: int, say: Callable[[str], None]) -> None:
        gate.wait()
        target(number, say)

    children = [Child(partial(run, number)) for number in range(processes)]
    gate.open()
    ended = [child.end() for child in children]
    assert {code for code, _ in ended} == {0}, ended
    return [lines for _, lines in ended]


@pytest.mark.parametrize("budget", spread([50, 48, 1], 2))
def test_processes_are_granted_the_budget_and_no_step_more(place, budget):
    """Processes ask until they are refused; half of them never settle."""
    with closing(make_ledger(place)) as ledger:
        granted(ledger, PureDP(epsilon=1 - budget * SMALL), step="before")

    def ask(number: int, say: Callable[[str], None]) -> None:
        ledger = open_ledger(url(place))
        while True:
            try:
                reservation = granted(ledger, PureDP(epsilon=SMALL))
            except BudgetRefused:
                return
            say(reservation)
            if number % 2:
                ledger.settle(reservation)

    said = [line for lines in racers(ask) for line in lines]
    assert budget == len(said) == len(set(said))
    kept = {name for (name,) in read(place, "SELECT id FROM charge")}
    assert set(said) < kept
    assert len(kept) == budget + 1
    assert sum(sums(place)) == 1
    assert kinds(place).count("refuse") == PROCESSES
    audit(place)


def test_one_process_makes_the_release_and_the_others_replay_it(place):
    """Runs of the same week: one charge."""
    make_ledger(place).close()

    def ask(number: int, say: Callable[[str], None]) -> None:
        ledger = open_ledger(url(place))
        while True:
            answer = ledger.reserve(request(ledger, "0.6", key="week/1"))
            if isinstance(answer, Granted):
                say("made")
                ledger.settle(answer.reservation, value=f'"by {number}"')
            elif isinstance(answer, Replayed):
                say(answer.value)
                return

    said = racers(ask)
    assert sum(lines.count("made") for lines in said) == 1
    assert len({lines[-1] for lines in said}) == 1
    assert sums(place) == (Fraction(6, 10), 0)
    audit(place)


@pytest.mark.promise("busy-ledger", "stopped-holder")
def test_a_held_ledger_is_waited_for_and_no_longer(place):
    """By another process or thread: nothing was sent, so nothing is sent again."""
    granted(make_ledger(place))
    with closing(impatient(place)) as patient, ThreadPoolExecutor(1) as threads:
        step, since = request(patient), time.monotonic()
        busy = pytest.raises(LedgerUnavailable, match="another process")
        with holding(place), busy as caught:
            patient.reserve(step)
        assert time.monotonic() - since >= caught.value.waited == 0.4
        with patient.database.snapshot():
            answer = threads.submit(refusal, lambda: patient.reserve(step))
            assert answer.result() == "LedgerUnavailable"
        # A machine under load may take longer for a lock that is free.
        waiting(patient.database, 60)
        patient.reserve(step)
        assert kinds(place) == ["open", "reserve", "reserve"]


def test_a_check_outside_the_transaction_is_found(path, monkeypatch):
    """Processes that all saw room before exceed the budget."""
    monkeypatch.setattr(LedgerGate, "admits", lambda *_: True)
    racers(lambda _, say: say(granted(open_ledger(url(path)), "1")))
    assert sum(sums(path)) == PROCESSES


@pytest.mark.promise("reserved-share")
def test_processes_under_another_name_take_nothing_of_a_reserved_share(path):
    """Two processes use the rest to the last hundredth; 52 of 52 runs fit, no 53rd."""
    with closing(open_ledger(url(path))) as ledger:

        def ask(_: int, say: Callable[[str], None]) -> None:
            here = open_ledger(url(path))
            while True:
                try:
                    say(granted(here, "1", policies=[RESERVING], flow="somebody else"))
                except BudgetRefused:
                    return

        assert sum(map(len, racers(ask, 2))) == 48
        for _ in range(52):
            granted(ledger, "1", policies=[RESERVING], flow="report")
        for flow in (None, "report"):
            refused(ledger, "1e-12", policies=[RESERVING], flow=flow)
        assert verify(ledger).bad == []


TENTH = Fraction(1, 10)


# Forks


@pytest.mark.promise("fork")
def test_a_forked_child_opens_a_connection_of_its_own(place):
    """Both go on; the end of neither closes anything of the other's.

    SQLite's memory of locks is inherited, the locks are not. The parent would take the
    file for its own, and delete the child's -wal.
    """
    ledger, gate = make_ledger(place), Gate()
    first, owner = granted(ledger), ledger.owners.mine()

    def work(say: Callable[[str], None]) -> None:
        assert ledger.owners.alive(owner)
        say(ledger.owners.mine())
        ledger.settle(granted(ledger, "0.2"))
        say("settled")
        gate.wait()
        for _ in range(3):
            granted(ledger, "0.01")
        # A server would count the session of a process that died.
        ledger.close() if isinstance(place, str) else die()

    child = Child(work)
    name = child.line()
    assert name != owner
    assert child.line() == "settled"
    # Another child ends in order.
    answer_of_child(lambda: (granted(ledger, "0.01"), ledger.close()))
    ledger.database.close()
    gate.open()
    assert child.end() == (0 if isinstance(place, str) else -9, [])
    if isinstance(place, str):
        ended = "SELECT sessions_abandoned, sessions_fatal FROM pg_stat_database"
        assert read(place, f"{ended} WHERE datname = current_database()") == [(0, 0)]
    ledger.settle(first)
    with closing(open_ledger(url(place))) as other:
        assert other.owners.alive(owner)
        assert not other.owners.alive(name)
    assert sums(place) == (3 * TENTH, Fraction(4, 100))
    audit(place)
    ledger.close()


def test_a_child_forked_inside_a_transaction_is_refused(ledger, path, monkeypatch):
    """Forked by the transaction's own thread or by another one, it knows no locks.

    The parent commits what it began.
    """
    monkeypatch.setattr("dpflow.ledger.tables.sqlite_connection._CLOSE_SECONDS", 0.1)
    step = request(ledger)
    first = lambda: ledger.reserve(step)
    second = lambda: open_ledger(url(path)).reserve(step)

    def attempt(_: object) -> None:
        for call in (first, second):
            with pytest.raises(LedgerUnavailable, match="its parent was using it"):
                call()

    with ThreadPoolExecutor(1) as threads, ledger.database.transaction() as session:
        write_a_row(session)
        children = [Child(attempt), threads.submit(Child, attempt).result()]
    assert [child.end() for child in children] == [(0, []), (0, [])]
    assert read(path, "SELECT name FROM dataset") == [("x",)]
    ledger.reserve(step)
    assert sums(path) == (0, TENTH)


def test_a_fork_that_python_does_not_know_of_is_noticed(ledger, path, monkeypatch):
    """A server written in C may fork without Python: the child is refused."""
    granted(ledger)
    step = request(ledger)
    monkeypatch.setattr(os, "fork", ctypes.PyDLL(None).fork)
    text = answer_of_child(lambda: refusal(lambda: ledger.reserve(step)))
    assert text == "LedgerUnavailable"
    ledger.reserve(step)
    assert sums(path) == (0, 2 * TENTH)
