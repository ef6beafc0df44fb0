"""SIGKILL at every point of every operation, and storms of kills at any moment."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dpflow.exceptions import BudgetRefused
from dpflow.ledger.opening import open_ledger
from tests.faults.auditor import audited
from tests.faults.drivers import FaultyConnection, FaultySqlite
from tests.faults.support import IDENTITY, SECRET, figure, first_seed
from tests.faults.trials import ACTIONS, CAP, Action, Trial
from tests.ledger.processes import Child, die, dying
from tests.ledger.support import make_ledger, make_policy, request, sums, url
from tests.sizes import SCALE, scaled

#: More statements than any operation has.
MOST = 80


class Debtor(FaultyConnection):
    """A connection that puts off its commits."""

    owed = False

    def rollback(self) -> None:
        """Leave the transaction, unless it was to be committed."""
        if not self.owed:
            self._connection.rollback()

    def execute(self, sql: str, *values: Any) -> Any:
        """Run a statement, or what was put off and then the statement."""
        if sql == "COMMIT":
            self.owed = True
            return super().execute("SELECT 1")
        if self.owed:
            self.owed = False
            super().execute("COMMIT")
        return super().execute(sql, *values)


class Lazy(FaultySqlite):
    """A database that says yes first and commits when it is used again."""

    wire = Debtor


def die_at_every_point(
    folder: Path,
    action: Callable[[Trial], Action],
    when: str,
    kind: type[FaultySqlite] = FaultySqlite,
) -> int:
    """Kill a process at each point of an operation; return how many there are."""
    path = folder / "ledger.db"
    FaultySqlite.create(path, IDENTITY, SECRET).close()
    for number in range(MOST):

        def run(say: Callable[[str], None], at: int = number) -> None:
            database = kind(path)
            trial = Trial.on(database)
            do, aims = action(trial)
            say(json.dumps([trial.sure, aims]))
            setattr(database, when, dying(at))
            do()
            say("acknowledged")
            die()

        _, (first, *rest) = Child(run).end()
        sure, aims = json.loads(first)
        states = audited(path, CAP)
        for name, state in aims.items():
            allowed = {state} if rest else {state, sure.get(name)}
            assert states.get(name) in allowed, "neither before nor after"
        done = {states.get(name) == state for name, state in aims.items()}
        assert len(done) < 2, "half of it happened"
        assert sure.keys() <= states.keys(), "an acknowledged reservation is lost"
        if rest:
            return number
    raise AssertionError("more points than expected")


@pytest.mark.promise("killed-process")
def test_death_at_every_point(tmp_path):
    """Of a reservation, a settlement, a void, a forfeit and an opening."""
    counts: Counter[str] = Counter()
    # After a statement, nothing differs from before the next.
    for action, when in product(ACTIONS, ["after", "before"][: 2 if SCALE > 1 else 1]):
        place = tmp_path / f"{action.__name__}-{when}"
        counts[action.__name__] += die_at_every_point(place, action, when)
    assert min(counts.values()) >= 2
    assert counts.total() > 20
    figure("SIGKILL points", violations=0, points=counts.total(), **counts)


def test_points_find_a_lazy_commit(tmp_path):
    """An acknowledgement before the commit."""
    with pytest.raises(AssertionError, match=r"lost|neither before nor after"):
        die_at_every_point(tmp_path, ACTIONS[0], "before", Lazy)


# Storms

WORKERS = 4
BUDGET = Fraction(1, 10)
STORM_POLICY = make_policy(budget="{epsilon: 0.1}")
#: What a worker says before and after each thing that it does.
WORDS = ("begins", "granted", "voids", "void", "settled")


def work(at: str, say: Callable[[str], None]) -> None:
    """Reserve and settle, or void, until the budget is exhausted."""
    ledger, chance = open_ledger(at), Random()
    while True:
        step = request(ledger, "0.001", policies=[STORM_POLICY])
        name = step.reservation
        say(f"begins {name}")
        try:
            ledger.reserve(step)
        except BudgetRefused:
            return
        say(f"granted {name}")
        if chance.random() < 0.05:
            say(f"voids {name}")
            ledger.void(name, reason="test")
            say(f"void {name}")
        else:
            ledger.settle(name)
            say(f"settled {name}")


@pytest.mark.promise("killed-process")
def test_a_storm_of_kills_loses_nothing(place):
    """Workers are killed at any moment while the budget runs out, and replaced.

    Each acknowledged charge stays, and not one charge more fits.
    """
    make_ledger(place).close()
    names: dict[str, set[str]] = {word: set() for word in WORDS}

    def start() -> Child:
        return Child(lambda say: work(url(place), say))

    def end(worker: Child) -> bool:
        """Hear a worker to its end, and return True if it was killed."""
        code, lines = worker.end()
        assert code in {-signal.SIGKILL, 0}, "\n".join(lines)
        for line in lines:
            word, _, name = line.partition(" ")
            # The last line may be torn.
            if word in WORDS and len(name) == 32:
                names[word].add(name)
        return code != 0

    seed, kills = first_seed(), 0
    chance, workers = Random(seed), [start() for _ in range(WORKERS)]
    for _ in range(scaled(30, push=10)):
        time.sleep(chance.random() * 0.03)
        number = chance.randrange(WORKERS)
        os.kill(workers[number].pid, signal.SIGKILL)
        kills += end(workers[number])
        workers[number] = start()
    assert sum(map(end, workers)) == 0
    states = audited(place, BUDGET)
    assert names["granted"] <= set(states), "an acknowledged reservation is lost"
    assert set(states) <= names["begins"], "charged without a request"
    assert {states[name] for name in names["settled"]} <= {"settled"}
    assert {states[name] for name in names["void"]} <= {"void"}
    voids = {name for name, state in states.items() if state == "void"}
    assert voids <= names["voids"], "given back unasked"
    assert sum(sums(place)) == BUDGET
    figure(
        "kill storm", violations=0, seed=seed, kills=kills, **Counter(states.values())
    )
