# ruff: noqa: PLC0415 (Prefect reads its settings when it is imported)
"""What the guard adds to a Prefect task: guarded tasks beside plain ones.

Both kinds run in turns in one flow, so that a busy machine slows both: empty tasks
first, then tasks that sleep. Prints the median and 95th percentile of each, what was
added, the ratio as measured, and how long each phase of the guard took, in wall time
and in processor time of the step's own thread.

    python benchmarks/guard_overhead.py [--tasks 200] [--server]

By default on Prefect's ephemeral server; with --server against PREFECT_API_URL.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "120")
os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")

POLICY = """\
dataset: bench
unit: person
relation: add-or-remove
budget: {epsilon: 1000, delta: 1e-6}
filter: gaussian
"""
ODOMETER = "odometer: {theorem: renyi, delta: 1e-6}\n"
#: How long the body of the second kind of task sleeps.
SLEEP_MS = 20
#: Tasks of each kind that are run before any is measured.
WARM = 10
#: Functions that are timed, by what they do: module, path in it. A phase that is set
#: in is a part of the one above it.
PHASES = {
    "policy, price, release key": ("dpflow.execution", "ask"),
    "ledger: reserve": ("dpflow.ledger.kernel", "Ledger.reserve"),
    "  witness": ("dpflow.ledger.watch", "Watch.tell"),
    "ledger: settle": ("dpflow.ledger.kernel", "Ledger.settle"),
    "notices": ("dpflow.asking", "Place.tell"),
    "all of the guard": ("dpflow.prefect.task", "run"),
}

#: Wall and processor time of one call, in milliseconds.
Spent = tuple[float, float]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--server", action="store_true")
    parser.add_argument("--odometer", action="store_true")
    given = parser.parse_args()
    if not given.server:
        os.environ.pop("PREFECT_API_URL", None)
    with tempfile.TemporaryDirectory() as folder:
        _make_project(Path(folder), POLICY + (ODOMETER if given.odometer else ""))
        _run(given.tasks)


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


def _run(tasks: int) -> None:
    from prefect import flow, task

    from dpflow import GaussianDP, dp_task

    # A guarantee of the body's own: that it calls no release() is no cause to warn.
    cost = GaussianDP(mu="0.001")

    @task
    def plain(number: int, seconds: float) -> int:
        if seconds:  # a sleep of no time waits as well
            time.sleep(seconds)
        return number

    @dp_task(dataset="bench", cost=cost)
    def guarded(number: int, seconds: float) -> int:
        if seconds:  # a sleep of no time waits as well
            time.sleep(seconds)
        return number

    found: dict[str, dict[str, list[Spent]]] = {}
    phases: dict[str, list[Spent]] = {}

    @flow(name="bench")
    def bench() -> None:
        numbers = iter(range(10 * (WARM + tasks)))
        for seconds in (0.0, SLEEP_MS / 1000):
            name = f"{1000 * seconds:g} ms" if seconds else "empty"
            _in_turns(numbers, WARM, plain, guarded, seconds)
            found[name] = _in_turns(numbers, tasks, plain, guarded, seconds)
        # By themselves, for the timers take time as well.
        with _timed_phases(phases):
            _in_turns(numbers, tasks, plain, guarded, 0)

    bench()
    for name, times in found.items():
        _print_pair(name, times["plain"], times["guarded"])
    print("\nthe guard's phases of an empty task, medians:")
    for phase, spent in phases.items():
        if not spent:  # no witness, for example
            continue
        wall, processor = (statistics.median(each) for each in zip(*spent, strict=True))
        print(f"  {phase:28} {wall:6.2f} ms, of the processor {processor:6.2f} ms")


def _in_turns(
    numbers: Iterator[int],
    tasks: int,
    plain: Callable[..., Any],
    guarded: Callable[..., Any],
    seconds: float,
) -> dict[str, list[Spent]]:
    """Run both kinds in turns; each task has a number of its own."""
    times: dict[str, list[Spent]] = {"plain": [], "guarded": []}
    for _ in range(tasks):
        number = next(numbers)
        times["plain"].append(_timed(plain, number, seconds)[1])
        times["guarded"].append(_timed(guarded, number, seconds)[1])
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


def _print_pair(name: str, plain: list[Spent], guarded: list[Spent]) -> None:
    print(f"\n{name} tasks")
    for kind, times in (("plain", plain), ("guarded", guarded)):
        walls = [wall for wall, _ in times]
        high = statistics.quantiles(walls, n=20)[-1]
        own = statistics.median(own for _, own in times)
        print(
            f"  {kind:8} median {statistics.median(walls):7.2f} ms   p95 {high:7.2f} ms"
            f"   of the processor {own:6.2f} ms"
        )
    # Pairs ran side by side: their differences do not see slow phases of the machine.
    pairs = list(zip(guarded, plain, strict=True))
    added, own = (
        statistics.median(with_guard[i] - without[i] for with_guard, without in pairs)
        for i in (0, 1)
    )
    ratio = statistics.median(g[0] for g in guarded) / statistics.median(
        p[0] for p in plain
    )
    print(
        f"  added    median {added:7.2f} ms   of the processor {own:.2f} ms   "
        f"ratio of the medians {ratio:.3f}"
    )


if __name__ == "__main__":
    main()
