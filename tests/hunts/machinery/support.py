"""What the hunts share: seeds, figures, folders, audits and owners."""

from __future__ import annotations

import os
import random
import sqlite3
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

from dpflow.ledger.storage.tables import Transaction, make_tables

from dpflow.exceptions import LedgerCorrupt
from dpflow.ledger.tables.transaction import Identity
from tests.ledger.auditor import Ask, Facts, audit
from tests.ledger.columns import show_columns
from tests.ledger.faults import FaultyConnection
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
    text = ", ".join(f"{name.replace('_', ' ')} {n}" for name, n in counts.items())
    line = f"{hunt}: {text}"
    print(line)
    FIGURES.append(line)


def memory_folder() -> Path:
    """Make a folder that no disk slows down, where there is one."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))


# The ledger's own tables


def ask_by(connection: Any) -> Ask:
    """Return a function that runs plain SQL on a connection."""
    return lambda sql: connection.execute(sql).fetchall()


def audited(place: Place, cap: Fraction | None = None) -> Facts:
    """Audit a ledger wherever it is."""
    if isinstance(place, str):
        return audit(lambda sql: read(place, sql), cap)
    with closing(sqlite3.connect(place)) as connection:
        return audit(ask_by(connection), cap)


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


IDENTITY = Identity("0" * 32, None, "2026-11-22T00:00:00.000+00:00")
SECRET = bytes(32)
#: Hears a statement before or after it runs; what it raises, the statement raises.
Hook = Callable[[str], None]


class Crash(BaseException):
    """The process ends here; nothing catches it."""


def nothing(_: str) -> None:
    """Let a statement be."""


class Nth:
    """A hook that raises at the n-th call, or from there on."""

    def __init__(self, number: int, error: BaseException, *, once: bool) -> None:
        self.left, self.error, self.once = number, error, once

    def __call__(self, _: str) -> None:
        """Count, and raise when it is time."""
        self.left -= 1
        if self.left == -1 or (self.came and not self.once):
            raise self.error

    @property
    def came(self) -> bool:
        """Whether it raised."""
        return self.left < 0


@cache
def empty_ledger() -> bytes:
    """Return the content of a new ledger's file."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("BEGIN")
    make_tables(connection, IDENTITY, SECRET)
    connection.execute("COMMIT")
    content = connection.serialize()
    connection.close()
    return content


def tables_in_memory() -> sqlite3.Connection:
    """Make a new, empty ledger and return the connection that keeps it."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.deserialize(empty_ledger())
    return show_columns(connection)


class MemoryStorage:
    """A ledger in memory, with hooks around each of its statements.

    Several share one connection: they are workers, each with hooks of its own.
    """

    place, identity, unwritable, writer = "memory", IDENTITY, None, None

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.before: Hook = nothing
        self.after: Hook = nothing
        hooks: Any = self
        self.wire: Any = FaultyConnection(connection, hooks)

    @contextmanager
    def write(self) -> Iterator[Any]:
        """Run a block in one transaction."""
        try:
            self.wire.execute("BEGIN IMMEDIATE")
            yield Transaction(self.wire, self.place, IDENTITY)
            self.wire.execute("COMMIT")
        except sqlite3.Error as error:
            msg = f"the ledger in memory is damaged: {error}"
            raise LedgerCorrupt(msg) from error
        finally:
            self.roll_back()

    read = write

    def roll_back(self) -> None:
        """Leave the transaction, if there is one."""
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")

    def close(self) -> None:
        """Keep the content: other workers use it."""
