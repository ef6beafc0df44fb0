"""An interrupt at any line of a guarded step leaves no lock, key or charge behind.

Each line is tried in a forked child, which keeps the interrupt with its traceback, as a
runner of tasks does that stores errors. Then others run steps, each with a deadline.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import signal
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from decimal import Decimal
from itertools import cycle, product
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

import dpflow
from dpflow import PureDP, guarded
from dpflow.config import LEDGER_VARIABLE
from dpflow.guard.late_settlements import Unsettled
from dpflow.guard.project import current_project, forget_projects
from dpflow.ledger import create_ledger
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.opening import pin_ledger
from dpflow.ledger.views import accounts
from dpflow.locks import FileLock, TurnQueue
from dpflow.policy import parse_policy
from tests.faults.support import figure
from tests.ledger.processes import Child, Gate, answer_of_child
from tests.ledger.support import policy_text
from tests.projects import ledger_file, make_project
from tests.sizes import SCALE, spread

pytestmark = pytest.mark.filterwarnings("ignore")

#: More than all steps of a campaign cost.
POLICY = policy_text("shop", budget="{epsilon: 10000}")
#: The package, and the standard library.
_TRACED = tuple(f"{Path(file).parent}/" for file in (dpflow.__file__, os.__file__))
#: How long each thing may take that is tried after an interrupt.
SECONDS = 6.0
#: How long a lock is waited for, so that a lost one is told from a slow disk.
PATIENCE = 3.0
COST = PureDP(epsilon="0.001")


class Steps:
    """Steps whose bodies note that they ran.

    Args:
        folder: Of the project; the working directory.
        keyed: Whether they have a release key.
    """

    def __init__(self, folder: Path, *, keyed: bool) -> None:
        self.noted, self.keyed = folder / "ran", keyed
        self.noted.touch()

    def run(self, name: str) -> None:
        """Run one step."""
        keys = {"release_key": "made/{name}", "ignore": ("self",)} if self.keyed else {}

        @guarded(dataset="shop", cost=COST, name="step", **keys)
        def step(name: str) -> str:
            with self.noted.open("a", encoding="ascii") as file:
                file.write(f"{name}\n")
            return name

        if step(name) != name:
            raise AssertionError(name)


class Stopped(BaseException):
    """Something took too long."""


def patient() -> None:
    """Let this process wait for the ledger's lock not too long."""
    current_project().ledger.database.lock_seconds = PATIENCE


class Limit(Exception):
    """What the handler of a time limit raises."""


#: What a signal's handler may raise: what is an error of a disk or of damage elsewhere.
KINDS = (KeyboardInterrupt, TimeoutError, ValueError, Limit)


class Point(NamedTuple):
    """The n-th time that a call comes to a line of dpflow or of the standard library.

    Attributes:
        path: The file of the line.
        number: The number of the line.
        function: The name of its function.
        time: Which time it is, from 1.
    """

    path: str
    number: int
    function: str
    time: int


class Interrupt:
    """Trace a call as a signal's handler comes to its lines, and raise at one of them.

    Args:
        point: Where to raise; None only lists the lines.
        kind: What to raise.

    Attributes:
        points: All lines so far, of the point's file alone if there is a point.
        error: What was raised.
        functions: The functions around the line; none if the call did not come there.
    """

    def __init__(
        self, point: Point | None = None, kind: type[BaseException] = Limit
    ) -> None:
        self._point, self._times = point, Counter[tuple[str, int, str]]()
        self.points, self.error = list[Point](), kind("time is up")
        self.functions = list[str]()

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        """Trace a function, if it is one of dpflow or of the standard library."""
        path = frame.f_code.co_filename
        if not path.startswith(_TRACED if self._point is None else self._point.path):
            return None
        if "site-packages" in path:
            return None
        if event == "line":
            line = path, frame.f_lineno, frame.f_code.co_name
            self._times[line] += 1
            self.points.append(Point(*line, self._times[line]))
            if self.points[-1] == self._point:
                walk = [each.f_code.co_name for each, _ in traceback.walk_stack(frame)]
                self.functions = walk
                raise self.error
        return self

    def problem(self, kept: list[BaseException], unraisable: list[object]) -> str:
        """Say what is wrong with the exceptions that came out of the call."""
        if kept == [self.error] or self.error in unraisable:
            return ""
        # The error of a body is shown as its policy says.
        shown = [getattr(error, "error_type", type(error).__name__) for error in kept]
        # The output is checked as a part of the body: an error may show it. What is
        # around both passes on.
        around = {"reserve", "begin_execution", "end"}.intersection(self.functions)
        is_inside = self.functions[0] != "run_body" and not around
        in_body = {"charged", "step"}.intersection(self.functions) or is_inside
        if in_body and shown == [type(self.error).__name__]:
            return ""
        if not kept and self._point and not self._point.path.startswith(_TRACED[0]):
            # The standard library does without what it cannot look at.
            return ""
        return f"{self.error!r} became {kept!r:.100}"


