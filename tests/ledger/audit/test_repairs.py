"""Random restores, half of them of copies that went on: a repair never undercounts."""

from __future__ import annotations

from collections import defaultdict
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dpflow import EarlyStopping, Laplace
from dpflow.accounting.costs.base import Cost
from dpflow.exceptions import ReservationConflict
from dpflow.ledger.audit.reconcile import compare, reconcile
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import create_ledger, open_ledger
from dpflow.ledger.requests import UNKNOWN
from dpflow.ledger.tables.owners import Liveness
from dpflow.ledger.witness.comparison import state_of_ledger
from dpflow.ledger.witness.file import FileWitness
from dpflow.rounding import UNITS
from tests.ledger.support import (
    copied,
    granted,
    make,
    make_policy,
    put_back,
    reopen,
    request,
    url,
)
from tests.postgres import name_of, server
from tests.sizes import scaled

NAMES = ("a", "b", "c")
POLICIES = {name: make_policy(name, budget="{epsilon: 1000}") for name in NAMES}
RESTORES = max(12, scaled(12))


class Steps:
    """Steps of a history, with what each of them really cost.

    Attributes:
        costs: What each charge cost in the end, by dataset.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.costs: dict[str, dict[str, Fraction]] = {}
        self.reported: dict[str, int] = {}
        self.open: list[str] = []

    def go_on(self, ledger: Ledger, number: int) -> None:
        """Reserve and settle at random."""
        for _ in range(number):
            if self.open and self.random.random() < 0.5:
                self.settle(
                    ledger, self.open.pop(self.random.randrange(len(self.open)))
                )
            else:
                self.reserve(ledger)

    def reserve(self, ledger: Ledger) -> None:
        """Begin a step on some datasets; what it reports is decided here."""
        stops = self.random.randint(2, 4)
        cost: Cost = EarlyStopping(Laplace(sensitivity=1, epsilon=1), stops=(1, stops))
        names = self.random.sample(NAMES, self.random.randint(1, 3))
        policies = tuple(POLICIES[name] for name in names)
        asked = request(ledger, cost, policies=policies)
        ledger.reserve(asked)
        charge, reported = asked.reservation, self.random.choice([1, stops])
        self.reported[charge] = reported
        self.costs[charge] = dict.fromkeys(names, Fraction(reported))
        self.open.append(charge)

    def settle(self, ledger: Ledger, charge: str) -> None:
        """End a step; a ledger that lost it does not know it."""
        try:
            ledger.settle(charge, reported=self.reported[charge])
        except ReservationConflict:
            return

    def totals(self) -> dict[str, Fraction]:
        """Return what all steps cost, by dataset."""
        totals: dict[str, Fraction] = defaultdict(Fraction)
        for costs in self.costs.values():
            for name, cost in costs.items():
                totals[name] += cost
        return totals


def used(ledger: Ledger) -> dict[str, Fraction]:
    """Return what is settled and held, by dataset."""
    uses = state_of_ledger(ledger.database).uses
    found = {name: uses.get(f"{name}#1") for name in NAMES}
    return {n: Fraction(use.used[0] if use else 0, UNITS) for n, use in found.items()}


def copy_of(at: str, tmp_path: Path) -> str:
    """Copy a ledger that nobody uses, and return the place of the copy."""
    if at.startswith("sqlite"):
        path = Path(at.removeprefix("sqlite:///"))
        return url(copied(path, tmp_path / "older.db"))
    name = name_of(at)
    server().run(f"CREATE DATABASE {name}_older TEMPLATE {name} STRATEGY file_copy")
    return at.replace(name, f"{name}_older")


CASES = [("sqlite", seed) for seed in range(RESTORES)]
CASES += [("postgres", seed) for seed in range(max(4, scaled(1)))]


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize(("kind", "seed"), CASES)
def test_a_repair_never_undercounts(tmp_path, kind, seed, goes_on):
    """After a restore at a random place, over one to three datasets."""
    steps, owners = Steps(seed), Liveness()
    is_file = kind == "sqlite"
    at = url(tmp_path / "ledger.db") if is_file else server().new_database()
    place = str(tmp_path / "witness") if is_file else server().new_database()

    def opened(at: str, witness: str) -> Ledger:
        ledger = open_ledger(at, witness=witness)
        ledger.owners = owners
        return ledger

    create_ledger(at, witness=place).close()
    ledger = opened(at, place)
    for policy in POLICIES.values():
        ledger.apply(policy)
    steps.go_on(ledger, steps.random.randint(1, 12))
    ledger.database.close()
    older = copy_of(at, tmp_path)
    before = [*steps.open]
    ledger = opened(at, place)
    steps.go_on(ledger, steps.random.randint(1, 12))
    lost = [charge for charge in steps.open if charge not in before]
    ledger.database.close()
    if goes_on:
        copy = opened(older, "none")
        steps.go_on(copy, steps.random.randint(1, 6))
        copy.database.close()
    restored = opened(older, place)
    if compare(restored):
        reconcile(restored, reason="x")
        assert compare(restored) == []
        assert reconcile(restored, reason="x") == []
    for charge in (*before, *steps.open):
        steps.settle(restored, charge)
    after, costs = used(restored), steps.totals()
    for charge in lost:
        # Nobody settles what the ledger lost: it stays in full.
        assert charge in steps.costs
    for name in NAMES:
        assert after[name] >= costs[name], name
    assert verify(restored).bad == []
    granted(restored, "0.1", policies=[POLICIES["a"]])
    restored.close()
    if not is_file:
        for database in (at, older, place):
            server().drop(database)


STORE = "a#1"


def newest(ledger: Ledger) -> str | None:
    """Return the newest step of the store."""
    with ledger.reading() as transaction:
        transaction.begin(lock=False)
        rows = transaction.ask("read_people_store", account=STORE)
    return rows[0][2] if rows else None


def pay(ledger: Ledger) -> str:
    """Charge people for a step, and return its charge."""
    charge = granted(ledger, "0.01")
    ledger.pay(STORE, charge, before=newest(ledger))
    return charge


def pay_all(path: Path, place: str, number: int) -> list[str]:
    """Open a ledger, charge something, and people for some steps."""
    with closing(reopen(path, place)) as ledger:
        granted(ledger, "0.01")
        return [pay(ledger) for _ in range(number)]


@pytest.mark.parametrize(
    ("before", "lost", "own"),
    [(0, 1, 0), (1, 1, 0), (1, 0, 1), (1, 1, 1), (1, 2, 1), (2, 0, 0), (0, 2, 2)],
)
def test_the_newest_step_of_a_store(tmp_path, place, before, lost, own):
    """The witnessed one where it is lost, none where a copy that went on paid, too."""
    path = tmp_path / "ledger.db"
    make(path, place).close()
    steps: list[str | None] = [None, *pay_all(path, place, before)]
    older = copied(path, tmp_path / "older.db")
    steps += pay_all(path, place, lost)
    put_back(path, older)
    paid = pay_all(path, "none", own)
    repaired = reopen(path, place)
    reconcile(repaired, reason="x")
    right = UNKNOWN if lost and own else (paid or steps)[-1]
    assert newest(repaired) == right
    assert verify(repaired).bad == []
    assert compare(repaired) == []
    wrong = {*steps, *paid} - {right}
    for each in wrong:
        with pytest.raises(ReservationConflict, match="another copy"):
            repaired.pay(STORE, granted(repaired, "0.01"), before=each)
    witness: Any = repaired.watch.witness
    # The next step of the store is known in the next epoch, whatever its number.
    if right not in (UNKNOWN, None):
        right = pay(repaired)
    if isinstance(witness, FileWitness):
        witness._rewrite(None)
    assert witness.read_all().people.get(STORE, (0, None))[1] == right
    kept, now = witness.read_all(), state_of_ledger(repaired.database)
    assert kept.heads["a"][:5] == now.heads["a"][:5]
    assert kept.uses == now.uses
    granted(repaired, "0.01")


@pytest.mark.parametrize("goes_on", [0, 9])
def test_a_lost_freeze_is_frozen_once(tmp_path, place, goes_on):
    """A dataset whose freeze is lost is frozen; a person's decision ends that."""
    path, older, newer = (tmp_path / f"{name}.db" for name in ("ledger", "old", "new"))

    def step(witness: str, number: int = 1) -> None:
        with closing(reopen(path, witness)) as ledger:
            for _ in range(number):
                granted(ledger, "0.01")

    def repair(*, is_frozen: bool) -> None:
        with closing(reopen(path, place)) as ledger:
            reconcile(ledger, reason="x")
            assert ledger.freeze("a", reason="x", unfreeze=True) is is_frozen

    make(path, place).close()
    step(place)
    copied(path, older)
    step(place, 4)
    with closing(reopen(path, place)) as ledger:
        ledger.freeze("a", reason="x")
    for again in (True, False):
        put_back(path, older)
        step("none", goes_on)
        repair(is_frozen=True)
        step(place)
        if again:
            copied(path, newer)
            step(place)
            put_back(path, newer)
            repair(is_frozen=False)
