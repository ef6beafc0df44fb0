"""How fast a ledger is verified: postings a second, on charges under three gates.

Run it with `python -m benchmarks.verify [CHARGES]`.
"""

from __future__ import annotations

import sys
import tempfile
import time
import uuid
from pathlib import Path

from dpflow import PureDP
from dpflow.config import NO_WITNESS
from dpflow.ledger import Ledger, create_ledger
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.requests import Request
from dpflow.policy import parse_policy

_POLICY = parse_policy("""\
dataset: orders
unit: customer
relation: add-or-remove
budget: {epsilon: 10000}
filter: basic
odometer: {theorem: basic, delta: 0}
flows: {report: {epsilon: 10000, halt_at_epsilon: 10000}}
""")
_COST = PureDP(epsilon="0.01")


def filled(path: Path, charges: int) -> Ledger:
    """Make a ledger file with so many settled charges under three gates."""
    ledger = create_ledger(f"sqlite:///{path}", witness=NO_WITNESS)
    for number in range(charges):
        request = Request(
            reservation=uuid.uuid4().hex,
            owner=ledger.owners.mine(),
            policies=(_POLICY,),
            cost=_COST,
            step="count",
            flow="report",
            flow_run=uuid.uuid4().hex,
            release_key=ledger.digests.of(number),
            key_text=f"count/{number}",
        )
        ledger.reserve(request)
        ledger.settle(request.reservation, value="1.5")
    return ledger


def main() -> None:
    """Fill a ledger, verify it, and say how fast that was."""
    charges = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    with tempfile.TemporaryDirectory() as folder:
        ledger = filled(Path(folder) / "ledger.db", charges)
        wall, start = time.perf_counter(), time.process_time()
        report = verify(ledger)
        used, wall = time.process_time() - start, time.perf_counter() - wall
        assert report.fine, report.bad[0]
        size = (Path(folder) / "ledger.db").stat().st_size
        print(
            f"{report.entries:,} entries with {report.postings:,} postings: "
            f"{report.postings / used:,.0f} postings a second of processor time, "
            f"{report.postings / wall:,.0f} of wall time; "
            f"{size / charges:,.0f} bytes a charge"
        )
        ledger.close()


if __name__ == "__main__":
    main()
