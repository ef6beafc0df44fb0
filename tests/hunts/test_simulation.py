"""Thousands of interleavings with deaths, lost answers and clocks that jump."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from dpflow.exceptions import LedgerError
from dpflow.ledger.decision.admit import Reserve
from dpflow.ledger.decision.gates import Gate
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.model import Decision
from dpflow.ledger.state import State
from tests.hunts.machinery.simulation import (
    CLOCKS,
    SimulatedStorage,
    Simulation,
    forfeit,
)
from tests.hunts.machinery.support import Crash, figure, first_seed
from tests.sizes import scaled


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, Simulation]:
    """Let the running simulation say what time it is."""
    # Caches of solved numbers outlast a test, and would add transactions to some.
    monkeypatch.setattr(
        "dpflow.ledger.ledger.only_solved", lambda **_: contextlib.nullcontext()
    )
    running: dict[str, Simulation] = {}
    own = Ledger.label

    def label(ledger: Ledger) -> dict[str, Any]:
        return {**own(ledger), "at": running["it"].random.choice(CLOCKS)}

    monkeypatch.setattr(Ledger, "label", label)
    return running


def play(clock: dict[str, Simulation], seed: int) -> Simulation:
    """Play one seed, whose number a failure names."""
    clock["it"] = simulation = Simulation(seed)
    try:
        return simulation.run()
    except BaseException:
        print(f"seed {seed}")
        raise


def test_every_history_keeps_the_promises(clock: dict[str, Simulation]) -> None:
    """Nothing acknowledged is lost, nothing runs uncharged, nothing is overspent."""
    start, seeds = first_seed(), scaled(100, 60)
    print(f"seeds from {start}")
    counts: Counter[str] = Counter()
    for seed in range(start, start + seeds):
        counts.update(play(clock, seed).counts)
    figure("simulation", violations=0, first_seed=start, seeds=seeds, **counts)


class Scripted(Random):
    """Chance that decides as a test says."""

    key: str | None = None
    fate = 0.5

    def random(self) -> float:
        """Return the fate of commits, workers and bodies."""
        return self.fate

    def choice(self, options: Any) -> Any:
        """Return the key where there is a choice of keys, else the first option."""
        return self.key if self.key in options else options[0]


def test_each_event_keeps_the_promises(clock: dict[str, Simulation]) -> None:
    """The search above asserts nothing about events that it may not meet."""
    clock["it"] = simulation = Simulation(0)
    simulation.random = chance = Scripted()
    one, other = simulation.ledger(), simulation.ledger()
    chance.key = "k1"
    request = simulation.make(one)
    simulation.send(one, [request])
    simulation.work(other)
    forfeit(simulation, other, request.reservation)
    simulation.run_body(one, request)
    simulation.work(other)
    chance.key, chance.fate = None, 0.01
    simulation.work(one)
    chance.fate = 0.0
    with pytest.raises(Crash):
        simulation.work(one)
    one.owners.close()
    chance.fate = 0.5
    forfeit(simulation, other, "r3")
    simulation.send(other, [simulation.make(other)])
    for _ in range(40):
        simulation.work(other)
    simulation.check()
    wanted = {"Granted", "Replayed", "Busy", "deaths", "unsettled", "forfeited"}
    wanted |= {"BudgetExhausted", "left alone", "LedgerUnavailable"}
    assert {name for name in wanted if not simulation.counts[name]} == set()


# Controls: the same histories find each of these.


def unlocked(patch: pytest.MonkeyPatch) -> None:
    """Give the lock to all."""
    patch.setattr(SimulatedStorage, "lock", lambda _: contextlib.nullcontext())


def generous(patch: pytest.MonkeyPatch) -> None:
    """Admit everything."""
    patch.setattr(Gate, "admits", lambda *_: True)


def fresh_ids(patch: pytest.MonkeyPatch) -> None:
    """Forget that an id was sent before."""
    decide, charge = Reserve.decide, State.charge

    def forgetful(command: Reserve, state: State) -> Decision:
        mine = command.request.reservation
        with patch.context() as inner:
            inner.setattr(
                State, "charge", lambda s, n: None if n == mine else charge(s, n)
            )
            return decide(command, state)

    patch.setattr(Reserve, "decide", forgetful)


@pytest.mark.parametrize("control", [unlocked, generous, fresh_ids])
def test_a_broken_decision_is_found(
    clock: dict[str, Simulation],
    control: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lock that does not lock, a gate that is open, ids that are forgotten."""
    control(monkeypatch)
    start = first_seed()
    with pytest.raises((AssertionError, LedgerError)):
        [play(clock, seed) for seed in range(start, start + 100)]
