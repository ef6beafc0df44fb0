"""Ledgers in plain tables to try things on."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Any

from dpflow import PureDP
from dpflow.accounting.costs.base import Cost
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import create_ledger, open_ledger
from dpflow.ledger.requests import Granted, Request
from dpflow.policy import Policy
from tests.ledger.support import make_policy

BASIC = make_policy()


def request(
    ledger: Ledger,
    cost: Cost | str = "0.1",
    *,
    policy: Policy = BASIC,
    key: str | None = None,
    **fields: Any,
) -> Request:
    """Make a request of a step; a text stands for an epsilon."""
    values: dict[str, Any] = {
        "reservation": uuid.uuid4().hex,
        "owner": ledger.owners.mine(),
        "policies": (policy,),
        "cost": PureDP(epsilon=cost) if isinstance(cost, str) else cost,
        "step": "count",
        "release_key": None if key is None else ledger.digests.of(key),
        "key_text": key or "",
    }
    return Request(**{**values, **fields})


def granted(ledger: Ledger, cost: Cost | str = "0.1", **fields: Any) -> str:
    """Reserve and return the reservation's id; anything but a grant fails."""
    answer = ledger.reserve(request(ledger, cost, **fields))
    assert isinstance(answer, Granted)
    return answer.reservation


def charged(ledger: Ledger, cost: Cost | str = "0.1", **fields: Any) -> str:
    """Reserve and settle a step."""
    name = granted(ledger, cost, **fields)
    ledger.settle(name)
    return name


def url(path: Path) -> str:
    """Return the URL of a ledger file."""
    return f"sqlite:///{path}"


def make(path: Path, witness: str = "none") -> Ledger:
    """Make a ledger file."""
    return create_ledger(url(path), witness=witness)


def reopen(path: Path, witness: str = "none") -> Ledger:
    """Open a ledger file."""
    return open_ledger(url(path), witness=witness)


def copied(path: Path, to: Path) -> Path:
    """Copy a ledger file that nobody uses."""
    ledger = reopen(path)
    with ledger.database.transaction() as transaction:
        transaction.begin(lock=False)
    ledger.close()
    for end in ("", "-wal", "-shm"):
        file = path.with_name(f"{path.name}{end}")
        if file.exists():
            shutil.copy(file, to.with_name(f"{to.name}{end}"))
    return to
