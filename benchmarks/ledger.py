"""How fast the ledger reserves and settles, beside raw drivers in the same run.

    python -m benchmarks.ledger            # all sizes, about fifteen minutes
    python -m benchmarks.ledger --quick    # a minute
    python -m benchmarks.ledger --sync-ms 2 --quick   # as on a disk with slower syncs

Each round interleaves dpflow with a raw driver that commits as many bytes, with the
same durability, so that a busy machine slows both. PostgreSQL is a server of its own
with its files on disk (the wheel `pgserver` or the system's); SQLite is a file beside.
Exits 1 where a goal is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import os
import pstats
import random
import shutil
import sqlite3
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.ledger_raw import make_rows, of_bytes, of_rows
from benchmarks.slow_sync import run_again_with_slow_syncs
from dpflow import PureDP
from dpflow.config import NO_WITNESS
from dpflow.ledger import Ledger, create_ledger, open_ledger
from dpflow.ledger.requests import Request
from dpflow.ledger.tables.rows import Dataset, Entry, name_columns
from dpflow.policy import Policy, parse_policy
from tests.ledger.processes import Child, Gate
from tests.postgres import PostgresServer

#: Opens what a process charges.
Way = Callable[[], contextlib.AbstractContextManager[Callable[[], None]]]
COST = PureDP(epsilon="0.000001")
RAW_GOAL, FLAT_GOAL, FAIR_GOAL = 0.8, 1.2, 0.25
WORKERS = "1,8,32"
SPREAD = 1000
#: Of a profile, what is counted where: heading, parts of functions' names.
PHASES = {
    "statements and commits": ("of 'sqlite3.", "wait", "poll"),
    "hashes and JSON": ("_hashlib", "_json", "iterencode", "raw_decode"),
    "files": ("posix.", "fcntl."),
}


@dataclass
class Goals:
    """What was asked for and what came out."""

    missed: list[str] = field(default_factory=list)

    def check(self, name: str, value: float, *, at_least: float) -> None:
        """Say a ratio and whether it is enough."""
        verdict = "ok" if value >= at_least else "MISSED"
        print(f"  goal: {name}: {value:.2f} (at least {at_least:.2f}) {verdict}")
        if value < at_least:
            self.missed.append(name)


@dataclass(frozen=True)
class Place:
    """A kind of database, and how to make one of it.

    Attributes:
        new: Returns the URL of an empty place.
    """

    name: str
    new: Callable[[], str]


def policy(number: int = 0) -> Policy:
    """Return the policy of one of many datasets."""
    return parse_policy(
        f"dataset: d{number}\nunit: person\nrelation: add-or-remove\n"
        "budget: {epsilon: 10000}\nfilter: basic\n"
    )


def request(ledger: Ledger, of: Policy) -> Request:
    """Make a request as the guard makes one."""
    return Request(
        reservation=uuid.uuid4().hex,
        owner=ledger.owners.mine(),
        policies=(of,),
        cost=COST,
        step="count",
    )


def charge(ledger: Ledger, of: Policy) -> None:
    """Reserve and settle once."""
    made = request(ledger, of)
    ledger.reserve(made)
    ledger.settle(made.reservation)


def percentile(values: list[float], share: float) -> float:
    """Return the value below which a share of all lies."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def timed(call: Callable[[], object], seconds: float) -> list[float]:
    """Call for so long; return the seconds of each call."""
    found, until = [], time.perf_counter() + seconds
    while (since := time.perf_counter()) < until:
        call()
        found.append(time.perf_counter() - since)
    return found


# Many workers


@contextlib.contextmanager
def of_ledger(url: str, datasets: int = 1) -> Iterator[Callable[[], None]]:
    """Give a function that charges one of the datasets, drawn each time."""
    ledger, chance = open_ledger(url), random.Random(os.getpid())
    policies = [policy(number) for number in range(datasets)]
    charge(ledger, policies[0])
    yield lambda: charge(ledger, chance.choice(policies))
    ledger.close()


