"""Thousands of interleavings with deaths, lost answers and clocks that jump."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dpflow.exceptions import LedgerError
from dpflow.ledger import Ledger
from dpflow.ledger.account import Account
from dpflow.ledger.database import Session
from dpflow.ledger.recall import Recall
from tests.hunts.memory import MemoryDatabase
from tests.hunts.simulation import PointedSession, SimulatedDatabase, Simulation
from tests.hunts.support import (
    all_happened,
    figure,
    first_seed,
    replace_everywhere,
    shared_out,
    times,
)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, Simulation]:
    """Let the running simulation say what time it is."""
    running: dict[str, Simulation] = {}
    replace_everywhere(
        monkeypatch,
        "now",
        lambda now: lambda: running["it"].now() if running else now(),
    )
    return running


def play(clock: dict[str, Simulation], seed: int, **options: Any) -> Simulation:
    """Play one seed, whose number a failure names."""
    clock["it"] = simulation = Simulation(seed, **options)
    try:
        return simulation.run()
    except BaseException:
        print(f"seed {seed}")
        raise


def test_every_history_keeps_the_promises(clock: dict[str, Simulation]) -> None:
    """Nothing acknowledged is lost, nothing runs uncharged, nothing is overspent."""
    start, seeds = first_seed(), times(1000)
    print(f"seeds from {start}")

    def work(part: range) -> Counter[str]:
        counts: Counter[str] = Counter()
        for seed in part:
            counts.update(play(clock, seed).counts)
        return counts

    counts = shared_out(work, range(start, start + seeds))
    wanted = {"Granted", "Replayed", "Busy", "deaths", "unsettled", "forfeited"}
    wanted |= {"BudgetRefused", "left alone", "LedgerUnavailable"}
    assert all_happened(wanted, counts), "something never happened"
    figure("simulation", violations=0, first_seed=start, seeds=seeds, **counts)


def test_a_seed_is_a_history(clock: dict[str, Simulation]) -> None:
    """The same seed plays the same history, so that a failure can be played again."""
    runs = [play(clock, 7) for _ in range(2)]
    assert runs[0].counts == runs[1].counts
    journals = []
    for run in runs:
        sql = "SELECT account, seq, kind, reservation, at FROM entry"
        journals.append(run.database.connection.execute(sql).fetchall())
    assert [tuple(row) for row in journals[0]] == [tuple(row) for row in journals[1]]
    times_told = [row["at"] for row in journals[0]]
    assert times_told != sorted(times_told), "the clock never jumped back"


# Controls: the same histories find each of these.


class Forgetful(SimulatedDatabase):
    """A disk that says yes and loses one transaction in fifty."""

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Run a block; perhaps forget it."""
        with self.lock(), MemoryDatabase.write(self) as session:
            yield PointedSession(session, self.simulation, Recall())
            if self.simulation.random.random() < 0.02:
                self.connection.execute("ROLLBACK")
                self.connection.execute("BEGIN")
        self.committed()


class Unlocked(SimulatedDatabase):
    """A lock that lets everybody in."""

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Wait for nobody."""
        yield


class Unaware(SimulatedDatabase):
    """A memory that does not hear what others commit."""

    def of_others(self, own: int) -> int:
        """Say that there were none."""
        return 0 * own


def janitor(simulation: Simulation, ledger: Ledger, reservation: str) -> None:
    """Give back the charges of the dead, as leases that expire would."""
    owners: Any = ledger.owners
    owner = simulation.told.asked[reservation].owner
    if not owners.alive(owner):
        mine, owners._name = owners._name, owner
        simulation.try_to(lambda: ledger.void(reservation, reason="expired"))
        owners._name = mine


def generous(patch: pytest.MonkeyPatch) -> None:
    """Admit everything."""
    patch.setattr(Account, "admits", lambda *_: True)


def fresh_ids(patch: pytest.MonkeyPatch) -> None:
    """Forget that an id was sent before."""
    replace_everywhere(patch, "known", lambda _: lambda *_: None)


@pytest.mark.parametrize(
    "options",
    [
        {"database": Forgetful},
        {"database": Unlocked},
        {"database": Unaware},
        {"operator": janitor},
    ],
    ids=["forgetful", "unlocked", "unaware", "janitor"],
)
def test_a_broken_part_is_found(
    clock: dict[str, Simulation], options: dict[str, Any]
) -> None:
    """A disk that forgets, a lock that does not lock, an old memory, leases."""
    with pytest.raises((AssertionError, LedgerError)):
        play_many(clock, **options)


@pytest.mark.parametrize("control", [generous, fresh_ids])
def test_a_broken_kernel_is_found(
    clock: dict[str, Simulation],
    control: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A gate that is open, ids that are forgotten."""
    control(monkeypatch)
    with pytest.raises((AssertionError, LedgerError)):
        play_many(clock)


def play_many(clock: dict[str, Simulation], **options: Any) -> None:
    """Play a hundred seeds, or fewer if one fails."""
    start = first_seed()
    for seed in range(start, start + 100):
        play(clock, seed, **options)
