"""What the hunts share: sizes, seeds, figures, owners, and broken parts to catch."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.ledger.auditor import Ask, Facts, audit
from tests.ledger.columns import show_columns, show_columns_of_postgres
from tests.ledger.processes import Child
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


def shared_out(work: Callable[[range], dict[str, int]], items: range) -> Counter[str]:
    """Do some work in two processes, one for each core, and add up what they count."""
    cores = 2

    def child(part: range) -> Child:
        return Child(lambda say: say(json.dumps(work(part))))

    total: Counter[str] = Counter()
    for worker in [child(items[core::cores]) for core in range(cores)]:
        code, lines = worker.end()
        assert code == 0, "\n".join(lines)
        total.update(json.loads(lines[-1]))
    return total


# The ledger's own tables


def asked(connection: Any) -> Ask:
    """Return what asks a connection's database in plain SQL."""
    return lambda sql: connection.execute(sql).fetchall()


@contextmanager
def tables(url: str) -> Iterator[Ask]:
    """Ask the database of a ledger, over a connection that dpflow knows nothing of."""
    if url.startswith("sqlite:///"):
        place = url.removeprefix("sqlite:///")
        connection: Any = sqlite3.connect(place, isolation_level=None)
        show_columns(connection).execute("BEGIN")
    else:
        connection = psycopg.connect(
            url, options="-c search_path=dpflow", autocommit=True
        )
        show_columns_of_postgres(connection)
        connection.autocommit = False
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    try:
        yield asked(connection)
    finally:
        connection.close()


def audited(url: str, cap: Fraction | None = None) -> Facts:
    """Audit a ledger wherever it is."""
    with tables(url) as ask:
        return audit(ask, cap)


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


# Broken parts, for the controls


def replace_everywhere(
    patch: pytest.MonkeyPatch, name: str, make: Callable[[Any], Any]
) -> None:
    """Replace a function of dpflow.ledger wherever a module has it by that name."""
    found = 0
    for module, content in list(sys.modules.items()):
        if module.startswith("dpflow.ledger") and callable(getattr(content, name, 0)):
            patch.setattr(content, name, make(getattr(content, name)))
            found += 1
    assert found, f"dpflow.ledger has no {name} any more"