def workers(
    opened: Way, count: int, where: str, seconds: float, goals: Goals | None
) -> None:
    """Let processes reserve and settle, and print what came of it.

    Args:
        opened: Opens what a process charges.
        count: How many processes.
        where: What they charge, in words.
        seconds: How long.
        goals: Where a missed goal is noted; a raw driver has none.
    """
    gate = Gate()

    def work(say: Callable[[str], None]) -> None:
        with opened() as write:
            say("ready")
            gate.wait()
            say(" ".join(f"{each:.6f}" for each in timed(write, seconds)))

    children = [Child(work) for _ in range(count)]
    for child in children:
        child.line()
    gate.open()
    told = []
    for child in children:
        code, lines = child.end()
        if code != 0:
            sys.exit("\n".join(lines))
        told.append([float(word) for word in lines[0].split()])
    every = [each for one in told for each in one]
    counts = sorted(len(one) for one in told)
    print(
        f"  {count:>2} workers, {where:<15} {len(every) / seconds:8.0f}/s  "
        f"p50 {percentile(every, 0.5) * 1e3:7.2f} ms  "
        f"p99 {percentile(every, 0.99) * 1e3:8.2f} ms  "
        f"per worker {counts[0]}..{counts[-1]}"
    )
    if count > 1 and goals is not None:
        fair = len(every) / count
        name = f"{count} workers, {where}: the slowest one's share of a fair part"
        goals.check(name, counts[0] / fair, at_least=FAIR_GOAL)


# Raw drivers


def bytes_of_a_charge(url: str) -> int:
    """Measure how much of the database's log a charge writes."""
    ledger, one, count = open_ledger(url), policy(), 20
    charge(ledger, one)
    before = _log_position(url)
    for _ in range(count):
        charge(ledger, one)
    after = _log_position(url)
    ledger.close()
    return (after - before) // count


def _log_position(url: str) -> int:
    if not url.startswith("sqlite"):
        with psycopg.connect(url) as connection:
            sql = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint"
            row = connection.execute(sql).fetchone()
            return int(row[0]) if row else 0
    # The -wal file is used again after a checkpoint; pages changed are what counts.
    path = url.removeprefix("sqlite:///")
    return Path(f"{path}-wal").stat().st_size


def beside_raw(place: Place, seconds: float, goals: Goals) -> None:
    """Compare one worker with raw drivers that commit as much, interleaved."""
    url, other, one = place.new(), place.new(), policy()
    ledger = create_ledger(url)
    size = max(bytes_of_a_charge(url), 512)
    make_rows(other)
    with of_bytes(url, size) as as_bytes, of_rows(other) as as_rows:
        ways: dict[str, Callable[[], object]] = {
            "dpflow": partial(charge, ledger, one),
            "raw, as many bytes": as_bytes,
            "raw, such rows": as_rows,
        }
        found = in_turns(ways, 4 * seconds)
    # Of medians: the tails are other programs on this machine.
    middle = {who: percentile(times, 0.5) for who, (times, _) in found.items()}
    for who, (times, busy) in found.items():
        print(
            f"  {who:<23} p50 {middle[who] * 1e3:6.2f} ms  p99 "
            f"{percentile(times, 0.99) * 1e3:6.2f} ms  processor "
            f"{percentile(busy, 0.5) * 1e3:5.2f} ms  "
            f"dpflow's share of its rate {middle[who] / middle['dpflow']:.2f}"
        )
    print(f"  a charge is {size:,} bytes of the database's log in two commits")
    phases(ledger, one)
    ledger.close()
    ours, raw = middle["dpflow"], middle["raw, such rows"]
    goals.check(f"{place.name}: share of the raw rate", raw / ours, at_least=RAW_GOAL)
    # Both sync twice: what a slower sync adds, it adds to both.
    more = max(0.0, (RAW_GOAL * ours - raw) / (1 - RAW_GOAL) / 2)
    _tell_sync(more, f"a share of {RAW_GOAL}")


def _tell_sync(more: float, what: str) -> None:
    """Say how slow a sync must be for a goal, by arithmetic from this run."""
    sync = sync_seconds(Path.cwd())
    print(
        f"  a sync takes {sync * 1e3:.2f} ms here; {what} needs one of "
        f"{(sync + more) * 1e3:.2f} ms or more"
    )


