# ruff: noqa: PLC0415 (Prefect reads its settings when it is imported)
"""What the guard adds to a Prefect task: guarded tasks beside plain ones.

The kinds run in turns in one flow, so that a busy machine slows all: empty tasks
first, then tasks that sleep. Prints the median and 95th percentile of each, what was
added, the ratio as measured, and how long each phase of the guard took, in wall time
and in processor time of the step's own thread.

The third kind is the least that any guard can do that writes what dpflow writes: a
plain task whose body commits a charge's rows in two transactions with the raw driver,
and syncs a line of a witness between them. It checks nothing.

    python -m benchmarks.guard_overhead [--tasks 200] [--server]

By default on Prefect's ephemeral server; with --server against PREFECT_API_URL.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.ledger_raw import make_rows, of_rows

POLICY = """\
dataset: bench
unit: person
relation: add-or-remove
budget: {epsilon: 1000, delta: 1e-6}
filter: gdp
"""
ODOMETER = "odometer: {theorem: rdp, delta: 1e-6}\n"
#: How long the body of the second kind of task sleeps.
SLEEP_MS = 20
#: Tasks of each kind that are run before any is measured.
WARM = 10
#: As long as a line of the witness.
LINE = b"x" * 300 + b"\n"
#: Functions that are timed, by what they do: module, path in it. A phase that is set
#: in is a part of the one above it.
PHASES = {
    "policy, price, release key": ("dpflow.guard.reserving", "ask"),
    "ledger: reserve": ("dpflow.ledger.ledger", "Ledger.reserve"),
    "  witness": ("dpflow.ledger.witness.comparison", "Watch.record"),
    "ledger: settle": ("dpflow.ledger.ledger", "Ledger.settle"),
    "notices": ("dpflow.guard.request", "StepContext.tell"),
    "all of the guard": ("dpflow.prefect.task", "run"),
}

#: Wall and processor time of one call, in milliseconds.
Spent = tuple[float, float]
Kinds = Mapping[str, Callable[[int, float], Any]]
PLAIN = "plain"


def main() -> None:
    """Measure and print."""
    # Prefect reads them when it is imported; a test imports this module.
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    os.environ.setdefault("DO_NOT_TRACK", "1")
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "120")
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--server", action="store_true")
    parser.add_argument("--odometer", action="store_true")
    given = parser.parse_args()
    if not given.server:
        os.environ.pop("PREFECT_API_URL", None)
    with tempfile.TemporaryDirectory() as folder:
        _make_project(Path(folder), POLICY + (ODOMETER if given.odometer else ""))
        with _raw_commits(Path(folder)) as commit:
            _run(given.tasks, commit)


@contextmanager
def _raw_commits(folder: Path) -> Iterator[Callable[[], None]]:
    """Give a function that writes what a charge writes, and checks nothing."""
    from benchmarks.ledger import charge, policy
    from dpflow.ledger import create_ledger

    url = f"sqlite:///{folder}/raw.db"
    with closing(create_ledger(url)) as ledger:
        charge(ledger, policy())
    make_rows(url)
    with (folder / "lines").open("ab", buffering=0) as lines, of_rows(url) as write:

        def commit() -> None:
            lines.write(LINE)
            os.fdatasync(lines.fileno())
            write()

        yield commit


def _make_project(folder: Path, policy: str) -> None:
    os.chdir(folder)
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    (folder / "pyproject.toml").touch()
    (folder / "policies").mkdir()
    (folder / "policies" / "bench.yaml").write_text(policy, "utf-8")
    from dpflow.config import settings
    from dpflow.ledger import create_ledger, pin_ledger

    found = settings()
    ledger = create_ledger(found.ledger_url)
    pin_ledger(ledger, found.policies)
    ledger.close()


def _kinds(commit: Callable[[], None]) -> Kinds:
    """Make the tasks that are compared."""
    from prefect import task

    from dpflow import dp_task
    from dpflow.costs import GaussianDP

    def body(number: int, seconds: float) -> int:
        if seconds:  # a sleep of no time waits as well
            time.sleep(seconds)
        return number

    def after_commits(number: int, seconds: float) -> int:
        commit()
        return body(number, seconds)

    # A guarantee of the body's own: that it calls no release() is no cause to warn.
    guarded = dp_task(dataset="bench", cost=GaussianDP(mu="0.001"))(body)
    return {PLAIN: task(body), "raw commits": task(after_commits), "guarded": guarded}


def _run(tasks: int, commit: Callable[[], None]) -> None:
    from prefect import flow

    kinds = _kinds(commit)
    found: dict[str, dict[str, list[Spent]]] = {}
    phases: dict[str, list[Spent]] = {}

    @flow(name="bench")
    def bench() -> None:
        numbers = iter(range(10 * (WARM + tasks)))
        for seconds in (0.0, SLEEP_MS / 1000):
            name = f"{1000 * seconds:g} ms" if seconds else "empty"
            _in_turns(numbers, WARM, kinds, seconds)
            found[name] = _in_turns(numbers, tasks, kinds, seconds)
        # By themselves, for the timers take time as well.
        with _timed_phases(phases):
            _in_turns(numbers, tasks, kinds, 0)

    bench()
    for name, times in found.items():
        print(f"\n{name} tasks")
        for kind, spent in times.items():
            _print_kind(kind, spent, times[PLAIN])
    _print_phases(phases)


def _in_turns(
    numbers: Iterator[int], tasks: int, kinds: Kinds, seconds: float
) -> dict[str, list[Spent]]:
    """Run all kinds in turns; each round has a number of its own."""
    times: dict[str, list[Spent]] = {kind: [] for kind in kinds}
    for _ in range(tasks):
        number = next(numbers)
        for kind, call in kinds.items():
            times[kind].append(_timed(call, number, seconds)[1])
    return times


def _timed(call: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, Spent]:
    start, own = time.perf_counter(), time.thread_time()
    value = call(*args, **kwargs)
    return value, (
        1000 * (time.perf_counter() - start),
        1000 * (time.thread_time() - own),
    )


@contextmanager
def _timed_phases(phases: dict[str, list[Spent]]) -> Iterator[None]:
    """Time each phase within the block; what a step spends in one is one number."""
    with ExitStack() as stack:
        for phase, (module, path) in PHASES.items():
            owner: Any = import_module(module)
            *classes, name = path.split(".")
            for each in classes:
                owner = getattr(owner, each)
            spent = phases.setdefault(phase, [])
            timer = _timer(getattr(owner, name), spent)
            stack.enter_context(patch.object(owner, name, timer))
        yield
    steps = len(phases["all of the guard"])
    for phase, spent in phases.items():
        phases[phase] = _by_step(spent, len(spent) // steps)


def _by_step(spent: list[Spent], calls: int) -> list[Spent]:
    """Add up what each step spent, in so many calls that stand together."""
    return [
        (sum(wall for wall, _ in part), sum(own for _, own in part))
        for part in zip(*[iter(spent)] * calls, strict=True)
    ]


def _timer(function: Callable[..., Any], spent: list[Spent]) -> Callable[..., Any]:
    @functools.wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Any:
        value, times = _timed(function, *args, **kwargs)
        spent.append(times)
        return value

    return timed


def _print_kind(kind: str, spent: list[Spent], plain: list[Spent]) -> None:
    walls = [wall for wall, _ in spent]
    middle, high = statistics.median(walls), statistics.quantiles(walls, n=20)[-1]
    own = statistics.median(own for _, own in spent)
    print(
        f"  {kind:12} median {middle:6.2f} ms   p95 {high:6.2f} ms   "
        f"of the processor {own:6.2f} ms",
        end="",
    )
    if kind == PLAIN:
        print()
        return
    # They ran side by side: their differences do not see slow phases of the machine.
    added, busy = (
        statistics.median(a[i] - b[i] for a, b in zip(spent, plain, strict=True))
        for i in (0, 1)
    )
    ratio = middle / statistics.median(wall for wall, _ in plain)
    print(
        f"   added {added:6.2f} ms   of the processor {busy:5.2f} ms   "
        f"ratio of the medians {ratio:.3f}"
    )


def _print_phases(phases: Mapping[str, list[Spent]]) -> None:
    print("\nthe guard's phases of an empty task, medians:")
    for phase, spent in phases.items():
        if not spent:  # no witness, for example
            continue
        wall, processor = (statistics.median(each) for each in zip(*spent, strict=True))
        print(f"  {phase:28} {wall:6.2f} ms, of the processor {processor:6.2f} ms")


if __name__ == "__main__":
    main()
