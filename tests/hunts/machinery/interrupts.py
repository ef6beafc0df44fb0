"""Interrupt one guarded step at one line of dpflow, and see what that left behind.

Each line is tried in a forked child, which keeps the interrupt with its traceback, as a
runner of tasks does that stores errors. Then others run steps, each with a deadline.
"""

from __future__ import annotations

import faulthandler
import json
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import dpflow
from dpflow import PureDP, guarded
from dpflow.guard.project import current_project
from tests.ledger.processes import Child, Gate

PACKAGE = str(Path(dpflow.__file__).parent)
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


@contextmanager
def deadline() -> Iterator[None]:
    """Stop a block of the main thread that takes too long."""

    def stop(*_: object) -> None:
        raise Stopped

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def patient() -> None:
    """Let this process wait for the ledger's lock not too long."""
    current_project().ledger.storage.lock_seconds = PATIENCE


class Interrupt:
    """Raises KeyboardInterrupt at the n-th line of dpflow."""

    def __init__(self, number: int) -> None:
        self.left, self.at = number, ""

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        """Trace a function, if it is dpflow's."""
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                file = Path(frame.f_code.co_filename).relative_to(PACKAGE)
                self.at = f"{file}:{frame.f_lineno} {frame.f_code.co_name}"
                raise KeyboardInterrupt
        return self


def lines_of(call: Callable[[], object]) -> int:
    """Count the lines of dpflow that a call runs."""
    tracer = Interrupt(-1)
    sys.settrace(tracer)
    try:
        call()
    finally:
        sys.settrace(None)
    return -1 - tracer.left


def attempt(what: str, call: Callable[[], object], wrong: list[str]) -> None:
    """Do something in time, or note that it went wrong."""
    try:
        with deadline():
            call()
    except BaseException as error:
        wrong.append(f"{what}: {type(error).__name__} {error}"[:150])


def in_thread(call: Callable[[], object]) -> None:
    """Do something in another thread."""
    errors: list[BaseException] = []

    def work() -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(SECONDS)
    if thread.is_alive():
        raise Stopped
    for error in errors:
        raise error


def in_child(call: Callable[[], object]) -> None:
    """Do something in a forked child."""
    child = Child(lambda _: call() and None)
    if not child.speaks(SECONDS):
        child.kill()
        raise Stopped
    assert child.end() == (0, [])


def afterwards(steps: Steps, name: str) -> list[str]:
    """Run steps in the process that was interrupted; return what went wrong."""
    wrong: list[str] = []
    attempt("another thread", lambda: in_thread(lambda: steps.run(f"{name}-t")), wrong)
    attempt("a forked child", lambda: in_child(lambda: steps.run(f"{name}-f")), wrong)
    attempt("the same again", lambda: steps.run(name), wrong)
    attempt("a new one", lambda: steps.run(f"{name}-n"), wrong)
    return wrong


#: Runs something and interrupts it; says where, or "" if it ended before.
How = Callable[[Callable[[], object]], str]


def interrupted(steps: Steps, name: str, how: How) -> tuple[str, list[str]]:
    """Interrupt one step in a child, and run others in it and in this process.

    Args:
        steps: What to run.
        name: Name of this step, unlike all others.
        how: Interrupts it.

    Returns:
        Where it was, and what went wrong afterwards.
    """
    gate = Gate()

    def work(say: Callable[[str], None]) -> None:
        faulthandler.dump_traceback_later(60, exit=True)
        warnings.simplefilter("ignore")
        patient()
        kept: list[BaseException] = []

        def keep() -> None:
            try:
                steps.run(name)
            except BaseException as error:  # with its traceback
                kept.append(error)

        where = how(keep)
        say(where)
        gate.wait()
        say(json.dumps(afterwards(steps, name) if where else []))

    child, wrong = Child(work), list[str]()
    where = child.line()
    if where:
        attempt("another process", lambda: steps.run(f"{name}-o"), wrong)
        attempt("the same elsewhere", lambda: steps.run(name), wrong)
    gate.open()
    code, lines = child.end()
    return where, [*wrong, *(json.loads(lines[0]) if code == 0 else lines)]


def by_line(number: int) -> How:
    """Interrupt at the n-th line."""

    def how(call: Callable[[], object]) -> str:
        tracer = Interrupt(number)
        sys.settrace(tracer)
        call()
        sys.settrace(None)
        return tracer.at

    return how
