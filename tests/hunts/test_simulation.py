"""Thousands of interleavings with deaths, lost answers and clocks that jump."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from dpflow.ledger.decision.admit import Reserve
from dpflow.ledger.model import Decision
from dpflow.ledger.state import State

from dpflow.exceptions import LedgerError
from dpflow.ledger.decisions.gates import Gate
from dpflow.ledger.ledger import Ledger
from tests.hunts.machinery.simulation import (
    CLOCKS,
    SimulatedStorage,
    Simulation,
)
from tests.hunts.machinery.support import figure, first_seed
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


#: What each hunt is about, by the name that the simulation counts.
EVENTS = ("Granted", "Replayed", "Busy", "deaths", "unsettled", "forfeited")
EVENTS += ("left alone", "LedgerUnavailable")


def test_every_history_keeps_the_promises(clock: dict[str, Simulation]) -> None:
    """Nothing acknowledged is lost, nothing runs uncharged, nothing is overspent."""
    start, seeds = first_seed(), scaled(100, 60)
    print(f"seeds from {start}")
    counts: Counter[str] = Counter()
    for seed in range(start, start + seeds):
        counts.update(play(clock, seed).counts)
    figure("simulation", violations=0, first_seed=start, seeds=seeds, **counts)


#: The same histories at every run: no luck decides what they meet.
EXAMPLES = range(2, 42)


def test_histories_meet_each_event(clock: dict[str, Simulation]) -> None:
    """The search above asserts nothing about events that it may not meet."""
    counts: Counter[str] = Counter()
    for seed in EXAMPLES:
        counts.update(play(clock, seed).counts)
    assert [event for event in EVENTS if not counts[event]] == []


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
    with pytest.raises((AssertionError, LedgerError)):
        [play(clock, seed) for seed in EXAMPLES]
