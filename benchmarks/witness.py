"""What the witness costs: a reserve with it, beside one without.

    python benchmarks/witness.py            print the table
    python benchmarks/witness.py --check    exit with 1 if a target is missed

The witness is one more line that is written and synced, so a durable reserve may take
about twice as long, and no longer. Rounds of both kinds alternate on one disk; what
counts is the ratio of their medians. Without syncing, what is left is the work itself.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
import uuid
from pathlib import Path

from dpflow.accounting.costs.noise import Gaussian
from dpflow.ledger import Ledger, create_ledger
from dpflow.ledger.records import Request
from dpflow.ledger.witness import file as witness
from dpflow.policy import Policy, parse_policy

ROUNDS, STEPS = 12, 60
TARGET = 2.5
STEP = Gaussian(sensitivity=1, sigma=20_000)
POLICY = """\
dataset: shop
unit: customer
relation: add-or-remove
budget: {epsilon: 3, delta: 1e-6}
filter: gdp
flows:
  report: {epsilon: 2, delta: 5e-7}
"""


def ask(ledger: Ledger, policy: Policy) -> Request:
    """Make the request of one step; it is charged to two accounts."""
    return Request(
        reservation=uuid.uuid4().hex,
        owner=ledger.owners.mine(),
        policies=(policy,),
        cost=STEP,
        step="weekly_revenue",
        flow="report",
    )


def times(ledger: Ledger, policy: Policy) -> list[float]:
    """Return how long some reserves took, in seconds; each is settled."""
    found = []
    for _ in range(STEPS):
        asked = ask(ledger, policy)
        start = time.perf_counter()
        ledger.reserve(asked)
        found.append(time.perf_counter() - start)
        ledger.settle(asked.reservation)
    return found


def measure(folder: Path) -> tuple[float, float]:
    """Return the median microseconds of a reserve without and with the witness."""
    policy = parse_policy(POLICY)
    places = ("none", str(folder / "state"))
    ledgers = [
        create_ledger(f"sqlite:///{folder / name}.db", witness=place)
        for name, place in zip("ab", places, strict=True)
    ]
    found: list[list[float]] = [[], []]
    for _ in range(ROUNDS):
        for ledger, every in zip(ledgers, found, strict=True):
            every.extend(times(ledger, policy))
    for ledger in ledgers:
        ledger.close()
    plain, told = (1e6 * statistics.median(every) for every in found)
    return plain, told


def line(name: str, plain: float, told: float) -> None:
    """Print a line of the table."""
    print(f"{name:15}  {plain:8.0f}  {told:8.0f}  {told / plain:5.2f}")


def main() -> int:
    """Print the table; return 1 if the target was to be met and is not."""
    print("reserve             without      with  ratio   (microseconds, median)")
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        plain, told = measure(Path(folder))
    line("durable", plain, told)
    sync, witness.sync = witness.sync, lambda _: None
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        line("line not synced", *measure(Path(folder)))
    witness.sync = sync
    return int(told / plain > TARGET and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
