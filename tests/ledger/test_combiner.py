"""Threads that wait share a transaction, and nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import pytest

from dpflow.exceptions import BudgetRefused, LedgerCorrupt, LedgerUnavailable
from dpflow.ledger.combiner import MOST_AT_ONCE, Combiner
from dpflow.ledger.decision.admit import Reserve
from dpflow.ledger.decision.settlement import End
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.model import Command
from dpflow.ledger.records import Granted
from tests.ledger.processes import Child
from tests.ledger.support import Place, audit, granted, request, sums


def asks(ledger: Ledger) -> Reserve:
    """Make a command of a step."""
    return Reserve(request=request(ledger), at="now", writer="me")


def id_of(command: Command) -> str:
    """Return the id of a command's charge."""
    if isinstance(command, Reserve):
        return command.request.reservation
    assert isinstance(command, End)
    return command.charge


class Slow:
    """Decides batches when it is let, and remembers them."""

    def __init__(self) -> None:
        self.batches: list[list[Command]] = []
        self.started, self.go = threading.Event(), threading.Event()
        self.fault: Callable[[Sequence[Command]], None] = lambda _: None

    def decide(self, commands: Sequence[Command]) -> list[Any]:
        """Grant everything, in its time."""
        self.batches.append(list(commands))
        self.started.set()
        assert self.go.wait(10)
        self.fault(commands)
        return [Granted(reservation=id_of(each), accounts=()) for each in commands]


class Asking:
    """Threads that ask, and what each was told."""

    def __init__(self, combiner: Combiner) -> None:
        self._combiner = combiner
        self._threads: list[threading.Thread] = []
        self.told: dict[str, object] = {}

    def start(self, made: Command) -> None:
        """Let a thread ask, and wait until it stands in line."""
        thread = threading.Thread(target=self._ask, args=[made])
        thread.start()
        self._threads.append(thread)
        time.sleep(0.005)

    def _ask(self, made: Command) -> None:
        try:
            self.told[id_of(made)] = self._combiner.ask(made)
        except BaseException as error:
            self.told[id_of(made)] = error

    def end(self) -> None:
        """Wait for all of them."""
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()


def test_who_waits_is_decided_together_in_order(ledger: Ledger) -> None:
    """While the first is decided the others stand in line, at most 64 at once."""
    slow = Slow()
    asking = Asking(Combiner(slow.decide))
    made = [asks(ledger) for _ in range(MOST_AT_ONCE + 3)]
    for each in made:
        asking.start(each)
    slow.go.set()
    asking.end()
    assert [len(batch) for batch in slow.batches] == [1, MOST_AT_ONCE, 2]
    assert made == [each for batch in slow.batches for each in batch]
    for each in made:
        assert asking.told[id_of(each)] == Granted(reservation=id_of(each), accounts=())


def test_an_interrupt_is_for_the_thread_that_it_meets(ledger: Ledger) -> None:
    """The others are decided all the same, by the next of them."""
    slow = Slow()
    asking = Asking(Combiner(slow.decide))
    made = [asks(ledger) for _ in range(4)]
    asking.start(made[0])
    for each in made[1:]:
        asking.start(each)

    def interrupt(requests: Sequence[Command]) -> None:
        if requests[0] is made[1]:
            raise KeyboardInterrupt

    slow.fault = interrupt
    slow.go.set()
    asking.end()
    told = [type(asking.told[id_of(each)]).__name__ for each in made]
    assert told == ["Granted", "KeyboardInterrupt", "Granted", "Granted"]
    assert [len(batch) for batch in slow.batches] == [1, 3, 2]


def test_an_unavailable_ledger_is_told_to_each(ledger: Ledger) -> None:
    """With errors of their own, and the next who asks is served."""
    slow = Slow()
    combiner = Combiner(slow.decide)
    asking = Asking(combiner)

    def fail(_: Sequence[Command]) -> None:
        raise LedgerUnavailable("gone", ledger="x")

    slow.fault = fail
    made = [asks(ledger) for _ in range(3)]
    for each in made:
        asking.start(each)
    slow.go.set()
    asking.end()
    errors = [asking.told[id_of(each)] for each in made]
    assert [type(error) for error in errors] == [LedgerUnavailable] * 3
    assert len({id(error) for error in errors}) == 3
    slow.fault = lambda _: None
    assert isinstance(combiner.ask(asks(ledger)), Granted)


