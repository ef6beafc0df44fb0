"""SIGKILL at every point of every operation, and storms of kills at any moment."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from dpflow import PureDP
from dpflow.ledger.opening import create_ledger, open_ledger
from dpflow.ledger.storage.sqlite import SqliteStorage
from tests.hunts.machinery.memory import IDENTITY, SECRET
from tests.hunts.machinery.storm import Told, drain, storm, work
from tests.hunts.machinery.support import (
    audited,
    figure,
    first_seed,
)
from tests.hunts.machinery.trials import ACTIONS, CAP, Action, Trial
from tests.ledger.faults import FaultyConnection, FaultySqlite
from tests.ledger.processes import Child, die
from tests.ledger.support import make_policy
from tests.sizes import SCALE

#: More statements than any operation has.
MOST = 80


class Lazy(FaultySqlite):
    """A storage that says yes first and commits when it is used again."""

    def _connect(self) -> Any:
        return _Debtor(SqliteStorage._connect(self), self)


class _Debtor(FaultyConnection):
    """A connection that puts off its commits."""

    owed = False

    @property
    def in_transaction(self) -> bool:
        """Say that nothing is open that was to be committed."""
        return not self.owed and self._connection.in_transaction

    def execute(self, sql: str | bytes, *values: Any) -> Any:
        """Run a statement, or what was put off and then the statement."""
        if sql == "COMMIT":
            self.owed = True
            return super().execute("SELECT 1")
        if self.owed:
            self.owed = False
            super().execute("COMMIT")
        return super().execute(sql, *values)


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

        def run(say: Callable[[str], None], left: int = number) -> None:
            storage = kind(path)
            trial = Trial.on(storage)
            do, aims = action(trial)
            say(json.dumps([trial.sure, aims]))

            def hook(_: str) -> None:
                nonlocal left
                left -= 1
                if left < 0:
                    die()

            setattr(storage, when, hook)
            do()
            say("acknowledged")
            die()

        _, (first, *rest) = Child(run).end()
        sure, aims = json.loads(first)
        states = audited(f"sqlite:///{path}", CAP).states
        for name, state in aims.items():
            allowed = {state} if rest else {state, sure.get(name)}
            assert states.get(name) in allowed, "neither before nor after"
        done = {states.get(name) == state for name, state in aims.items()}
        assert len(done) < 2, "half of it happened"
        assert sure.keys() <= states.keys(), "an acknowledged reservation is lost"
        if rest:
            return number
    raise AssertionError("more points than expected")


def test_death_at_every_point(folder: Path) -> None:
    """Of a reservation, a batch, a settlement, a void, a forfeit and an opening."""
    counts: Counter[str] = Counter()
    # After a statement, nothing differs from before the next.
    for action, when in product(ACTIONS, ["after", "before"][: 2 if SCALE > 1 else 1]):
        place = folder / f"{action.__name__}-{when}"
        counts[action.__name__] += die_at_every_point(place, action, when)
    assert all(count >= 4 for count in counts.values())
    figure("SIGKILL points", violations=0, points=counts.total(), **counts)


def test_points_find_a_lazy_commit(folder: Path) -> None:
    """An acknowledgement before the commit."""
    with pytest.raises(AssertionError, match=r"lost|neither before nor after"):
        die_at_every_point(folder, ACTIONS[0], "before", Lazy)


# Storms


def start(url: str, budget: Fraction) -> Callable[[Callable[[str], None]], None]:
    """Return what a worker does with a ledger of its own."""
    policy = make_policy(budget=f"{{epsilon: {float(budget):g}}}")

    def run(say: Callable[[str], None]) -> None:
        work(open_ledger(url), policy, PureDP(epsilon="0.001"), say)

    return run


def test_a_storm_of_kills_loses_nothing(ledger_url: str) -> None:
    """Workers are killed at any moment and replaced; what they were told stays true."""
    create_ledger(ledger_url).close()
    seed, told = first_seed(), Told()
    budget = Fraction(1000)
    seconds = max(3, 3 * SCALE)
    counts = storm(start(ledger_url, budget), seconds=seconds, seed=seed, told=told)
    facts = audited(ledger_url, budget)
    told.check(facts)
    kept = sum(state != "void" for state in facts.states.values())
    assert facts.total() == kept * Fraction(1, 1000), "not charged in full"
    states = Counter(facts.states.values())
    figure("kill storm", violations=0, seed=seed, **counts, left_open=states["open"])


def test_a_budget_that_ends_in_a_storm_is_exact(ledger_url: str) -> None:
    """Workers are killed while the budget runs out; not one charge more fits."""
    create_ledger(ledger_url).close()
    seed, told, budget = first_seed(), Told(), Fraction(3, 10)
    run = start(ledger_url, budget)
    storm(run, seconds=2, seed=seed, told=told)
    policy = make_policy(budget="{epsilon: 0.3}")
    names = drain(ledger_url, policy, PureDP(epsilon="0.001"))
    told.words["begins"].update(names)
    told.words["granted"].update(names)
    facts = audited(ledger_url, budget)
    told.check(facts)
    assert facts.total() == budget
    states = Counter(facts.states.values())
    figure("kills at the limit", violations=0, seed=seed, budget=300, **states)
