"""A step on ten parts of a dataset, whatever the number of its parts.

Two ledgers in files, one with ten parts and one with many, take turns: a step on the
same ten parts is reserved and settled in each. Then `dpflow status` is run on the large
one, two pages of its parts.

    python benchmarks/partitions.py --parts 1e5
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from dpflow import PureDP
from dpflow.config import Settings
from dpflow.ledger import Ledger, create_ledger
from dpflow.ledger.records import Granted, Request
from dpflow.policy import parse_policy
from dpflow.show.status import status_of

POLICY = parse_policy(
    "{dataset: visits, unit: customer, relation: add-or-remove, filter: basic, "
    "budget: {epsilon: 1}, partition: {by: region}}"
)
ASKED = 10
AT_ONCE = 1000


def charge(ledger: Ledger, parts: Sequence[str]) -> None:
    """Reserve and settle a step on some parts."""
    request = Request(
        reservation=uuid.uuid4().hex,
        owner=ledger.owners.mine(),
        policies=(POLICY,),
        cost=PureDP(epsilon="0.0001"),
        step="count",
        partitions=tuple(parts),
    )
    answer = ledger.reserve(request)
    assert isinstance(answer, Granted)
    ledger.settle(answer.reservation)


def made(folder: Path, parts: int) -> Ledger:
    """Make a ledger that charged so many parts."""
    folder.mkdir()
    ledger = create_ledger(f"sqlite:///{folder}/ledger.db", witness=str(folder / "w"))
    names = [f"r{number:07}" for number in range(parts)]
    for first in range(0, parts, AT_ONCE):
        charge(ledger, names[first : first + AT_ONCE])
    return ledger


def print_status(ledger: Ledger, folder: Path) -> None:
    """Print the time of a status of all parts, and of one."""
    found = Settings(root=folder, ledger_url="", policies=folder)
    for part in (None, "r0000000"):
        before = time.perf_counter()
        status_of(found, ledger, "visits", part)
        seconds = time.perf_counter() - before
        print(f"status of {part or 'all parts'}: {seconds:.2f} s")


def main() -> None:
    """Print the time of a step in each ledger, their ratio, and that of a status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", type=float, default=1e5)
    parser.add_argument("--rounds", type=int, default=100)
    given = parser.parse_args()
    parts = int(given.parts)
    asked = [f"r{number:07}" for number in range(ASKED)]
    with tempfile.TemporaryDirectory() as folder:
        ledgers = {
            size: made(Path(folder) / str(size), size) for size in (ASKED, parts)
        }
        found: dict[int, list[float]] = {size: [] for size in ledgers}
        for _ in range(given.rounds):
            for size, ledger in ledgers.items():
                before = time.perf_counter()
                charge(ledger, asked)
                found[size].append(time.perf_counter() - before)
        medians = {size: statistics.median(each) for size, each in found.items()}
        for size, median in medians.items():
            print(f"a step on {ASKED} of {size:,} parts: {median * 1000:.2f} ms")
        print(f"ratio {medians[parts] / medians[ASKED]:.2f}")
        print_status(ledgers[parts], Path(folder))


if __name__ == "__main__":
    main()
