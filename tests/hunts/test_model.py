"""The ledger against a small model of its promises, over random histories."""

from __future__ import annotations

import shutil
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from dpflow.accounting.rules.tally import Tally
from dpflow.ledger.decision import settlement
from dpflow.ledger.decision.gates import Gate
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.records import Request
from dpflow.ledger.storage import loading, sqlite_transaction
from dpflow.ledger.storage.memory import Memory, forget_memory
from dpflow.ledger.storage.sqlite import SqliteStorage
from tests.hunts.auditor import Ask
from tests.hunts.hooks import HookedStorage
from tests.hunts.machine import QUANTUM, LedgerMachine
from tests.hunts.memory import IDENTITY, SECRET, MemoryStorage
from tests.hunts.support import all_happened, figure, first_seed, memory_folder
from tests.hunts.tampers import TAMPERS
from tests.ledger.columns import show_columns
from tests.ledger.faults import faulty
from tests.ledger.support import UNIT, ledger_on, make_ledger, read
from tests.postgres import server
from tests.sizes import SCALE, scaled

STEPS = 40


def play(machine: type[LedgerMachine], examples: int, *, shrink: bool = True) -> None:
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
            phases=[Phase.generate, *([Phase.shrink] if shrink and SCALE >= 1 else [])],
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


class RowsMachine(LedgerMachine):
    """The same on the ledger in memory that users have."""

    def open(self) -> None:
        """Make a ledger in memory."""
        self.memory = Memory.create(uuid.uuid4().hex, IDENTITY, SECRET)
        self.raw = show_columns(self.memory.kept.connection)

    def storage(self) -> Any:
        """Open it."""
        return HookedStorage(Memory(self.memory.name))

    def teardown(self) -> None:
        """Audit the journal, and forget it."""
        super().teardown()
        forget_memory(self.memory.place)


class PostgresMachine(LedgerMachine):
    """The same on a server, with its sessions as owners; its statements fail."""

    fault = psycopg.OperationalError("the server failed")
    # These edit tables in SQLite's words.
    tamper = reopen = rob = None

    def open(self) -> None:
        """Make a database."""
        self.place = server().new_database()
        make_ledger(self.place).close()

    def storage(self) -> Any:
        """Connect to it."""
        return faulty(self.place)

    def worker(self) -> Ledger:
        """Start a worker, who lives as long as a session of its own."""
        return ledger_on(self.storage())

    def hooks(self, worker: int) -> Any:
        """Return the hooks around a worker's statements."""
        return self.workers[worker].storage

    def ask(self) -> Ask:
        """Return what asks the database's tables."""
        return lambda sql: read(self.place, sql)

    def teardown(self) -> None:
        """Audit the journal, and drop the database."""
        super().teardown()
        for ledger in self.workers:
            ledger.close()
        self.reader.close()
        server().drop(self.place)


def test_the_ledger_does_what_the_model_says() -> None:
    """Crashes, repeats, exact boundaries, bad inputs and edits by hand included."""
    counts = LedgerMachine.counts
    counts.clear()
    sizes = {
        LedgerMachine: scaled(60, 30),
        FileMachine: scaled(12, 6),
        RowsMachine: scaled(20, 10),
    }
    for machine, examples in sizes.items():
        play(machine, examples)
    wanted = {"Granted", "refused", "Replayed", "Crash", "tampers", "wondered"}
    wanted |= {"settle none", "forfeit none", "bad inputs", "reopened"}
    # A few times in a hunt as small as at a push, and in some not at all.
    wanted |= {"Busy", "void none", "robbed"} if SCALE >= 5 else set()
    assert all_happened(wanted, counts), "something never happened"
    told = {name: counts[name] for name in ("steps", *sorted(wanted))}
    figure("model", violations=0, examples=sum(sizes.values()), **told)


def test_a_ledger_on_postgres_does_what_the_model_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Statements that fail and sessions that end are its own; the rest is the same."""
    monkeypatch.setenv("DPFLOW_WITNESS", "none")
    LedgerMachine.counts.clear()
    play(PostgresMachine, scaled(8, push=3), shrink=False)
    wanted = {"Granted", "forfeit none"}
    wanted |= {"refused", "Crash", "fails once", "Replayed"} if SCALE >= 5 else set()
    assert all_happened(wanted, LedgerMachine.counts), "something never happened"


@pytest.mark.parametrize("name", TAMPERS)
def test_an_edit_by_hand_is_noticed(name: str) -> None:
    """Each edit after the same history, by the next step or by an auditor."""
    machine = LedgerMachine()
    machine.counts.clear()
    machine.reserve(worker=0, cost=103, key=None)
    machine.finish(worker=0, how="void", pick=2)
    machine.release(worker=0, cost=203, key="k1")
    machine.reserve(worker=1, cost=303, key="k2")
    machine.reserve(worker=1, cost=403, key=None)
    machine.tamper(worker=2, name=name)
    assert machine.counts[name] == 1
    machine.reserve(worker=2, cost=103, key=None)
    machine.teardown()


def test_the_model_has_a_unit() -> None:
    """A model's unit is a whole number of tally units, so that both are exact."""
    assert (UNIT * QUANTUM).denominator == 1


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


CONTROLS = [
    one_too_many,
    trusting,
    any_request_will_do,
    lost_commits,
    no_rollback,
    voids_of_others,
    half_a_store,
]


@pytest.mark.parametrize("control", CONTROLS)
def test_the_machine_catches(
    control: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ledger that breaks one promise does not pass for a good one."""
    control(monkeypatch)
    with pytest.raises((AssertionError, sqlite3.Error)):
        play(LedgerMachine, 200, shrink=False)