def points_of(call: Callable[[], object]) -> list[Point]:
    """Return the lines of dpflow and of the standard library that a call runs."""
    tracer = Interrupt()
    sys.settrace(tracer)
    try:
        call()
    finally:
        sys.settrace(None)
    return tracer.points


def attempt(what: str, call: Callable[[], object], wrong: list[str]) -> None:
    """Do something in the main thread in time, or note that it went wrong."""

    def stop(*_: object) -> None:
        raise Stopped

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        call()
    except BaseException as error:
        wrong.append(f"{what}: {type(error).__name__} {error}"[:150])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def afterwards(steps: Steps, name: str) -> list[str]:
    """Run steps in the process that was interrupted; return what went wrong."""
    threads, wrong = ThreadPoolExecutor(1), list[str]()
    in_thread = lambda: threads.submit(steps.run, f"{name}-t").result()
    attempt("another thread", in_thread, wrong)
    in_child = lambda: answer_of_child(lambda: steps.run(f"{name}-f"))
    attempt("a forked child", in_child, wrong)
    attempt("the same again", lambda: steps.run(name), wrong)
    attempt("a new one", lambda: steps.run(f"{name}-n"), wrong)
    return wrong


def interrupted(
    steps: Steps, name: str, point: Point, kind: type[BaseException]
) -> list[str] | None:
    """Interrupt one step in a child, and run others in it and in this process.

    Args:
        steps: What to run.
        name: Name of this step, unlike all others.
        point: Where to interrupt it.
        kind: What the interrupt raises.

    Returns:
        What went wrong afterwards; None if the step did not come to that line.
    """
    gate = Gate()

    def work(say: Callable[[str], None]) -> None:
        faulthandler.dump_traceback_later(60, exit=True)
        warnings.simplefilter("ignore")
        patient()
        kept, unraisable = list[BaseException](), list[object]()
        sys.unraisablehook = lambda what: unraisable.append(what.exc_value)
        tracer = Interrupt(point, kind)
        sys.settrace(tracer)
        try:
            steps.run(name)
        except BaseException as error:  # with its traceback
            kept.append(error)
        sys.settrace(None)
        if tracer.functions:
            say(tracer.functions[0])
            problem = tracer.problem(kept, unraisable)
            gate.wait()
            say(json.dumps([*filter(None, [problem]), *afterwards(steps, name)]))

    child, wrong = Child(work), list[str]()
    where = child.line()
    if where:
        attempt("another process", lambda: steps.run(f"{name}-o"), wrong)
        attempt("the same elsewhere", lambda: steps.run(name), wrong)
    gate.open()
    code, lines = child.end()
    wrong += [f"exit {code}", *lines] if code else json.loads("".join(lines) or "[]")
    return wrong if where or wrong else None


@pytest.fixture
def shop(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """Give a project that is open, and impatient; its ledger is a file unless said."""
    # The steps that are interrupted do not fill the output.
    monkeypatch.setattr(logging.getLogger("dpflow"), "disabled", True)
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
    some = [*body, *spread(ends, 16), *spread(last.values(), 16)]
    return [*zip(some, cycle(KINDS))]


@pytest.mark.promise("interrupt")
@pytest.mark.parametrize(
    ("shop", "keyed", "push"),
    [("sqlite", True, 40), ("sqlite", False, 12), ("postgres", True, 12)],
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
    # Each body was charged, the journal is sound, and no process has the lock.
    ledger = current_project().ledger
    (view,) = accounts(ledger, "shop")
    parts = view.spent, view.reserved, view.forfeited
    charged = sum(Decimal(part["epsilon"]) for part in parts) / Decimal("0.001")
    assert charged >= len(steps.noted.read_text("ascii").splitlines()) > 0
    assert verify(ledger).bad == []
    lock = FileLock(ledger_file(shop).with_name("ledger.db.lock"))
    assert lock.run(lambda _: True, 1)


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
    monkeypatch.setattr(f"{__name__}.PATIENCE", 0.5)
    monkeypatch.setattr(f"{__name__}.SECONDS", 2.0)
    patient()
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
