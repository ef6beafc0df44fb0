"""The ledger against a small model of its promises, over random histories."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from dpflow.accounting.rules.tally import Tally
from dpflow.ledger.decision import settlement
from dpflow.ledger.decision.gates import Gate
from dpflow.ledger.records import Request
from dpflow.ledger.storage import loading, sqlite_transaction
from dpflow.ledger.storage.sqlite import SqliteStorage
from tests.hunts.machinery.hooks import HookedStorage
from tests.hunts.machinery.machine import MOST, QUANTUM, LedgerMachine
from tests.hunts.machinery.memory import IDENTITY, SECRET, MemoryStorage
from tests.hunts.machinery.support import (
    figure,
    first_seed,
    memory_folder,
)
from tests.hunts.machinery.tampers import TAMPERS
from tests.ledger.columns import show_columns
from tests.ledger.support import UNIT
from tests.sizes import SCALE, scaled

STEPS = 40


def play(machine: type[LedgerMachine], examples: int) -> None:
    """Play random histories, from a seed that is printed."""
    number = first_seed()
    print(f"seed {number}")
    run_state_machine_as_test(
        seed(number)(machine),
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            # A small hunt asks only whether there is anything to find.
            phases=[Phase.generate, *([Phase.shrink] if SCALE >= 1 else [])],
        ),
    )


class FileMachine(LedgerMachine):
    """The same on a file, with a connection for each worker."""

    def open(self) -> None:
        """Make a ledger file."""
        self.folder = memory_folder()
        self.path = self.folder / "ledger.db"
        SqliteStorage.create(self.path, IDENTITY, SECRET).close()
        self.raw = show_columns(sqlite3.connect(self.path, isolation_level=None))

    def storage(self) -> Any:
        """Open the file."""
        return HookedStorage(SqliteStorage(self.path))

    def teardown(self) -> None:
        """Audit the journal, and clean up."""
        super().teardown()
        self.raw.close()
        for ledger in self.workers:
            ledger.close()
        self.reader.close()
        shutil.rmtree(self.folder)


def test_the_ledger_does_what_the_model_says() -> None:
    """Crashes, repeats, exact boundaries and edits by hand included."""
    LedgerMachine.counts.clear()
    sizes = {LedgerMachine: scaled(60, 30), FileMachine: scaled(12, 6)}
    for machine, examples in sizes.items():
        play(machine, examples)
    steps = LedgerMachine.counts["steps"]
    figure("model", violations=0, examples=sum(sizes.values()), steps=steps)


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
    "reopened": [STEP, ("finish", 0, "settle", 0), ("reopen", 0, 0, True)],
}


def perform(machine: LedgerMachine, calls: list[Call]) -> None:
    """Play a written history."""
    machine.counts.clear()
    for name, *values in calls:
        getattr(machine, name)(*values)
        machine.sums_agree()
    machine.teardown()


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("machine", [LedgerMachine, FileMachine])
def test_an_event_agrees_with_the_model(
    machine: type[LedgerMachine], event: str
) -> None:
    """The searches above assert nothing about events that they may not meet."""
    perform(machine(), EVENTS[event])
    assert machine.counts[event] > 0


@pytest.mark.parametrize("at", range(MOST))
def test_a_void_that_is_sent_again_gives_no_settled_charge_back(at: int) -> None:
    """A first answer that is lost does not make the second one a success."""
    lost = [("break_end", 0, "void", 1, (at, w, ONCE[2])) for w in ("before", "after")]
    perform(LedgerMachine(), [KEYED, *lost])


#: A history with a charge in each state and two keys, for edits by hand.
RICH: list[Call] = [
    STEP,
    ("finish", 0, "void", 2),
    KEYED,
    ("reserve", 1, 303, "k2"),
    ("reserve", 1, 403, None),
]


@pytest.mark.parametrize("name", TAMPERS)
def test_an_edit_by_hand_is_noticed(name: str) -> None:
    """Each edit after the same history, by the next step or by an auditor."""
    perform(LedgerMachine(), [*RICH, ("tamper", 2, name), ("reserve", 2, 103, None)])
    assert LedgerMachine.counts[name] == 1


# Controls: the same machine finds each of these.


def one_too_many(patch: pytest.MonkeyPatch) -> None:
    """Admit what is above the budget by one unit."""
    admits, unit = Gate.admits, int(QUANTUM * UNIT)

    def lax(gate: Gate, asked: Tally) -> bool:
        less = Tally(tuple(max(amount - unit, 0) for amount in asked.amounts))
        return admits(gate, asked) or admits(gate, less)

    patch.setattr(Gate, "admits", lax)


def trusting(patch: pytest.MonkeyPatch) -> None:
    """Believe the rows without a look at the journal."""
    told = {"term": loading.Loading.CHECK["term"]}
    patch.setattr(loading.Loading, "CHECK", told)
    patch.setattr(loading.Loading, "_check_there", lambda *_: None)


def any_request_will_do(patch: pytest.MonkeyPatch) -> None:
    """Take an id that was sent for one request as the id of another."""
    patch.setattr(Request, "made", lambda *_: True)


class Forgotten(Exception):
    """A transaction is rolled back."""


def lost_commits(patch: pytest.MonkeyPatch) -> None:
    """Say yes after every fifth transaction, and roll it back."""
    write = MemoryStorage.write

    @contextmanager
    def forgetful(self: Any) -> Iterator[Any]:
        self.count = getattr(self, "count", 0) + 1
        with suppress(Forgotten), write(self) as transaction:
            yield transaction
            if self.count % 5 == 0:
                raise Forgotten

    patch.setattr(MemoryStorage, "write", forgetful)


def no_rollback(patch: pytest.MonkeyPatch) -> None:
    """Keep what a transaction wrote before it broke."""

    def commit(self: Any) -> None:
        if self.connection.in_transaction:
            self.connection.execute("COMMIT")

    patch.setattr(MemoryStorage, "roll_back", commit)


def voids_of_others(patch: pytest.MonkeyPatch) -> None:
    """Let everyone give back everyone's charges."""
    check = settlement._check

    def lax(state: Any, charge: Any, command: Any) -> bool:
        return check(state, charge, replace(command, owner=charge.owner))

    patch.setattr(settlement, "_check", lax)


def half_a_store(patch: pytest.MonkeyPatch) -> None:
    """Write the entries, and leave out what follows from them for charges."""
    store = sqlite_transaction.Tables.store

    def half(self: Any, changes: Any, entries: Any, values: Any) -> None:
        kept = {key: row for key, row in changes.items() if key[0] != "charge"}
        store(self, kept, entries, values)

    patch.setattr(sqlite_transaction.Tables, "store", half)


#: A broken promise, and a history that shows it.
CONTROLS: dict[Callable[[pytest.MonkeyPatch], None], list[Call]] = {
    one_too_many: [("reserve", 0, 1, None)],
    trusting: [*RICH, *(("tamper", 2, name) for name in TAMPERS)],
    any_request_will_do: [STEP, ("reuse", 0, 0, 7)],
    lost_commits: [STEP] * 5,
    no_rollback: [
        ("break_reserve", 0, 103, None, (at, "before", "crash")) for at in range(MOST)
    ],
    voids_of_others: [STEP, ("finish", 1, "void", 0)],
    half_a_store: [STEP, ("finish", 0, "settle", 0)],
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
