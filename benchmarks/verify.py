"""How fast a ledger is verified: postings a second, on charges under three gates.

Run it with `python -m benchmarks.verify [CHARGES]`.
"""

from __future__ import annotations

import uuid
from pathlib import Path

from dpflow import PureDP
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
