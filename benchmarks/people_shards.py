"""A step over the shards of very many people, beside numpy alone on the same shards.

`python -m benchmarks.people_shards [--people 1e8] [--folder FOLDER]` makes shards of a
million people each, on disk, and times steps in turns, each by two processes:

- dpflow: read a shard's costs, open its store, charge whom the step fits, durably, sum
  whole numbers of those who take part, and settle
- read, add, compare: numpy reads what was spent and the costs, adds, compares with the
  bound and sums; nothing is kept
- and write: the same, with what was spent written anew and synced, as any way must that
  does not forget; no checksum, no witness, no lock

Then the same for a tenth of the people. All of it is removed at the end.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from dpflow.accounting.rules.individual import IndividualBound
from dpflow.people import Shard, create_store, open_store

SHARD = 1_000_000
BOUND = IndividualBound(measure="gaussian", bound="0.05")
#: Of the bound; steps until the last person has nothing left.
MOST = 0.1


def places(folder: Path, number: int) -> tuple[Path, Path]:
    """Return a shard's file and its witness."""
    return folder / "people" / str(number), folder / "witness" / str(number)


def make(number: int, *, folder: Path, shards: int) -> None:
    """Write a shard for each of the three, and what its people ask for."""
    path, witness = places(folder, number)
    shard = Shard(number, shards)
    named = {"bound": BOUND, "witness": witness, "reservation": "r"}
    create_store(path, people=SHARD, shard=shard, **named).close()  # type: ignore[arg-type]
    random = np.random.default_rng(number)
    most = MOST * float(BOUND.bound)
    (random.random(SHARD) * most).tofile(folder / "costs" / str(number))
    np.zeros(SHARD).tofile(folder / "spent" / str(number))


def guarded(number: int, *, folder: Path, shards: int) -> int:
    """Charge a shard's people and count those who take part."""
    path, witness = places(folder, number)
    costs = np.fromfile(folder / "costs" / str(number))
    shard = Shard(number, shards)
    with open_store(path, bound=BOUND, witness=witness, shard=shard) as store:
        total = store.reserve(costs).sum(np.ones(SHARD, np.int64))
        store.settle()
    return int(total)


def plain(number: int, *, folder: Path, shards: int, write: bool = False) -> int:
    """Do the same with numpy alone."""
    del shards
    place = folder / "spent" / str(number)
    costs, spent = np.fromfile(folder / "costs" / str(number)), np.fromfile(place)
    wanted = spent + costs
    fits = wanted <= float(BOUND.bound)
    if write:
        fresh = place.with_suffix(".new")
        with fresh.open("wb") as file:
            np.where(fits, wanted, spent).tofile(file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(place)
    return int(np.sum(np.ones(SHARD, np.int64), where=fits))


WAYS: dict[str, Callable[..., int]] = {
    "read, add, compare": plain,
    "and write": partial(plain, write=True),
    "dpflow": guarded,
}


def timed(pool: Executor, folder: Path, people: float, rounds: int) -> dict[str, float]:
    """Return the median time of a step over all shards, for each way."""
    shards = round(people / SHARD)
    for name in ("people", "witness", "costs", "spent"):
        (folder / name).mkdir(parents=True)
    list(pool.map(partial(make, folder=folder, shards=shards), range(shards)))
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        counts = set()
        for name, way in WAYS.items():
            start = time.perf_counter()
            job = partial(way, folder=folder, shards=shards)
            counts.add((name, sum(pool.map(job, range(shards)))))
            found[name].append(time.perf_counter() - start)
        print(f"  who took part: {sorted(counts)}", flush=True)
    shutil.rmtree(folder)
    return {name: statistics.median(times) for name, times in found.items()}


def main() -> None:
    """Print the times and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--people", type=float, default=1e8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None)
    asked = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="shards-", dir=asked.folder))
    spawn = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(2, mp_context=spawn) as pool:
            small = timed(pool, root / "small", asked.people / 10, asked.rounds)
            large = timed(pool, root / "large", asked.people, asked.rounds)
    finally:
        shutil.rmtree(root)
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    for name, seconds in large.items():
        print(
            f"{name:20} {seconds:7.2f} s for {asked.people:.0e}, "
            f"{seconds / small[name]:5.1f} times a tenth of them, dpflow takes "
            f"{large['dpflow'] / seconds:5.2f} times as long"
        )
    print(f"largest worker: {largest:.2f} GiB")


if __name__ == "__main__":
    main()
