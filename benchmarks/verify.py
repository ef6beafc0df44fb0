"""How fast a ledger is verified: postings a second, on charges under three gates.

Run it with `python -m benchmarks.verify [CHARGES]`.
"""

from __future__ import annotations

import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from dpflow.ledger.entry import Entry, written
from dpflow.ledger.journal import after
from dpflow.ledger.state import State

from dpflow import PureDP
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.decisions.settlement import End
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.requests import Request
from dpflow.ledger.tables.owners import Owners
from dpflow.ledger.tables.sqlite_connection import SqliteStorage
from dpflow.ledger.tables.transaction import Identity
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
    """Make a ledger file with so many settled charges under three gates.

    The first is decided; what is written of the others is what was written of it.
    """
    identity = Identity(uuid.uuid4().hex, None, "")
    storage = SqliteStorage.create(path, identity, b"0" * 32)
    ledger = Ledger(storage, Owners(path.with_name("owners")))
    owner = ledger.owners.mine()
    request = Request(
        reservation=uuid.uuid4().hex,
        owner=owner,
        policies=(parse_policy(_POLICY),),
        cost=PureDP(epsilon="0.01"),
        step="count",
        flow="report",
        flow_run=uuid.uuid4().hex,
        release_key=uuid.uuid4().hex * 2,
        key_text="count/week",
    )
    ledger.reserve(request)
    told = {"outcome": "completed", "digest": "0" * 64}
    ledger.ask(End(charge=request.reservation, kind="settle", owner=owner, body=told))
    with storage.read() as reading:
        entries = [*reading.after()]
    _repeat(storage, entries, charges - 1)
    return ledger


def _repeat(storage: SqliteStorage, first: Sequence[Entry], times: int) -> None:
    """Write the last two entries again and again, each time for another charge."""
    state = State(whole=True)
    for entry in first:
        state.add(entry)
    for start in range(0, times, _BATCH):
        made: list[Entry] = []
        names = [uuid.uuid4().hex for _ in range(min(_BATCH, times - start))]
        for like, name in product(first[-2:], names):
            body, (number, previous) = dict(like.body), state.head
            if like.kind == "reserve":
                body |= {"flow_run": name, "key": name * 2}
            draft = like._replace(number=number + 1, charge=name, body=body)
            entry = written(previous, draft, after(state, draft))
            state.add(entry)
            made.append(entry)
        with storage.write() as transaction:
            transaction.append(made, {})


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
