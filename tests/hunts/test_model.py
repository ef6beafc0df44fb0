"""The ledger against a small model of its promises, over random histories."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from dpflow.ledger.storage.tables import Transaction
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from dpflow.accounting.rules.tally import Tally
from dpflow.ledger.decision import settlement
from dpflow.ledger.decisions.gates import Gate
from dpflow.ledger.requests import Request
from tests.hunts.machinery.machine import MOST, QUANTUM, LedgerMachine
from tests.hunts.machinery.support import MemoryStorage, figure, first_seed
from tests.ledger.support import UNIT
from tests.sizes import scaled


def play(examples: int) -> None:
    """Play random histories, from a seed that is printed."""
    number = first_seed()
    print(f"seed {number}")
    run_state_machine_as_test(
        seed(number)(LedgerMachine),
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink],
        ),
    )


def test_the_ledger_does_what_the_model_says() -> None:
    """Crashes, failures, repeats and exact boundaries included."""
    LedgerMachine.counts.clear()
    examples = scaled(72, 30)
    play(examples)
    steps = LedgerMachine.counts["steps"]
    figure("model", violations=0, examples=examples, steps=steps)


#: A call of a rule of the machine: its name and values.
Call = tuple[Any, ...]
STEP: Call = ("reserve", 0, 103, None)
KEYED: Call = ("release", 0, 203, "k1")
ONCE, ALWAYS = (0, "before", "fails once"), (0, "before", "fails for ever")
#: What every hunt is about, by the name that the machine counts.
EVENTS: dict[str, list[Call]] = {
    "Granted": [STEP],
    "refused": [("reserve", 0, 1, None)],
    "Replayed": [KEYED],
    "Busy": [("reserve", 0, 103, "k1"), ("reserve", 1, 103, "k1")],
    "Crash": [("break_reserve", 0, 103, None, (0, "before", "crash"))],
    "fails once": [("break_reserve", 0, 103, None, ONCE)],
    "LedgerUnavailable": [("break_reserve", 0, 103, None, ALWAYS)],
    "wondered": [("wonder", 0, 103, None)],
    "settle none": [STEP, ("finish", 0, "settle", 0)],
    "void none": [STEP, ("finish", 0, "void", 0)],
    "forfeit none": [("bury", 0, "k1")],
}


def perform(machine: LedgerMachine, calls: list[Call]) -> None:
    """Play a written history."""
    machine.counts.clear()
    for name, *values in calls:
        getattr(machine, name)(*values)
        machine.sums_agree()
    machine.teardown()


def test_each_event_agrees_with_the_model() -> None:
    """The search above asserts nothing about events that it may not meet."""
    for event, calls in EVENTS.items():
        perform(LedgerMachine(), calls)
        assert LedgerMachine.counts[event] > 0, event


def test_a_void_that_is_sent_again_gives_no_settled_charge_back() -> None:
    """A first answer that is lost does not make the second one a success."""
    for at in range(MOST):
        lost = [
            ("break_end", 0, "void", 1, (at, when, "fails once"))
            for when in ("before", "after")
        ]
        perform(LedgerMachine(), [KEYED, *lost])


# Controls: the same machine finds each of these.


def one_too_many(patch: pytest.MonkeyPatch) -> None:
    """Admit what is above the budget by one unit."""
    admits, unit = Gate.admits, int(QUANTUM * UNIT)

    def lax(gate: Gate, price: Tally) -> bool:
        less = Tally(tuple(max(amount - unit, 0) for amount in price.amounts))
        return admits(gate, price) or admits(gate, less)

    patch.setattr(Gate, "admits", lax)


def any_request_will_do(patch: pytest.MonkeyPatch) -> None:
    """Take an id that was sent for one request as the id of another."""
    patch.setattr(Request, "made", lambda *_: True)


def lost_commits(patch: pytest.MonkeyPatch) -> None:
    """Say yes after every fifth transaction, and roll it back."""
    write = MemoryStorage.write

    @contextmanager
    def forgetful(self: Any) -> Iterator[Any]:
        self.count = getattr(self, "count", 0) + 1
        with write(self) as transaction:
            yield transaction
            if self.count % 5 == 0:
                self.connection.execute("ROLLBACK")
                self.connection.execute("BEGIN")

    patch.setattr(MemoryStorage, "write", forgetful)


def no_rollback(patch: pytest.MonkeyPatch) -> None:
    """Keep what a transaction wrote before it broke."""

    def commit(self: Any) -> None:
        if self.connection.in_transaction:
            self.connection.execute("COMMIT")

    patch.setattr(MemoryStorage, "roll_back", commit)


def voids_of_others(patch: pytest.MonkeyPatch) -> None:
    """Let everyone give back everyone's charges."""
    check = settlement._has_ended

    def lax(state: Any, charge: Any, command: Any) -> bool:
        return check(state, charge, replace(command, owner=charge.owner))

    patch.setattr(settlement, "_has_ended", lax)


def half_a_store(patch: pytest.MonkeyPatch) -> None:
    """Write the entries, and leave out the values that were to be kept."""
    append = Transaction.append
    patch.setattr(Transaction, "append", lambda self, e, _: append(self, e, {}))


#: A broken promise, and a history that shows it.
CONTROLS: dict[Callable[[pytest.MonkeyPatch], None], list[Call]] = {
    one_too_many: [("reserve", 0, 1, None)],
    any_request_will_do: [STEP, ("reuse", 0, 0, 7)],
    lost_commits: [STEP] * 5,
    no_rollback: [
        call
        for at in range(MOST)
        for call in (
            ("reserve", 0, 103, f"k{at}"),
            ("break_end", 0, "settle", 0, (at, "before", "crash")),
            ("reserve", 1, 103, f"k{at}"),
        )
    ],
    voids_of_others: [STEP, ("finish", 1, "void", 0)],
    half_a_store: [KEYED],
}


@pytest.mark.parametrize("control", CONTROLS)
def test_the_machine_catches(
    control: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ledger that breaks one promise does not pass for a good one."""
    perform(LedgerMachine(), CONTROLS[control])
    control(monkeypatch)
    with pytest.raises((AssertionError, sqlite3.Error)):
        perform(LedgerMachine(), CONTROLS[control])
