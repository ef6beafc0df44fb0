"""A file system that remembers what a power cut may take away.

SQLite writes through it as usual. Every write, truncation, sync and deletion is noted;
from the notes come the images that a machine might find after the power returns: what
was synced is there, of the rest any part may be, in any order, torn at sectors.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import apsw

from dpflow.ledger.tables.database import Database
from dpflow.ledger.tables.errors import unusable
from dpflow.ledger.tables.owners import Liveness
from dpflow.ledger.tables.sqlite import SqliteTransaction
from dpflow.ledger.tables.sqlite_files import sync_log
from tests.faults.support import empty_ledger

SECTOR = 512

#: What happened to a file: (name, what, offset or size, data).
Note = tuple[str, str, int, bytes]


class NotingFile(apsw.VFSFile):
    """A file whose changes are noted; a fault may stop them."""

    def __init__(self, vfs: NotingVFS, name: Any, flags: list[int]) -> None:
        super().__init__(vfs.base_name, name, flags)
        self._vfs = vfs
        full = name if isinstance(name, str) else name.filename()
        self._file = Path(full).name

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        """Write and note."""
        self._vfs.fault("write")
        super().xWrite(data, offset)
        self._vfs.note(self._file, "write", offset, bytes(data))

    def xTruncate(self, size: int) -> None:  # noqa: N802
        """Truncate and note."""
        self._vfs.fault("truncate")
        super().xTruncate(size)
        self._vfs.note(self._file, "truncate", size)

    def xSync(self, flags: int) -> None:  # noqa: N802, ARG002
        """Sync and note; the host need not, for its power stays on."""
        self._vfs.sync(self._file)


class NotingVFS(apsw.VFS):
    """The system's files, with notes."""

    base_name = "unix"

    def __init__(self, name: str) -> None:
        super().__init__(name, self.base_name)
        self.name = name
        self.notes: list[Note] = []
        #: Raises at what it wants to fail.
        self.fault: Any = lambda _: None

    def xOpen(self, name: Any, flags: list[int]) -> NotingFile:  # noqa: N802
        """Open a file whose changes are noted."""
        return NotingFile(self, name, flags)

    def xDelete(self, path: str, sync: bool) -> None:  # noqa: N802
        """Delete; without a sync of the folder the file may come back."""
        super().xDelete(path, sync)
        self.note(Path(path).name, "delete" if sync else "unlink")

    def sync(self, file: str) -> None:
        """Note a sync, or that it failed."""
        try:
            self.fault("sync")
        except apsw.Error:
            self.note(file, "lost")
            raise
        self.note(file, "sync")

    def note(self, file: str, what: str, number: int = 0, data: bytes = b"") -> None:
        """Note what happened."""
        self.notes.append((file, what, number, data))


class Disk:
    """What is on the disk for sure, and what may be."""

    def __init__(self) -> None:
        self.safe: dict[str, bytes] = {}
        self.loose: dict[str, list[Note]] = {}

    def follow(self, note: Note) -> None:
        """Take note of one more thing that happened."""
        file, what = note[:2]
        if what == "sync":
            if file not in self.safe:
                # SQLite syncs the folder of a new file, with all deletions in it.
                self._sync_folder()
            content = bytearray(self.safe.get(file, b""))
            for each in self.loose.pop(file, []):
                content = apply(content, each) or bytearray()
            self.safe[file] = bytes(content)
        elif what == "lost":
            # The system takes the pages for clean: no later sync writes them.
            self.loose.pop(file, None)
        elif what == "delete":
            self.safe.pop(file, None)
            self.loose.pop(file, None)
        else:
            self.loose.setdefault(file, []).append(note)

    def _sync_folder(self) -> None:
        for file, notes in self.loose.items():
            kinds = [what for _, what, *_ in notes]
            if "unlink" in kinds:
                last = len(kinds) - kinds[::-1].index("unlink")
                self.loose[file] = notes[last:]
                self.safe.pop(file, None)

    def image(self, chance: Random) -> dict[str, bytes]:
        """Return the files that a machine might find if the power failed now."""
        result: dict[str, bytes] = {}
        for file in sorted({*self.safe, *self.loose}):
            content: bytearray | None = None
            if file in self.safe:
                content = bytearray(self.safe[file])
            # All of it, none of it, or some.
            kept = chance.choice((0.0, 0.5, 0.9, 1.0))
            for note in self.loose.get(file, []):
                if chance.random() < kept:
                    content = apply(content or bytearray(), torn(note, chance, kept))
                elif note[1] == "unlink":
                    # The old file came back; what was written since went elsewhere.
                    break
            if content is not None:
                result[file] = bytes(content)
        return result


