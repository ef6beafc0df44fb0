# ruff: noqa: PLC0415 (Prefect reads its settings when it is imported)
"""What the guard adds to a Prefect task: guarded tasks beside plain ones.

Both kinds run in turns in one flow, so that a busy machine slows both. Prints the
median and 95th percentile of each, the ratio, what a task of 20 ms and more would pay,
and where the guard's own time goes.

    python benchmarks/guard_overhead.py [--tasks 200] [--server]

By default on Prefect's ephemeral server; with --server against PREFECT_API_URL.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
#: Of the guard's own time, what is counted where: file of dpflow, heading.
PHASES = {
    "asking.py": "policy, price, release key",
    "kernel.py": "ledger: reserve and settle",
    "sqlite.py": "transactions and fsync",
    "events.py": "events",
    "place.py": "Prefect's contexts",
}


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

    from dpflow import Gaussian, dp_task

    cost = Gaussian(sensitivity=1, sigma=1000)

    @task
    def plain(number: int) -> int:
        return number

    @dp_task(dataset="bench", cost=cost)
    def guarded(number: int) -> int:
        return number

    times: dict[str, list[float]] = {"plain": [], "guarded": []}
    profile = cProfile.Profile()

    @flow(name="bench")
    def bench() -> None:
        for number in range(10):
            plain(-1 - number)
            guarded(-1 - number)
        for number in range(tasks):
            times["plain"].append(_timed(plain, number))
            times["guarded"].append(_timed(guarded, number))
        with profile:
            for number in range(tasks, tasks + 50):
                guarded(number)

    bench()
    _print(times, profile)


def _timed(call: Callable[[int], Any], number: int) -> float:
    start = time.perf_counter()
    call(number)
    return 1000 * (time.perf_counter() - start)


def _print(times: dict[str, list[float]], profile: cProfile.Profile) -> None:
    for name, found in times.items():
        high = statistics.quantiles(found, n=20)[-1]
        print(
            f"{name:8} median {statistics.median(found):7.2f} ms   p95 {high:7.2f} ms"
        )
    # Pairs ran side by side: their differences do not see slow phases of the machine.
    pairs = zip(times["guarded"], times["plain"], strict=True)
    added = statistics.median(with_guard - without for with_guard, without in pairs)
    plain = statistics.median(times["plain"])
    print(f"added    median {added:7.2f} ms   ({(plain + added) / plain:.2f} times)")
    for body in (20, 100, 1000):
        ratio = (plain + body + added) / (plain + body)
        print(f"a task whose body takes {body:4} ms: {ratio:.3f} times")
    print("\nwhere the guard's time goes (profiled, so slower than above):")
    stats: Any = pstats.Stats(profile)
    for file, heading in PHASES.items():
        own = [
            (spent, name)
            for (path, _, name), (_, _, _, spent, _) in stats.stats.items()
            if path.endswith(f"/{file}") and f"{os.sep}dpflow{os.sep}" in path
        ]
        top = sorted(own, reverse=True)[:3]
        told = ", ".join(f"{name} {1000 * spent / 50:.2f} ms" for spent, name in top)
        print(f"  {heading:28} {told}")


if __name__ == "__main__":
    main()