def sync_seconds(folder: Path, count: int = 200) -> float:
    """Measure how long a page takes to reach the disk: the median."""
    with tempfile.TemporaryFile(dir=folder) as file:

        def page() -> None:
            os.pwrite(file.fileno(), b"x" * 4096, 0)
            os.fdatasync(file.fileno())

        page()
        times = []
        for _ in range(count):
            since = time.perf_counter()
            page()
            times.append(time.perf_counter() - since)
    return percentile(times, 0.5)


def in_turns(
    ways: dict[str, Callable[[], object]], seconds: float
) -> dict[str, tuple[list[float], list[float]]]:
    """Call each in turn for so long; return the wall and processor seconds of each."""
    found: dict[str, tuple[list[float], list[float]]] = {who: ([], []) for who in ways}
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        for who, call in ways.items():
            since, busy = time.perf_counter(), time.thread_time()
            call()
            found[who][0].append(time.perf_counter() - since)
            found[who][1].append(time.thread_time() - busy)
    return found


def phases(ledger: Ledger, one: Policy, count: int = 200) -> None:
    """Print where the time of a charge goes."""
    profile = cProfile.Profile()
    with profile:
        for _ in range(count):
            charge(ledger, one)
    told: Any = pstats.Stats(profile)
    own: Counter[str] = Counter()
    for (path, _, name), (_, _, spent, _, _) in told.stats.items():
        known = (p for p, parts in PHASES.items() if any(x in name for x in parts))
        own[next(known, "dpflow" if "dpflow" in path else "the rest")] += spent
    every = sum(own.values())
    shares = ", ".join(f"{name} {own[name] / every:.0%}" for name in sorted(own))
    print(f"  where a charge's time goes (profiled): {shares}")


# Long histories


def with_history(url: str, entries: int) -> Ledger:
    """Make a ledger whose one dataset has so many entries, chained."""
    ledger, one = create_ledger(url, witness=NO_WITNESS), policy()
    charge(ledger, one)
    with ledger.database.snapshot() as transaction:
        transaction.begin(["d0"], lock=False)
        dataset = transaction.datasets["d0"]
    # The sums stay; a refusal moves none, and this is about length only.
    made = list(_refusals(dataset, entries))
    after = dataset._replace(number=made[-1].number, hash=made[-1].hash)
    marked = name_columns(after)
    names = ", ".join(Entry._fields)
    if url.startswith("sqlite"):
        path = url.removeprefix("sqlite:///")
        with contextlib.closing(sqlite3.connect(path)) as file:
            file.execute("DROP TRIGGER journal_follows")
            marks = ",".join("?" * len(Entry._fields))
            file.executemany(f"INSERT INTO journal ({names}) VALUES ({marks})", made)
            file.execute(
                "UPDATE dataset SET number = :number, hash = :hash, mark = :mark",
                marked,
            )
            file.commit()
        return ledger
    options = "-c search_path=dpflow -c session_replication_role=replica"
    with psycopg.connect(url, options=options) as connection:
        copied = f"COPY journal ({names}) FROM STDIN"
        with connection.cursor().copy(copied.encode()) as copy:
            for values in made:
                copy.write_row(values)
        connection.execute(
            b"UPDATE dataset SET number = %(number)s, hash = %(hash)s, mark = %(mark)s",
            marked,
        )
    return ledger


def _refusals(dataset: Dataset, entries: int) -> Iterator[Entry]:
    """Yield entries that follow one another."""
    previous = dataset.hash
    fields: Any = ("", "", "refuse", "none", *[None] * 4, "{}", "{}")
    for number in range(dataset.number + 1, entries + 1):
        entry = Entry(dataset.name, number, *fields).with_hash(previous)
        previous = entry.hash
        yield entry


