"""Random restores, half of them of copies that went on: a repair never undercounts."""

from __future__ import annotations

from contextlib import closing, suppress
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
from tests.ledger.support import (
    copied,
    granted,
    make,
    make_policy,
    put_back,
    read,
    reopen,
    request,
    sums,
    url,
)
from tests.postgres import name_of, server
from tests.sizes import scaled, spread

NAMES = ("a", "b", "c")
POLICIES = {name: make_policy(name, budget="{epsilon: 1000}") for name in NAMES}


class Steps:
    """Steps of a history, with what each of them really cost.

    Attributes:
        datasets: Datasets of each charge.
        reported: What each charge cost in the end on each of them.
        open: Charges that no step has ended.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.datasets: dict[str, list[str]] = {}
        self.reported: dict[str, int] = {}
        self.open: list[str] = []

    def go_on(self, ledger: Ledger, number: int) -> None:
        """Reserve and settle at random."""
        for _ in range(number):
            if self.open and self.random.random() < 0.5:
                charge = self.open.pop(self.random.randrange(len(self.open)))
                self.settle(ledger, charge)
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
        self.reported[asked.reservation] = self.random.choice([1, stops])
        self.datasets[asked.reservation] = names
        self.open.append(asked.reservation)

    def settle(self, ledger: Ledger, charge: str) -> None:
        """End a step; a ledger that lost it does not know it."""
        with suppress(ReservationConflict):
            ledger.settle(charge, reported=self.reported[charge])

    def total(self, dataset: str) -> int:
        """Return what all steps on a dataset cost."""
        charges = [
            charge for charge, names in self.datasets.items() if dataset in names
        ]
        return sum(self.reported[charge] for charge in charges)


def copy_of(at: str, tmp_path: Path) -> str:
    """Copy a ledger that nobody uses, and return the place of the copy."""
    if at.startswith("sqlite"):
        path = Path(at.removeprefix("sqlite:///"))
        return url(copied(path, tmp_path / "older.db"))
    name = name_of(at)
    server().run(f"CREATE DATABASE {name}_older TEMPLATE {name} STRATEGY file_copy")
    return at.replace(name, f"{name}_older")


CASES = [("sqlite", seed) for seed in range(scaled(12, push=4))]
CASES += [("postgres", seed) for seed in range(scaled(4, push=1))]


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
    # Nobody settles what the ledger lost: it stays in full.
    for charge in (*before, *steps.open):
        steps.settle(restored, charge)
    for name in NAMES:
        assert sum(sums(restored, f"{name}#1")) >= steps.total(name), name
    assert verify(restored).bad == []
    granted(restored, "0.1", policies=[POLICIES["a"]])
    restored.close()
    if not is_file:
        for database in (at, older, place):
            server().drop(database)


STORE = "a#1"


def newest(ledger: Ledger) -> str | None:
    """Return the newest step of the store."""
    rows = read(ledger, "SELECT newest FROM people_store WHERE account = ?", STORE)
    return rows[0][0] if rows else None


def pay(path: Path, place: str, number: int) -> list[str]:
    """Open a ledger, charge something, and people for some steps; return these."""
    with closing(reopen(path, place)) as ledger:
        granted(ledger, "0.01")
        charges = [granted(ledger, "0.01") for _ in range(number)]
        for charge in charges:
            ledger.pay(STORE, charge, before=newest(ledger))
    return charges


#: Number of steps before a backup, of lost ones and of those of the copy.
STEPS = [(0, 1, 0), (1, 1, 0), (1, 0, 1), (1, 1, 1), (1, 2, 1), (2, 0, 0), (0, 2, 2)]
STORES = [("file", *numbers) for numbers in STEPS]
STORES += [("postgres", *numbers) for numbers in spread(STEPS, 3)]


@pytest.mark.parametrize(("place", "before", "lost", "own"), STORES, indirect=["place"])
def test_the_newest_step_of_a_store(tmp_path, place, before, lost, own):
    """The witnessed one where it is lost, none where a copy that went on paid, too."""
    path = tmp_path / "ledger.db"
    make(path, place).close()
    steps: list[str | None] = [None, *pay(path, place, before)]
    older = copied(path, tmp_path / "older.db")
    steps += pay(path, place, lost)
    put_back(path, older)
    paid = pay(path, "none", own)
    repaired = reopen(path, place)
    reconcile(repaired, reason="x")
    right = UNKNOWN if lost and own else (paid or steps)[-1]
    assert newest(repaired) == right
    assert verify(repaired).bad == []
    assert compare(repaired) == []
    for wrong in {*steps, *paid} - {right}:
        with pytest.raises(ReservationConflict, match="another copy"):
            repaired.pay(STORE, granted(repaired, "0.01"), before=wrong)
    witness: Any = repaired.watch.witness
    # The next step of the store is known in the next epoch, whatever its number.
    if right not in (UNKNOWN, None):
        (right,) = pay(path, place, 1)
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
