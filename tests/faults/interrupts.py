"""Interrupt one guarded step at one line, and see what that left behind.

Each line is tried in a forked child, which keeps the interrupt with its traceback, as a
runner of tasks does that stores errors. Then others run steps, each with a deadline.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import dpflow
from dpflow import PureDP, guarded
from dpflow.guard.project import current_project
from tests.ledger.processes import Child, Gate, answer_of_child

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

    def bodies(self) -> int:
        """Return how many bodies ran."""
        return len(self.noted.read_text("ascii").splitlines())


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
    wrong += lines if code or not lines else json.loads(lines[0])
    return wrong if where or wrong else None
