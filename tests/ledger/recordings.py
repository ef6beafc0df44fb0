"""Storages that remember what was written, and the fold of it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dpflow.ledger import journal
from dpflow.ledger.entry import Entry, canonical, columns_of, entry_of
from dpflow.ledger.records import digest
from dpflow.ledger.rows import Key, Row
from dpflow.ledger.storage import row_texts
from dpflow.ledger.storage.base import Identity
from dpflow.ledger.storage.memory import Memory
from dpflow.ledger.storage.postgres import PostgresStorage
from dpflow.ledger.storage.sqlite import SqliteStorage
from tests.ledger.journals import all_rows, folded
from tests.postgres import server


class Recording:
    """A storage that remembers in which order entries of all books were written."""

    written: list[Entry]
    read: Any

    def stored(self) -> dict[Key, Row]:
        """Return every row that is stored, as another process would read it."""
        with self.read() as reading:
            known = all_rows(reading)
            row_texts._rows.clear()
            row_texts._entries.clear()
            found = all_rows(reading)
        assert found == known, "a row was remembered otherwise than it is read"
        return found


class Noting:
    """A transaction that notes the entries that it stores."""

    def __init__(self, within: Any, written: list[Entry]) -> None:
        self.within, self.written = within, written

    def __getattr__(self, name: str) -> Any:
        return getattr(self.within, name)

    def store(self, changes: Any, entries: Any, values: Any) -> None:
        """Remember what was written."""
        self.written += entries
        self.within.store(changes, entries, values)


class InMemory(Recording, Memory):
    """The storage in memory."""

    def __init__(self) -> None:
        name = uuid.uuid4().hex
        Memory.create(name, Identity("x", None, "t"), b"0")
        Memory.__init__(self, name)
        self.written = []

    @contextmanager
    def write(self) -> Iterator[Any]:
        """Remember what is written."""
        with super().write() as within:
            yield Noting(within, self.written)


class InSqlite(Recording, SqliteStorage):
    """The storage in a file."""

    def __init__(self) -> None:
        # Not on a disk: each history syncs some hundred times.
        memory = Path("/dev/shm")
        folder = memory if memory.is_dir() else None
        self.folder = TemporaryDirectory(dir=folder)
        path = Path(self.folder.name) / "ledger.db"
        SqliteStorage.create(path, Identity("x", None, "t"), b"0").close()
        SqliteStorage.__init__(self, path)
        self.written = []

    @contextmanager
    def write(self) -> Iterator[Any]:
        """Remember what is written."""
        with super().write() as within:
            yield Noting(within, self.written)


class InPostgres(Recording, PostgresStorage):
    """The storage on a server."""

    def __init__(self) -> None:
        url = server().new_database()
        PostgresStorage.create(url, Identity("x", None, "t"), b"0").close()
        PostgresStorage.__init__(self, url)
        self.written = []

    @contextmanager
    def write(self) -> Iterator[Any]:
        """Remember what is written."""
        with super().write() as within:
            yield Noting(within, self.written)


def folded_anew(storage: Recording) -> dict[Key, Row]:
    """Read the whole journal from its text, hashes checked, and fold it."""
    rows: dict[Key, Row] = {}
    heads: dict[str, str] = {}
    for written in storage.written:
        previous = heads.get(written.book, "")
        entry = entry_of(previous, columns_of(written), written.hash)
        heads[entry.book] = entry.hash
        for key, row in journal.follow(rows, entry).items():
            if row is None:
                del rows[key]
            else:
                rows[key] = row
    return rows


def folded_apart(storage: Recording) -> dict[Key, Row]:
    """Fold the books' journals, of which nothing says how they were interleaved."""
    books: dict[str, list[Entry]] = {}
    for entry in sorted(storage.written, key=lambda entry: digest(entry.book)):
        books.setdefault(entry.book, []).append(entry)
    return folded(books)


def lawful(storage: Recording) -> bool:
    """Say whether the rows are the fold of the journal."""
    return plain(folded_anew(storage)) == plain(storage.stored())


def plain(rows: Any) -> Any:
    """Return rows as canonical text: what a database would keep."""
    return {key: canonical(row) for key, row in rows.items()}
