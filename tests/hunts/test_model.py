"""The ledger against a small model of its promises, over random histories."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from dpflow.accounting.tally import Tally
from dpflow.ledger.account import Account, account_from_row
from dpflow.ledger.database import Database, Session
from dpflow.ledger.records import Request
from dpflow.ledger.sqlite import SqliteDatabase
from tests.hunts.machine import QUANTUM, LedgerMachine
from tests.hunts.memory import MemoryDatabase
from tests.hunts.support import (
    all_happened,
    figure,
    first_seed,
    memory_folder,
    replace_everywhere,
    times,
)
from tests.ledger.support import UNIT, new_ledger

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
            phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
        ),
    )


class FileMachine(LedgerMachine):
    """The same on a file, with a connection for each worker."""

    def place(self) -> tuple[sqlite3.Connection, Callable[[], Database]]:
        """Make a ledger file."""
        self.folder = memory_folder()
        new_ledger(self.folder).close()
        path = self.folder / "ledger.db"
        raw = sqlite3.connect(path, isolation_level=None)
        return raw, lambda: SqliteDatabase(path)

    def teardown(self) -> None:
        """Audit the journal, and clean up."""
        super().teardown()
        self.raw.close()
        for ledger in self.workers:
            ledger.close()
        self.reader.close()
        shutil.rmtree(self.folder)


def test_the_ledger_does_what_the_model_says() -> None:
    """Crashes, repeats, exact boundaries, bad inputs and edits by hand included."""
    counts = LedgerMachine.counts
    counts.clear()
    play(LedgerMachine, times(420))
    play(FileMachine, times(80))
    wanted = {"Granted", "refused", "Replayed", "Busy", "Crash", "tampers"}
    wanted |= {"settle none", "void none", "forfeit none", "bad inputs", "reopened"}
    wanted |= {"wondered"}
    assert all_happened(wanted, counts), "something never happened"
    told = {name: counts[name] for name in ("steps", *sorted(wanted))}
    figure("model", violations=0, examples=times(420) + times(80), **told)


def test_the_model_has_a_unit() -> None:
    """A model's unit is a whole number of tally units, so that both are exact."""
    assert (UNIT * QUANTUM).denominator == 1


# Controls: the same machine finds each of these.


def one_too_many(patch: pytest.MonkeyPatch) -> None:
    """Admit what is above the budget by one unit."""
    admits, unit = Account.admits, int(QUANTUM * UNIT)

    def lax(account: Account, asked: Tally) -> bool:
        less = Tally(tuple(max(amount - unit, 0) for amount in asked.amounts))
        return admits(account, asked) or admits(account, less)

    patch.setattr(Account, "admits", lax)


def trusting(patch: pytest.MonkeyPatch) -> None:
    """Believe the account's row without a look at the journal."""

    def read(session: Session, account_id: str) -> Account | None:
        rows = session.rows("read_account", id=account_id)
        return account_from_row(rows[0]) if rows else None

    replace_everywhere(patch, "read_account", lambda _: read)


def any_request_will_do(patch: pytest.MonkeyPatch) -> None:
    """Take an id that was sent for one request as the id of another."""
    patch.setattr(Request, "fingerprint", lambda _: "0" * 64)


class Forgotten(Exception):
    """A transaction is rolled back."""


def lost_commits(patch: pytest.MonkeyPatch) -> None:
    """Say yes after every fifth transaction, and roll it back."""
    write = MemoryDatabase.write

    @contextmanager
    def forgetful(self: Any) -> Iterator[Session]:
        self.count = getattr(self, "count", 0) + 1
        with suppress(Forgotten), write(self) as session:
            yield session
            if self.count % 5 == 0:
                raise Forgotten

    patch.setattr(MemoryDatabase, "write", forgetful)


def no_rollback(patch: pytest.MonkeyPatch) -> None:
    """Keep what a transaction wrote before it broke."""

    def commit(self: Any) -> None:
        if self.connection.in_transaction:
            self.connection.execute("COMMIT")

    patch.setattr(MemoryDatabase, "roll_back", commit)


def voids_of_others(patch: pytest.MonkeyPatch) -> None:
    """Let everyone give back everyone's charges."""
    from dpflow.ledger import kernel

    row = kernel.Ledger.locked_row

    def mine(self: Any, *arguments: Any) -> Any:
        return {**dict(row(self, *arguments)), "owner": self.owners.mine()}

    patch.setattr(kernel.Ledger, "locked_row", mine)


CONTROLS = [
    one_too_many,
    trusting,
    any_request_will_do,
    lost_commits,
    no_rollback,
    voids_of_others,
]


@pytest.mark.parametrize("control", CONTROLS)
def test_the_machine_catches(
    control: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ledger that breaks one promise does not pass for a good one."""
    control(monkeypatch)
    with pytest.raises((AssertionError, sqlite3.Error)):
        play(LedgerMachine, 200, shrink=False)
