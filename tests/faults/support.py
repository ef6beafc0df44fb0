"""What tests of faults share: seeds, figures, folders and hooks."""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import cache

from dpflow.ledger.tables.sqlite import make_tables
from dpflow.ledger.tables.transaction import Identity
from tests.sizes import SCALE

#: What each search counted, printed at the end of the run.
FIGURES: list[str] = []
IDENTITY = Identity("0" * 32, None, "2026-11-22T00:00:00.000+00:00")
SECRET = bytes(32)
#: Hears a statement before or after it runs; what it raises, the statement raises.
Hook = Callable[[str], None]


def first_seed() -> int:
    """Return the first seed of a random search: DPFLOW_SEED, or a new one in campaigns.

    At each push it is the same, so that luck decides about no push.
    """
    new = random.randrange(10**9) if SCALE > 1 else 2
    return int(os.environ.get("DPFLOW_SEED", new))


def figure(search: str, **counts: object) -> None:
    """Note what a search did, for the end of the run and for a failure's output."""
    text = ", ".join(f"{name.replace('_', ' ')} {n}" for name, n in counts.items())
    line = f"{search}: {text}"
    print(line)
    FIGURES.append(line)


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
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        make_tables(connection, IDENTITY, SECRET, 1)
        return connection.serialize()