def apply(content: bytearray, note: Note) -> bytearray | None:
    """Change a file as noted."""
    _, what, number, data = note
    if what == "unlink":
        return None
    if what == "truncate":
        return content[:number]
    if len(content) < number:
        content.extend(bytes(number - len(content)))
    content[number : number + len(data)] = data
    return content


def torn(note: Note, chance: Random, kept: float) -> Note:
    """Perhaps keep only some sectors' worth of a write's beginning."""
    file, what, number, data = note
    if what != "write" or kept == 1 or chance.random() < 0.7:
        return note
    return file, what, number, data[: chance.randrange(0, len(data) + 1, SECTOR)]


class ApswDatabase(Database):
    """A ledger file through APSW, with the SQL of dpflow and chosen settings.

    Args:
        path: A ledger file that exists.
        vfs: How it is written.
        anew: Whether a new connection syncs the log anew, as dpflow's do.
        settings: `journal`, SQLite's journal mode; `synchronous`, how often it syncs;
            `pages`, after how many pages of WAL it checkpoints.
    """

    _errors = (apsw.Error,)

    def __init__(
        self, path: Path, vfs: NotingVFS, *, anew: bool = True, **settings: Any
    ) -> None:
        super().__init__(str(path), read_only=False)
        self._anew, self.path, self.vfs = anew, path, vfs
        journal = settings.get("journal", "WAL")
        self._pragmas = {
            # A file system in Python has no shared memory, which a WAL needs else.
            "locking_mode": "EXCLUSIVE" if journal == "WAL" else "NORMAL",
            "journal_mode": journal,
            "synchronous": settings.get("synchronous", "FULL"),
            "wal_autocheckpoint": settings.get("pages", 30),
        }
        self._connection: apsw.Connection | None = None

    @contextmanager
    def transaction(self) -> Iterator[SqliteTransaction]:
        """Run a block in one immediate transaction."""
        with self._alone():
            try:
                connection = self._open()
                connection.execute("BEGIN IMMEDIATE")
                # It answers as the standard library's connection does.
                driver: Any = connection
                yield SqliteTransaction(self, driver)
                connection.execute("COMMIT")
            except BaseException:
                self.close()
                raise

    snapshot = transaction

    def owners(self) -> Liveness:
        """Return an owner of charges."""
        return Liveness()

    def _translate_error(self, error: Exception, _: float) -> Exception:
        return unusable(str(error), self.address)

    def _open(self) -> apsw.Connection:
        if self._connection is None:
            if self._anew:
                self._sync_log()
            flags = apsw.SQLITE_OPEN_READWRITE
            # Known before it is used, so that whatever happens now closes it.
            connection = apsw.Connection(str(self.path), flags, self.vfs.name)
            self._connection = connection
            for name, value in self._pragmas.items():
                connection.pragma(name, value)
        return self._connection

    def _sync_log(self) -> None:
        """Do as `sync_log` does, and note it."""
        log = self.path.with_name(f"{self.path.name}-wal")
        if log.exists() and log.stat().st_size:
            sync_log(self.path)
            self.vfs.note(log.name, "write", 0, log.read_bytes())
            self.vfs.sync(log.name)

    def close(self) -> None:
        """Close the file, which may checkpoint; a later call opens it again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            # Closing checkpoints, and the disk may still fail.
            with suppress(apsw.Error):
                connection.close()


@contextmanager
def noted_database(folder: Path, **settings: Any) -> Iterator[ApswDatabase]:
    """Give an empty ledger, alone in a folder, whose writes are noted."""
    for old in folder.iterdir():
        old.unlink()
    path = folder / "ledger.db"
    path.write_bytes(empty_ledger())
    vfs = NotingVFS(f"noting-{uuid.uuid4().hex}")
    database = ApswDatabase(path, vfs, **settings)
    yield database
    vfs.fault = lambda _: None
    database.close()
    vfs.unregister()