def test_a_deadline_is_not_waited_for_twice(ledger: Ledger) -> None:
    """Who waited beside the first is told with it; who came late has a turn."""
    slow = Slow()
    asking = Asking(Combiner(slow.decide))
    made = [asks(ledger) for _ in range(4)]

    def fail(requests: Sequence[Command]) -> None:
        if requests[0] is made[0]:
            raise LedgerUnavailable("locked", ledger="x", waited=0.4)

    slow.fault = fail
    for each in made[:3]:
        asking.start(each)
    time.sleep(0.4)
    asking.start(made[3])
    slow.go.set()
    asking.end()
    told = [type(asking.told[id_of(each)]).__name__ for each in made]
    assert told == ["LedgerUnavailable"] * 3 + ["Granted"]
    assert [len(batch) for batch in slow.batches] == [1, 1]


@pytest.mark.parametrize("whose", [0, 1, 2, 3])
@pytest.mark.parametrize(
    "error", [LedgerCorrupt("damaged", ledger="x"), ZeroDivisionError()]
)
def test_damage_is_told_to_whom_it_concerns(
    ledger: Ledger, error: Exception, whose: int
) -> None:
    """The rest of a batch is decided one by one, also after an error of any other kind.

    A cost of somebody's own may raise one, and must not fail the steps beside it.
    """
    slow = Slow()
    asking = Asking(Combiner(slow.decide))
    made = [asks(ledger) for _ in range(4)]

    def fail(requests: Sequence[Command]) -> None:
        if made[whose] in requests:
            raise error

    slow.fault = fail
    for each in made:
        asking.start(each)
    slow.go.set()
    asking.end()
    told = [asking.told[id_of(each)] for each in made]
    assert told.pop(whose) is error
    assert [type(each) for each in told] == [Granted] * 3


def test_a_settlement_does_not_share_the_witnesss_failure(ledger: Ledger) -> None:
    """What keeps a step from being decided is no obstacle for one that ends."""
    slow = Slow()
    asking = Asking(Combiner(slow.decide))
    ends = [End(charge=f"r{n}", kind="settle", at="now", writer="me") for n in range(2)]
    made: list[Command] = [asks(ledger), ends[0], asks(ledger), ends[1]]

    def fail(commands: Sequence[Command]) -> None:
        if any(each.guarded for each in commands):
            raise LedgerUnavailable("no witness", witness="x")

    slow.fault = fail
    for each in made:
        asking.start(each)
    slow.go.set()
    asking.end()
    told = [type(asking.told[id_of(each)]).__name__ for each in made]
    assert told == ["LedgerUnavailable", "Granted"] * 2


def test_a_child_stands_in_no_line_of_its_parent(ledger: Ledger, path: Place) -> None:
    """A fork while threads wait leaves the child nothing to wait for."""
    slow = Slow()
    combiner = Combiner(slow.decide)
    asking = Asking(combiner)
    asking.start(asks(ledger))
    asking.start(asks(ledger))

    def work(say: Callable[[str], None]) -> None:
        slow.go.set()
        say(type(combiner.ask(asks(ledger))).__name__)

    assert Child(work).end() == (0, ["Granted"])
    slow.go.set()
    asking.end()


def test_each_thread_has_its_own_answer(ledger: Ledger, path: Place) -> None:
    """Granted to the last unit, refused after it; sums and journal are exact."""
    told: list[str] = []

    def ask() -> None:
        for _ in range(5):
            try:
                ledger.settle(granted(ledger, "0.01"))
            except BudgetRefused:
                told.append("refused")
            else:
                told.append("granted")

    threads = [threading.Thread(target=ask) for _ in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (told.count("granted"), told.count("refused")) == (100, 20)
    assert sums(path) == (Fraction(1), 0)
    audit(path)
