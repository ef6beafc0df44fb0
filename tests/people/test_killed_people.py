"""A recurring report that people pay, killed again and again, with backups put back.

Each run is a process of its own and dies at a random call. The test writes down
the people of each step, synced: summed over all steps, no person's costs are above the
bound, whether a number came out or not.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import opendp.measurements  # noqa: F401 (here once, and not by every process)
import pytest

from dpflow import guarded
from dpflow.exceptions import ReleaseError
from dpflow.guard.project import current_project, forget_projects
from dpflow.ledger.audit.verify import verify
from dpflow.mechanisms import person_sum
from dpflow.people import PersonBudgets, PersonStore, PrivateTally
from flows import data
from tests.ledger.processes import Child, die
from tests.mechanisms.test_person_sums import POLICY
from tests.people.places import BOUND, RULE
from tests.projects import make_project
from tests.sizes import scaled

#: Everybody can come so often, killed runs included.
VISITS = 6
SIGMA = Fraction(float(BOUND / VISITS) ** -0.5 * (1 + 1e-12))
#: All 78 weeks and 300 kills in a campaign of size 10, as `make campaign` has it.
WEEKS = min(scaled(8, push=6), 78)
KILLS = min(scaled(30, push=10), 300)
#: Weeks between a backup of the stores and the day it is put back.
BACKUP = 3


@cache
def people_of(week: int) -> list[Any]:
    """Return who bought in a week of CDNOW."""
    return sorted(set(data.purchases(data.weeks()[week])["customer"].tolist()))


def always(week: int) -> list[Any]:
    """Return the same two, whatever the week."""
    del week
    return ["a", "b"]


def report(week: int, people: list[Any]) -> float:
    """Release how many bought in a week."""

    @guarded(
        dataset="shop",
        cost=PersonBudgets(),
        release_key="buyers/{week}",
        ignore=("people",),
    )
    def buyers(week: int) -> float:
        return float(person_sum(people, sigma=SIGMA))

    return buyers(week)


def recording_reserve(folder: Path) -> Callable[..., Any]:
    """Return a `reserve` that first writes down, durably, who was let in."""
    real = PersonStore.reserve

    def reserve(self: PersonStore, people: Any, costs: Any) -> Any:
        mask = real(self, people, costs)
        who = mask.apply(np.ones(len(people)))
        names = [str(p) for p, takes in zip(people, who, strict=True) if takes]
        with (folder / f"{os.getpid()}").open("a", encoding="ascii") as file:
            file.write("\n".join([*names, ""]))
            file.flush()
            os.fsync(file.fileno())
        return mask

    return reserve


def run(folder: Path, week: int, fatal: int = 0) -> tuple[int, str]:
    """Run a week in a process that dies at its n-th call of dpflow, if there is an n.

    Returns:
        How it ended, and how many calls it made, or that it was refused.
    """
    # Read here, once, and not by every process.
    read = people_of(week)

    def work(say: Callable[[str], None]) -> None:
        calls = 0

        def count(frame: Any, event: str, _: object) -> None:
            nonlocal calls
            calls += event.endswith("call") and "dpflow" in frame.f_code.co_filename
            if calls == fatal > 0:
                die()

        forget_projects()
        PersonStore.reserve = recording_reserve(folder)  # type: ignore[method-assign]
        sys.setprofile(count)
        try:
            report(week, read)
        except ReleaseError as error:
            # The kind stands before the text of an error of a store.
            if "LedgerCorrupt" not in str(error):
                raise
            say("refused")
        else:
            say(str(calls))

    code, lines = Child(work).end()
    return code, "".join(lines[-1:])


def stores(folder: Path) -> list[Path]:
    """Return the people's files."""
    return sorted((folder / ".dpflow" / "people").glob("*.people"))


def storm(folder: Path, log: Path, random: Random) -> tuple[int, int]:
    """Play all weeks with kills and backups; return the kills and the refusals."""
    kills = refusals = 0
    backup: dict[Path, bytes] = {}
    calls = 0
    for week in range(WEEKS):
        due = (KILLS * (week + 1)) // WEEKS
        while week and kills < due:
            status, _ = run(log, week, random.randint(1, calls))
            assert status in {0, -signal.SIGKILL}
            kills += status == -signal.SIGKILL
        status, counted = run(log, week)
        assert status == 0
        calls = max(calls, int(counted))
        if week % BACKUP == 1:
            backup = {path: path.read_bytes() for path in stores(folder)}
        if week % BACKUP == 0 and backup:
            refusals += refused(log, backup, random)
    return kills, refusals


def refused(log: Path, backup: dict[Path, bytes], random: Random) -> int:
    """Put one old file back, see a run refused, and bring the newest one again."""
    old = random.choice(sorted(backup))
    newest = old.read_bytes()
    old.write_bytes(backup[old])
    _, said = run(log, 78)
    old.write_bytes(newest)
    return said == "refused"


def most(log: Path) -> Fraction:
    """Return what the person who was let in most often has paid."""
    seen = Counter(name for file in log.iterdir() for name in file.read_text().split())
    return max(seen.values()) / SIGMA**2


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make a project, a place for witnesses and one for the test's own list."""
    monkeypatch.setenv("DPFLOW_WITNESS", str(tmp_path / "witness"))
    for name in ("shop", "log"):
        (tmp_path / name).mkdir()
    make_project(tmp_path / "shop", monkeypatch, POLICY)
    yield tmp_path / "shop"
    forget_projects()


def test_each_person_pays_at_most_the_bound(folder: Path) -> None:
    """However the runs die, and whatever backup is put back between them."""
    log = folder.parent / "log"
    kills, refusals = storm(folder, log, Random(1))
    assert kills >= KILLS * (WEEKS - 1) // WEEKS
    assert refusals == len(range(BACKUP, WEEKS, BACKUP))
    assert most(log) <= BOUND
    assert verify(current_project().ledger).fine
    print(f"{WEEKS} weeks, {kills} kills, {refusals} backups refused")


@pytest.mark.parametrize("forgets", [False, True])
def test_a_store_that_forgets_is_caught(folder: Path, monkeypatch, forgets) -> None:
    """People who come again and again are let in too often, and the list says so."""
    log = folder.parent / "log"
    monkeypatch.setattr(sys.modules[__name__], "people_of", always)
    run(log, 0)
    if forgets:
        whole = np.full(2, float(PrivateTally(RULE.opening(), people=1)._limit))
        monkeypatch.setattr(PrivateTally, "to_store", lambda _: whole.data.cast("B"))
    for week in range(1, VISITS + 1):
        run(log, week)
    assert (most(log) > BOUND) == forgets
    assert most(log) > BOUND * Fraction(5, VISITS)
