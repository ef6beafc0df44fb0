"""Thousands of interleavings with deaths, lost answers and clocks that jump."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from dpflow.exceptions import LedgerError
from dpflow.ledger.decision import admit
from dpflow.ledger.decision.gates import Gate
from dpflow.ledger.ledger import Ledger
from tests.hunts.machinery.memory import MemoryStorage
from tests.hunts.machinery.simulation import SimulatedStorage, Simulation
from tests.hunts.machinery.support import all_happened, figure, first_seed, shared_out
from tests.sizes import scaled


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, Simulation]:
    """Let the running simulation say what time it is."""
    running: dict[str, Simulation] = {}
    label = Ledger.label

    def told(ledger: Ledger) -> dict[str, Any]:
        return {**label(ledger), "at": running["it"].now()}

    monkeypatch.setattr(Ledger, "label", told)
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
    start, seeds = first_seed(), scaled(100, 60)
    print(f"seeds from {start}")

    def work(part: range) -> Counter[str]:
        counts: Counter[str] = Counter()
        for seed in part:
            counts.update(play(clock, seed).counts)
        return counts

    counts = shared_out(work, range(start, start + seeds))
    wanted = {"Granted", "Replayed", "Busy", "deaths", "unsettled", "forfeited"}
    wanted |= {"BudgetExhausted", "left alone", "LedgerUnavailable"}
    assert all_happened(wanted, counts), "something never happened"
    figure("simulation", violations=0, first_seed=start, seeds=seeds, **counts)


def test_a_seed_is_a_history(clock: dict[str, Simulation]) -> None:
    """The same seed plays the same history, so that a failure can be played again."""
    runs = [play(clock, 7) for _ in range(2)]
    assert runs[0].counts == runs[1].counts
    journals = []
    for run in runs:
        sql = "SELECT at, book, number, kind, charge FROM entry ORDER BY book, number"
        journals.append(run.storage.connection.execute(sql).fetchall())
    assert journals[0] == journals[1]
    times_told = [at for at, *_ in journals[0]]
    assert times_told != sorted(times_told), "the clock never jumped back"


# Controls: the same histories find each of these.


class Forgetful(SimulatedStorage):
    """A disk that says yes and loses one transaction in fifty."""

    @contextmanager
    def write(self) -> Iterator[Any]:
        """Run a block; perhaps forget it."""
        with self.lock(), MemoryStorage.write(self) as transaction:
            yield transaction
            if self.simulation.random.random() < 0.02:
                self.connection.execute("ROLLBACK")
                self.connection.execute("BEGIN")
        self.committed()


class Unlocked(SimulatedStorage):
    """A lock that lets everybody in."""

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Wait for nobody."""
        yield


class Stale(SimulatedStorage):
    """A disk that shows each worker what it saw at its first look."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self.seen: dict[str, Any] = {}

    @contextmanager
    def write(self) -> Iterator[Any]:
        """Run a block that does not see what others committed since."""
        with super().write() as transaction:
            yield StaleTransaction(transaction, self.seen)


class StaleTransaction:
    """A transaction whose loads are remembered."""

    def __init__(self, within: Any, seen: dict[str, Any]) -> None:
        self._within, self._seen = within, seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._within, name)

    def load(self, keys: Any) -> Any:
        """Load accounts once, and remember them."""
        state = self._within.load(keys)
        rows = dict(state.rows)
        for key, row in rows.items():
            if key[0] == "account":
                rows[key] = self._seen.setdefault(key[1], row)
        return replace(state, rows=rows)


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
    patch.setattr(Gate, "admits", lambda *_: True)


def fresh_ids(patch: pytest.MonkeyPatch) -> None:
    """Forget that an id was sent before."""
    patch.setattr(admit, "_known", lambda *_: None)


@pytest.mark.parametrize(
    "options",
    [
        {"storage": Forgetful},
        {"storage": Unlocked},
        {"storage": Stale},
        {"operator": janitor},
    ],
    ids=["forgetful", "unlocked", "stale", "janitor"],
)
def test_a_broken_part_is_found(
    clock: dict[str, Simulation], options: dict[str, Any]
) -> None:
    """A disk that forgets, a lock that does not lock, old accounts, leases."""
    with pytest.raises((AssertionError, LedgerError)):
        play_many(clock, **options)


@pytest.mark.parametrize("control", [generous, fresh_ids])
def test_a_broken_decision_is_found(
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
