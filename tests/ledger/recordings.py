"""Storages that tests make anew, and whether what they keep is the fold of it."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dpflow.ledger import entry
from dpflow.ledger.entry import Entry, canonical
from dpflow.ledger.journal import follow
from dpflow.ledger.state import State
from dpflow.ledger.storage.base import Identity
from dpflow.ledger.storage.memory import Memory
from dpflow.ledger.storage.postgres import PostgresStorage
from dpflow.ledger.storage.sqlite import SqliteStorage
from dpflow.ledger.storage.tables import Reading
from tests.postgres import server

IDENTITY = Identity("x", None, "t")


class InMemory(Memory):
    """The storage in memory."""

    def __init__(self) -> None:
        name = uuid.uuid4().hex
        Memory.create(name, IDENTITY, b"0")
        super().__init__(name)


class InSqlite(SqliteStorage):
    """The storage in a file."""

    def __init__(self) -> None:
        # Not on a disk: each history syncs some hundred times.
        memory = Path("/dev/shm")
        self.folder = TemporaryDirectory(dir=memory if memory.is_dir() else None)
        path = Path(self.folder.name) / "ledger.db"
        SqliteStorage.create(path, IDENTITY, b"0").close()
        super().__init__(path)


class InPostgres(PostgresStorage):
    """The storage on a server."""

    def __init__(self) -> None:
        url = server().new_database()
        PostgresStorage.create(url, IDENTITY, b"0").close()
        super().__init__(url)


def folded(entries: Iterable[Entry]) -> State:
    """Follow a journal from its first entry."""
    state = State(whole=True)
    for each in entries:
        follow(state, each)
    return state


def stored(reading: Reading) -> State:
    """Load every key that the tags name."""
    keys = [key for (key,) in reading.ask("names", first="", last="~")]
    state = reading.load(lambda _: keys)
    state.whole = True
    return state


def unlike(folded: State, stored: State) -> list[str]:
    """Return the keys that are not what the journal comes to, or not in its place."""
    return [
        key
        for key in sorted({*folded.rows, *stored.rows})
        if canonical(folded.rows.get(key)) != canonical(stored.rows.get(key))
        or folded.numbers.get(key) != stored.numbers.get(key)
    ]


def lawful(storage: Any) -> bool:
    """Say whether the newest value of each key is that of the fold of the journal."""
    entry._proved.clear()
    with storage.read() as reading:
        return unlike(folded(reading.after()), stored(reading)) == []
