"""Bounding in DuckDB beside the query that one would write by hand.

The rows are made in place by `range()`, 20 a person, of which five are kept; both sum
the clipped amounts by shop. A process for each, so that its memory is its own. The
hand-written query says row_number() and QUALIFY, which DuckDB may turn into a top-N.

    python benchmarks/lazy_rows.py --rows 1e7
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import duckdb

from dpflow import Clip, Contributions

LIMITS = Contributions(
    unit=("person",),
    max_rows=5,
    relation="add-or-remove",
    clip={"amount": Clip(0, 20_000)},
    order_by=("day",),
)
ROWS = """
select (hash(i) % {people})::bigint as person, (i * 7919) % 365 as day,
    (hash(i * 3) % 30000)::int as amount, i % 50 as shop
from range({rows}) numbers(i)
"""
BY_HAND = """
select person, day, shop, amount from (
    select * replace (
        greatest(least(coalesce(amount, 0), 20000), 0)::bigint as amount
    )
    from sales where person is not null
)
qualify row_number() over (partition by person order by day, amount, shop) <= 5
"""
TOTALS = "shop, count(*) as rows, sum(amount) as amount"


def measure(kind: str, path: str) -> dict[str, Any]:
    """Return the seconds of the clock and the processors, memory and sum of one way."""
    with duckdb.connect(path, read_only=True) as connection:
        connection.execute("set memory_limit = '1500MB'")
        connection.execute(f"set temp_directory = '{path}.spill'")
        before = time.perf_counter()
        sales = connection.table("sales")
        bound = connection.sql(BY_HAND) if kind == "by-hand" else LIMITS.bound(sales)
        totals = bound.aggregate(TOTALS, "shop").fetchall()
        seconds = time.perf_counter() - before
    used = resource.getrusage(resource.RUSAGE_SELF)
    peak, work = used.ru_maxrss / 2**20, used.ru_utime + used.ru_stime
    sums = [sum(row[place] for row in totals) for place in (1, 2)]
    sums = [int(each) for each in sums]
    return {"seconds": seconds, "work": work, "gib": peak, "sums": sums}


def main() -> None:
    """Print each way's time and memory, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=float, default=1e7)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure(*given.measure)))
        return
    rows = int(given.rows)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/sales.duckdb"
        with duckdb.connect(path) as connection:
            made = ROWS.format(rows=rows, people=rows // 20)
            connection.execute(f"create table sales as {made}")
        report(path, rows, given.rounds)


def report(path: str, rows: int, rounds: int) -> None:
    """Take turns, so that a busy machine is busy for both."""
    found: dict[str, list[dict[str, Any]]] = {"by-hand": [], "dpflow": []}
    for _ in range(rounds):
        for kind, runs in found.items():
            command = [sys.executable, __file__, "--measure", kind, path]
            done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
            runs.append(json.loads(done.stdout))
    sums = [run["sums"] for runs in found.values() for run in runs]
    if any(each != sums[0] for each in sums):
        sys.exit("the two ways keep other rows")
    for kind, runs in found.items():
        clock, work = (_median(runs, name) for name in ("seconds", "work"))
        peak = max(run["gib"] for run in runs)
        told = f"{clock:.1f} s, {work:.1f} s of processors, {peak:.2f} GiB"
        print(f"{rows:.0e} rows, {kind}: {told}")
    for name, of in (("seconds", "the clock"), ("work", "the processors")):
        ours, theirs = (_median(found[kind], name) for kind in ("dpflow", "by-hand"))
        print(f"ratio by {of} {ours / theirs:.2f}")


def _median(runs: list[dict[str, float]], name: str) -> float:
    return statistics.median([run[name] for run in runs])


if __name__ == "__main__":
    main()
