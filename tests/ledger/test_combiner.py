"""Threads that wait share a transaction, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest

from dpflow.exceptions import BudgetRefused, LedgerCorrupt, LedgerUnavailable
from dpflow.ledger.combiner import MOST_AT_ONCE, Combiner
from dpflow.ledger.decision.admit import Reserve
from dpflow.ledger.decision.settlement import End
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.model import Command
from dpflow.locks import Turn
from tests.ledger.processes import Child
from tests.ledger.support import Place, audit, granted, request, sums


@pytest.fixture
def steps(ledger: Ledger) -> Callable[[int], list[Command]]:
    """Return what makes commands of some steps."""
    return lambda count: [
        Reserve(request=request(ledger), at="now", writer="me") for _ in range(count)
    ]


class Asking:
    """Threads that ask a combiner, whose decisions wait until all stand in line."""

    def __init__(self, fault: Callable[[Sequence[Command]], None]) -> None:
        self.combiner = Combiner(self._decide)
        self.batches: list[list[Command]] = []
        self.go = threading.Event()
        self.fault = fault
        self._answers: dict[int, object] = {}
        self._threads: list[threading.Thread] = []
        self._joined, self._begun = threading.Event(), threading.Event()
        self._join = self.combiner._line.join
        self.combiner._line.join = self._stand  # type: ignore[method-assign]

    def _stand(self, turn: Turn) -> None:
        self._join(turn)
        self._joined.set()

    def _decide(self, commands: Sequence[Command]) -> list[Any]:
        """Answer each command with itself."""
        self.batches.append(list(commands))
        self._begun.set()
        assert self.go.wait(60)
        self.fault(commands)
        return list(commands)

    def _ask(self, command: Command) -> None:
        try:
            self._answers[id(command)] = self.combiner.ask(command)
        except BaseException as error:
            self._answers[id(command)] = error

    def start(self, command: Command) -> None:
        """Let a thread ask, and wait until it stands in line, the first one decided."""
        self._joined.clear()
        self._threads.append(threading.Thread(target=self._ask, args=[command]))
        self._threads[-1].start()
        assert self._joined.wait(60)
        assert self._begun.wait(60)

    def end(self, made: Sequence[Command]) -> list[Any]:
        """Let the decisions happen; return the answers to some commands."""
        self.go.set()
        for thread in self._threads:
            thread.join(60)
        return [self._answers[id(command)] for command in made]

    def of(self, made: Sequence[Command]) -> list[Any]:
        """Return the answers to commands of threads that ask one after another."""
        for command in made:
            self.start(command)
        return self.end(made)


def names(answers: list[Any]) -> list[str]:
    """Return the names of the answers' types."""
    return [type(answer).__name__ for answer in answers]


def test_who_waits_is_decided_together_in_order(steps) -> None:
    """While the first is decided the others wait in line; a batch has at most 64."""
    asking = Asking(lambda _: None)
    made = steps(MOST_AT_ONCE + 3)
    assert all(map(lambda a, b: a is b, asking.of(made), made))
    assert [len(batch) for batch in asking.batches] == [1, MOST_AT_ONCE, 2]
    assert made == [command for batch in asking.batches for command in batch]


def test_an_interrupt_is_for_the_thread_that_it_meets(steps) -> None:
    """The others are decided all the same, by the next of them."""
    made = steps(4)

    def interrupt(commands: Sequence[Command]) -> None:
        if commands[0] is made[1]:
            raise KeyboardInterrupt

    asking = Asking(interrupt)
    assert names(asking.of(made)) == ["Reserve", "KeyboardInterrupt", *["Reserve"] * 2]
    assert [len(batch) for batch in asking.batches] == [1, 3, 2]


def test_each_thread_gets_an_error_of_an_unavailable_ledger(steps) -> None:
    """With errors of their own, and the next who asks is served."""

    def fail(_: Sequence[Command]) -> None:
        raise LedgerUnavailable("gone", ledger="x")

    asking = Asking(fail)
    errors = asking.of(steps(3))
    assert names(errors) == ["LedgerUnavailable"] * 3
    assert len(set(map(id, errors))) == 3
    asking.fault = lambda _: None
    assert names([asking.combiner.ask(*steps(1))]) == ["Reserve"]


def test_a_deadline_is_not_waited_for_twice(steps, monkeypatch) -> None:
    """Threads that waited with the first fail with it; a late one has a turn."""
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("dpflow.ledger.combiner.time", clock)
    made = steps(4)

    def fail(commands: Sequence[Command]) -> None:
        if commands[0] is made[0]:
            raise LedgerUnavailable("locked", ledger="x", waited=0.4)

    asking = Asking(fail)
    for command in made[:3]:
        asking.start(command)
    now[0] = 0.4
    asking.start(made[3])
    assert names(asking.end(made)) == ["LedgerUnavailable"] * 3 + ["Reserve"]
    assert [len(batch) for batch in asking.batches] == [1, 1]


def test_damage_fails_only_its_own_command(steps) -> None:
    """The rest of a batch is decided one by one, also after an error of any other kind.

    A user's own cost may raise one, and must not fail the other steps.
    """
    for error in (LedgerCorrupt("damaged", ledger="x"), ZeroDivisionError()):
        for whose in range(4):
            answers = damaged(steps(4), whose, error)
            assert answers.pop(whose) is error
            assert names(answers) == ["Reserve"] * 3


def damaged(made: list[Command], whose: int, error: Exception) -> list[Any]:
    """Return the answers to commands of which one cannot be decided."""

    def fail(commands: Sequence[Command]) -> None:
        if made[whose] in commands:
            raise error

    return Asking(fail).of(made)


def test_a_settlement_does_not_share_the_witnesss_failure(steps) -> None:
    """What keeps a step from being decided is no obstacle for one that ends."""
    ends = [End(charge=f"r{n}", kind="settle", at="now", writer="me") for n in range(2)]
    first, second = steps(2)

    def fail(commands: Sequence[Command]) -> None:
        if any(command.guarded for command in commands):
            raise LedgerUnavailable("no witness", witness="x")

    answers = Asking(fail).of([first, ends[0], second, ends[1]])
    assert names(answers) == ["LedgerUnavailable", "End"] * 2


def test_a_child_stands_in_no_line_of_its_parent(steps, path: Place) -> None:
    """A fork while threads wait leaves the child nothing to wait for."""
    asking = Asking(lambda _: None)
    made = steps(3)
    for command in made[:2]:
        asking.start(command)

    def work(say: Callable[[str], None]) -> None:
        asking.go.set()
        say(type(asking.combiner.ask(made[2])).__name__)

    assert Child(work).end() == (0, ["Reserve"])
    asking.end(made[:2])


def test_each_thread_has_its_own_answer(ledger: Ledger, path: Place) -> None:
    """Granted to the last unit, refused after it; sums and journal are exact."""
    answers: list[str] = []

    def ask() -> None:
        for _ in range(5):
            try:
                ledger.settle(granted(ledger, "0.01"))
            except BudgetRefused:
                answers.append("refused")
            else:
                answers.append("granted")

    threads = [threading.Thread(target=ask) for _ in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (answers.count("granted"), answers.count("refused")) == (100, 20)
    assert sums(path) == (Fraction(1), 0)
    audit(path)
