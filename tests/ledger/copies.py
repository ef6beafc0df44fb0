"""Copies of ledger files, and what is put in their place."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from dpflow.accounting.costs.base import Cost
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import create_ledger, open_ledger
from tests.ledger.support import granted, url


def charged(ledger: Ledger, cost: Cost | str = "0.1", **fields: Any) -> str:
    """Reserve and settle a step."""
    name = granted(ledger, cost, **fields)
    ledger.settle(name)
    return name


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


def put_back(path: Path, copy: Path) -> None:
    """Put a copy in the place of a ledger, without what belonged to the old file."""
    shutil.copy(copy, path)
    for end in ("-wal", "-shm"):
        path.with_name(f"{path.name}{end}").unlink(missing_ok=True)
