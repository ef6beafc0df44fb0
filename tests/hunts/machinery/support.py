"""What the hunts share: seeds, figures, folders, audits and owners."""

from __future__ import annotations

import os
import random
import sqlite3
import tempfile
import uuid
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

from tests.ledger.auditor import Ask, Facts, audit
from tests.ledger.support import Place, read
from tests.sizes import SCALE

#: What each hunt counted, printed at the end of the run.
FIGURES: list[str] = []


def first_seed() -> int:
    """Return the first seed of a random hunt: DPFLOW_SEED, or a new one in campaigns.

    At each push it is the same, so that luck decides about no push.
    """
    new = random.randrange(10**9) if SCALE > 1 else 2
    return int(os.environ.get("DPFLOW_SEED", new))


def figure(hunt: str, **counts: object) -> None:
    """Note what a hunt did, for the end of the run and for a failure's output."""
    told = ", ".join(f"{name.replace('_', ' ')} {n}" for name, n in counts.items())
    line = f"{hunt}: {told}"
    print(line)
    FIGURES.append(line)


def memory_folder() -> Path:
    """Make a folder that no disk slows down, where there is one."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))


# The ledger's own tables


def asked(connection: Any) -> Ask:
    """Return what asks a connection's database in plain SQL."""
    return lambda sql: connection.execute(sql).fetchall()


def audited(place: Place, cap: Fraction | None = None) -> Facts:
    """Audit a ledger wherever it is."""
    if isinstance(place, str):
        return audit(lambda sql: read(place, sql), cap)
    with closing(sqlite3.connect(place)) as connection:
        return audit(asked(connection), cap)


# Owners without files


class SimulatedOwners:
    """Who lives in a simulation; a ledger asks it as it asks the real one."""

    living: set[str]

    def __init__(self, living: set[str]) -> None:
        self.living, self._name = living, uuid.uuid4().hex
        living.add(self._name)

    def mine(self) -> str:
        """Return the name of this owner."""
        return self._name

    def alive(self, owner: str) -> bool:
        """Say whether an owner lives."""
        return owner in self.living

    def close(self) -> None:
        """Die."""
        self.living.discard(self._name)
