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
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.model import End
from dpflow.ledger.records import Request
from dpflow.ledger.storage.base import Identity
from dpflow.ledger.storage.owners import Owners
from dpflow.ledger.storage.sqlite import SqliteStorage
from dpflow.policy import parse_policy

_BATCH = 20
_POLICY = """\
dataset: orders
unit: customer
relation: add-or-remove
budget: {epsilon: 10000}
filter: basic
odometer: {theorem: basic, delta: 0}
flows: {report: {epsilon: 10000, halt_at_epsilon: 10000}}
"""


def filled(path: Path, charges: int) -> Ledger:
    """Make a ledger file with so many settled charges under three gates."""
    identity = Identity(uuid.uuid4().hex, None, "")
    storage = SqliteStorage.create(path, identity, b"0" * 32)
    ledger = Ledger(storage, Owners(path.with_name("owners")))
    policy, owner = parse_policy(_POLICY), ledger.owners.mine()
    for start in range(0, charges, _BATCH):
        names = [uuid.uuid4().hex for _ in range(min(_BATCH, charges - start))]
        requests = [
            Request(
                reservation=name,
                owner=owner,
                policies=(policy,),
                cost=PureDP(epsilon="0.01"),
                step="count",
                flow="report",
                flow_run=uuid.uuid4().hex,
                release_key=uuid.uuid4().hex * 2,
                key_text="count/week",
            )
            for name in names
        ]
        ledger.reserve_many(requests)
        ends = [
            End(
                charge=name,
                kind="settle",
                owner=owner,
                body={"outcome": "completed", "digest": "0" * 64},
                **ledger.label(),
            )
            for name in names
        ]
        ledger.ask_all(ends)
    return ledger


def main() -> None:
    """Fill a ledger, verify it, and say how fast that was."""
    charges = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory() as folder:
        ledger = filled(Path(folder) / "ledger.db", charges)
        wall, start = time.perf_counter(), time.process_time()
        report = verify(ledger)
        used, wall = time.process_time() - start, time.perf_counter() - wall
        assert report.fine, report.bad[0]
        print(
            f"{report.entries:,} entries with {report.postings:,} postings: "
            f"{report.postings / used:,.0f} postings a second of processor time, "
            f"{report.postings / wall:,.0f} of wall time"
        )
        ledger.close()


if __name__ == "__main__":
    main()