def histories(place: Place, sizes: list[int], seconds: float, goals: Goals) -> None:
    """Compare a decision after short and long histories, interleaved."""
    ledgers = {size: with_history(place.new(), size) for size in sizes}
    found: dict[int, list[float]] = {size: [] for size in sizes}
    one = policy()
    for ledger in ledgers.values():
        for _ in range(20):
            charge(ledger, one)
    for _ in range(20):
        for size, ledger in ledgers.items():
            found[size] += timed(partial(charge, ledger, one), seconds / 20)
    for size, times in found.items():
        print(f"  after {size:>9,} entries: p50 {percentile(times, 0.5) * 1e3:6.2f} ms")
        ledgers[size].close()
    middle = {size: percentile(times, 0.5) for size, times in found.items()}
    ratio = middle[sizes[0]] / middle[sizes[-1]]
    goals.check(
        f"{place.name}: speed after {sizes[-1]:,} entries over that after {sizes[0]:,}",
        ratio,
        at_least=1 / FLAT_GOAL,
    )


def beside_snapshot(url: str, seconds: float, goals: Goals) -> None:
    """Compare first and last charges beside a transaction that stays open."""
    ledger = create_ledger(url)
    call = partial(charge, ledger, policy())
    timed(call, 1.0)
    with psycopg.connect(url) as session:
        session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        session.execute("SELECT count(*) FROM dpflow.journal")
        found = timed(call, seconds)
    ledger.close()
    part = len(found) // 10
    first, last = percentile(found[:part], 0.5), percentile(found[-part:], 0.5)
    what = f"beside an open transaction, after {len(found):,} charges"
    print(f"  {what}: p50 {last * 1e3:.2f} ms, {first * 1e3:.2f} ms before")
    goals.check(f"{what}: speed", first / last, at_least=1 / FLAT_GOAL)


def main() -> int:
    """Run what was asked for; 1 where a goal is missed."""
    # The same for both databases.
    os.environ["DPFLOW_WITNESS"] = "none"
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="short, small rounds")
    parser.add_argument("--seconds", type=float, help="of each measurement")
    parser.add_argument("--histories", help="comma-separated numbers of entries")
    parser.add_argument("--workers", default=WORKERS, help="comma-separated numbers")
    parser.add_argument("--only", choices=["sqlite", "postgres"])
    parser.add_argument("--sync-ms", type=float, help="added to each sync of the disk")
    given: Any = parser.parse_args()
    if given.sync_ms is not None:
        run_again_with_slow_syncs("benchmarks.ledger", given.sync_ms)
    seconds = given.seconds or (1.0 if given.quick else 5.0)
    default = "1000,20000" if given.quick else "1000,100000,1000000"
    sizes = [int(word) for word in (given.histories or default).split(",")]
    goals, folder = Goals(), Path(tempfile.mkdtemp(prefix="dpflow-bench-", dir="."))
    server = None if given.only == "sqlite" else PostgresServer(on_disk=True)

    def file() -> str:
        return f"sqlite:///{folder.absolute()}/{uuid.uuid4().hex}.db"

    places = [] if given.only == "postgres" else [Place("sqlite", file)]
    if server is not None:
        places.append(Place("postgres", server.new_database))
    try:
        for place in places:
            print(f"\n{place.name}: reserve + settle")
            beside_raw(place, seconds, goals)
            url, other = place.new(), place.new()
            create_ledger(url).close()
            make_rows(other)
            spread = 20 if given.quick else SPREAD
            ways: dict[str, Way] = {
                "one hot dataset": partial(of_ledger, url),
                f"{spread:,} datasets": partial(of_ledger, url, spread),
                "raw, such rows": partial(of_rows, other),
            }
            for where, way in ways.items():
                for count in map(int, given.workers.split(",")):
                    checked = None if where.startswith("raw") else goals
                    workers(way, count, where, seconds, checked)
            print(f"{place.name}: long histories")
            histories(place, sizes, seconds, goals)
            if place.name == "postgres":
                beside_snapshot(place.new(), 4 * seconds, goals)
    finally:
        if server is not None:
            server.destroy()
        shutil.rmtree(folder)
    print(f"\nload of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print("goals missed: " + ("; ".join(goals.missed) or "none"))
    return 1 if goals.missed else 0


if __name__ == "__main__":
    sys.exit(main())
