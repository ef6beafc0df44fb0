"""A ledger with an account of people, and their store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dpflow.accounting.rules.individual import IndividualFilter
from dpflow.ledger import Ledger, create_ledger, open_ledger
from dpflow.people import PersonBudgets, PersonStore
from tests.ledger.support import granted, make_policy, url

#: Ids of the people.
THREE = ["a", "b", 3]
POLICY = make_policy(
    "shop",
    budget="{epsilon: 1, delta: 1e-6}",
    filter="{theorem: individual, measure: gdp}",
)
RULE = IndividualFilter(epsilon=1, delta="1e-6", measure="gdp")
BOUND = RULE.bound
#: Somebody can pay for four of them, and a trace more.
QUARTER = 0.25 * (1 - 1e-9)


class Place:
    """Where the ledger and the store of people are."""

    def __init__(self, root: Path, witness: str | None = None) -> None:
        self.file, self.folder = root / "ledger.db", root / "people"
        self._witness = witness
        root.mkdir(parents=True)
        create_ledger(url(self.file), witness=witness).close()

    @contextmanager
    def ledger(self) -> Iterator[Ledger]:
        """Open the ledger."""
        ledger = open_ledger(url(self.file), witness=self._witness)
        try:
            yield ledger
        finally:
            ledger.close()

    def step(self, *shares: float, people: Sequence[Any] = THREE) -> list[bool]:
        """Charge a step, each person a share of the bound; return who takes part."""
        with self.ledger() as ledger:
            return step(ledger, self.folder, *shares, people=people)

    @property
    def people(self) -> Path:
        """The file of the store."""
        [path] = self.folder.glob("*.people")
        return path


def store_of(ledger: Ledger, folder: Path) -> PersonStore:
    """Reserve a step, and return the store that pays for it."""
    charge = granted(ledger, PersonBudgets(), policies=(POLICY,))
    return PersonStore(ledger, charge, folder)


def step(
    ledger: Ledger, folder: Path, *shares: float, people: Sequence[Any] = THREE
) -> list[bool]:
    """Charge a step, each person a share of the bound; return who takes part."""
    costs = float(BOUND) * np.array(shares)
    mask = store_of(ledger, folder).reserve(people, lambda _: costs)
    return mask.apply(np.ones(len(shares))).astype(bool).tolist()


def in_child(work: Callable[[Callable[[str], None]], None]) -> tuple[int, str]:
    """Run a function in a forked child; return its exit code and its output."""
    reading, writing = os.pipe()
    tell = os.write
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work(lambda letter: tell(writing, letter.encode()))
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        output = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), output
