"""Many processes and threads, one budget: exactly as much is granted as there is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from fractions import Fraction

import pytest

from dpflow import PureDP
from dpflow.exceptions import BudgetRefused, LedgerUnavailable
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.decisions.gates import Gate as LedgerGate
from dpflow.ledger.opening import open_ledger
from dpflow.ledger.requests import Granted, Replayed
from tests.ledger.processes import Child, Gate, holding
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
)
from tests.sizes import spread

PROCESSES = 8
RESERVING = make_policy(
    budget="{epsilon: 100}",
    flows="{report: {epsilon: 52, reserved: true}}",
    other_flows="allow",
)
SMALL = Fraction(1, 10**6)


def racers(
    target: Callable[[int, Callable[[str], None]], None],
    processes: int = PROCESSES,
    ready: Callable[[], object] = lambda: None,
) -> list[list[str]]:
    """Start processes together, run `ready` here, and return what each said."""
    gate = Gate()

    def run(number: int) -> Callable[[Callable[[str], None]], None]:
        def work(say: Callable[[str], None]) -> None:
            gate.wait()
            target(number, say)

        return work

    children = [Child(run(number)) for number in range(processes)]
    gate.open()
    ready()
    ended = [child.end() for child in children]
    assert {code for code, _ in ended} == {0}, ended
    return [lines for _, lines in ended]


@pytest.mark.parametrize("budget", spread([100, 96, 1], 2))
def test_processes_are_granted_the_budget_and_no_step_more(place, budget):
    """Eight processes ask until they are refused; half of them never settle."""
    ledger = make_ledger(place)
    granted(ledger, PureDP(epsilon=1 - budget * SMALL), step="before")
    ledger.close()

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
    """Eight runs of the same week: one charge."""
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


def test_a_held_ledger_is_waited_for_and_no_longer(place):
    """By another process or thread: nothing was sent, so nothing is sent again."""
    granted(make_ledger(place))
    patient = impatient(place)
    step, since = request(patient), time.monotonic()
    with holding(place), pytest.raises(LedgerUnavailable, match="another process") as e:
        patient.reserve(step)
    assert time.monotonic() - since >= e.value.waited == 0.4
    answers: list[str] = []
    with patient.database.snapshot():
        ask = lambda: answers.append(refusal(lambda: patient.reserve(step)))
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
    assert answers == ["LedgerUnavailable"]
    patient.reserve(step)
    assert kinds(place) == ["open", "reserve", "reserve"]
    patient.close()


def test_a_check_outside_the_transaction_is_found(path, monkeypatch):
    """Processes that all saw room before exceed the budget."""
    monkeypatch.setattr(LedgerGate, "admits", lambda *_: True)
    racers(lambda _, say: say(granted(open_ledger(url(path)), "1")))
    assert sum(sums(path)) == PROCESSES


def test_processes_under_another_name_take_nothing_of_a_reserved_share(path):
    """Two processes use the rest to the last hundredth; 52 of 52 runs fit, no 53rd."""
    ledger = open_ledger(url(path))

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
    ledger.close()
