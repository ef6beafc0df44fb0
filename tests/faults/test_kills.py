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

from dpflow.ledger.tables.sqlite import SqliteDatabase
from tests.faults.auditor import audited
from tests.faults.drivers import FaultyConnection, FaultySqlite
from tests.faults.storm import POLICY, storm
from tests.faults.support import IDENTITY, SECRET, figure, first_seed
from tests.faults.trials import ACTIONS, CAP, Action, Trial
from tests.ledger.processes import Child, die, dying
from tests.ledger.support import make_ledger, url
from tests.sizes import SCALE, scaled

#: More statements than any operation has.
MOST = 80


class Lazy(FaultySqlite):
    """A database that says yes first and commits when it is used again."""

    def _connect(self) -> Any:
        return _Debtor(SqliteDatabase._connect(self), self)


class _Debtor(FaultyConnection):
    """A connection that puts off its commits."""

    owed = False

    def rollback(self) -> None:
        """Leave the transaction, unless it was to be committed."""
        if not self.owed:
            self._connection.rollback()

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
        states = audited(path, CAP).states
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


@pytest.mark.promise("killed-process")
def test_a_storm_of_kills_loses_nothing(place):
    """Workers are killed at any moment while the budget runs out, and replaced.

    Each acknowledged charge stays, and not one charge more fits.
    """
    make_ledger(place).close()
    seed, budget = first_seed(), Fraction(3, 10)
    notes, counts = storm(url(place), POLICY, kills=scaled(30, push=10), seed=seed)
    facts = audited(place, budget)
    notes.check(facts)
    assert sum(facts.used.values()) == budget
    states = Counter(facts.states.values())
    figure("kill storm", violations=0, seed=seed, kills=counts, **states)
