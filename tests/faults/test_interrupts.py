"""An interrupt at any line of a guarded step leaves no lock, key or charge behind."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from decimal import Decimal
from itertools import cycle, product
from pathlib import Path
from typing import Any

import pytest

from dpflow.config import LEDGER_VARIABLE
from dpflow.guard.late_settlements import Unsettled
from dpflow.guard.project import current_project, forget_projects
from dpflow.ledger import create_ledger
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.opening import pin_ledger
from dpflow.ledger.views import accounts
from dpflow.locks import FileLock, TurnQueue
from dpflow.policy import parse_policy
from tests.faults import interrupts
from tests.faults.interrupts import KINDS, Point, Steps, interrupted, patient, points_of
from tests.faults.support import figure
from tests.projects import ledger_file, make_project
from tests.sizes import SCALE, spread

#: More than all steps of a campaign cost.
POLICY = """\
dataset: shop
unit: customer
relation: add-or-remove
budget: {epsilon: 10000}
filter: basic
"""


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the steps that are interrupted not fill the output."""
    monkeypatch.setattr(logging.getLogger("dpflow"), "disabled", True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def shop(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """Give a project that is open, and impatient; its ledger is a file unless said."""
    monkeypatch.setattr("dpflow.guard.late_settlements._PAUSE_SECONDS", (0.02, 0.5))
    make_project(tmp_path, monkeypatch, POLICY)
    if getattr(request, "param", "sqlite") == "postgres":
        url = request.getfixturevalue("postgres_url")
        (tmp_path / "policies" / "ledger.lock").unlink()
        with closing(create_ledger(url)) as ledger:
            pin_ledger(ledger, tmp_path / "policies")
            ledger.apply(parse_policy(POLICY))
        monkeypatch.setenv(LEDGER_VARIABLE, url)
    patient()
    yield tmp_path
    forget_projects()


def look(folder: Path, bodies: int) -> None:
    """Check that each body was charged, and that the journal is sound."""
    ledger = current_project().ledger
    (view,) = accounts(ledger, "shop")
    parts = view.spent, view.reserved, view.forfeited
    charged = sum(Decimal(part["epsilon"]) for part in parts) / Decimal("0.001")
    assert charged >= bodies > 0
    assert verify(ledger).bad == []
    # And nobody holds its lock.
    lock = FileLock(ledger_file(folder).with_name("ledger.db.lock"))
    assert lock.run(lambda _: True, 1)


#: Functions that end blocks and give up locks.
ENDS = ("__exit__", "_end", "_leave", "_drop", "_has_its_log", "leave", "free")


def chosen(points: list[Point]) -> list[tuple[Point, type[BaseException]]]:
    """Return where to interrupt, by what: everywhere by all, in the campaign.

    At each push it is around the body, where blocks end, and at the last lines of some
    functions.
    """
    if SCALE > 1:
        return [*product(points, KINDS)]
    ends = [point for point in points if point.function.endswith(ENDS)]
    last = {(point.path, point.function): point for point in points}
    body = [point for point in points if point.function == "run_body"]
    some = [*body, *spread(ends, 8), *spread(last.values(), 8)]
    return [*zip(some, cycle(KINDS))]


@pytest.mark.promise("interrupt")
@pytest.mark.parametrize(
    ("shop", "keyed", "push"),
    [("sqlite", True, 24), ("sqlite", False, 12), ("postgres", True, 12)],
    indirect=["shop"],
)
def test_an_interrupt_at_any_line_leaves_no_lock_behind(shop, keyed, push):
    """It passes on as it is, and keeps no lock even while the exception is kept.

    Afterwards this process, its threads, its children and others run steps.
    """
    steps = Steps(shop, keyed=keyed)
    steps.run("first")
    points = points_of(lambda: steps.run("counted"))
    assert len(points) > 1500
    tried, wrong = 0, dict[str, list[str]]()
    lines = spread(chosen(points), push)
    for number, (point, kind) in enumerate(lines):
        problems = interrupted(steps, f"step-{number}", point, kind)
        tried += problems is not None
        if problems:
            wrong[f"{kind.__name__} at {point}"] = problems
    figure(f"interrupted lines, keyed={keyed}", tried=tried, wrong=wrong)
    assert wrong == {}
    # A step reads more if others have run in between, so that not every line is met.
    assert tried >= 0.9 * len(lines)
    look(shop, steps.bodies())


def careless(method: Callable[..., None]) -> Callable[..., None]:
    """Break a method: after an interrupt it does nothing any more."""
    broken: list[BaseException] = []

    def only_before(*args: Any, **options: Any) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, KeyboardInterrupt):
            broken.append(error)
        if not broken:
            method(*args, **options)

    return only_before


@pytest.mark.promise("interrupt")
@pytest.mark.parametrize(
    ("place", "name", "who"),
    [
        (TurnQueue, "leave", "another thread"),
        (FileLock, "free", "another process"),
        (Unsettled, "add", "the same elsewhere"),
    ],
)
def test_a_lock_that_an_interrupt_keeps_is_found(shop, monkeypatch, place, name, who):
    """The search above can fail, for each of those that come afterwards."""
    # What is lost here is waited for in vain, so not for long.
    monkeypatch.setattr(interrupts, "PATIENCE", 0.5)
    monkeypatch.setattr(interrupts, "SECONDS", 2.0)
    interrupts.patient()
    steps = Steps(shop, keyed=True)
    steps.run("first")
    points = points_of(lambda: steps.run("counted"))
    monkeypatch.setattr(place, name, careless(getattr(place, name)))
    problems: list[str] = []
    for number, point in enumerate(points[len(points) // 2 :: len(points) // 30]):
        # So that the next one has nothing to follow, and as many lines as counted.
        steps.run(f"before-{number}")
        problems += interrupted(steps, f"line-{number}", point, KeyboardInterrupt) or []
        # On a busy machine others are late, too.
        if any(problem.startswith(who) for problem in problems):
            return
    pytest.fail(f"at {point}: {problems}")
