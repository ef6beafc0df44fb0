"""The witness in a file, which remembers each charge outside the ledger.

Lines are only ever appended:

    [book, number, hash, kind, charge, used, amounts, run] checksum

A crash may leave part of a line at the end; the step behind it never started, so it is
ignored. Any other line that does not fit its checksum is damage, and fails closed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from dpflow.exceptions import LedgerError
from dpflow.ledger.witness.base import Seen, Unseen, WitnessBase
from dpflow.ledger.witness.lines import Header, Line
from dpflow.locks import FileLock

T = TypeVar("T")

#: Device, inode, size and time of change of a file.
Signature = tuple[int, int, int, int]

#: How long another process may write.
_LOCK_SECONDS = 30.0
#: Beyond this the file is rewritten with fewer lines.
_LARGE = 2**20
#: How many lines a rewritten file keeps, besides the newest of each book and account.
KEPT = 1000
_BLOCK = 4096


class _End(NamedTuple):
    """Which file was read, and up to where.

    Attributes:
        signature: Of a file that was read whole; none if part of a line was left.
    """

    signature: Signature | None
    offset: int


class FileWitness(WitnessBase):
    """The witness file of one ledger.

    Args:
        path: The file; `enrol` makes it.
        ledger: Id of the ledger.
    """

    advice = "Restore that file"

    def __init__(self, path: Path, ledger: str) -> None:
        super().__init__(str(path), ledger)
        self.path = path
        self._large = _LARGE
        #: Open for appending, each for one thread at a time.
        self._files: list[FileLock] = []

    # Reading

    def exists(self) -> bool:
        """Say whether there is a file; raises if its folder cannot be searched."""
        try:
            return self._stat() is not None
        except OSError as error:
            raise self._unusable(error, "read") from error

    def unseen(self) -> Unseen:
        """Read what is new; all of it if it is not the file that was read before."""
        seen = self.seen
        try:
            now = signature(os.stat(self.place))  # noqa: PTH116 (before every charge)
            if seen.end is not None and seen.end.signature == now:
                return Unseen(seen, (), seen.end)
            return self._read(seen, now)
        except FileNotFoundError:
            raise self._missing() from None
        except OSError as error:
            raise self._unusable(error, "read") from error

    def _read(self, seen: Seen, now: Signature) -> Unseen:
        with self.path.open("rb") as file:
            first = file.readline()
            header = self._header_of(first.decode("ascii", "replace").rstrip("\n"))
            if header != seen.header or seen.end.offset > now[2]:
                seen = self.seen = Seen(header, _End(None, len(first)))
            start = seen.end.offset
            file.seek(start)
            data = file.read()
        # Part of a line is a crash before its step could start.
        end = start + data.rfind(b"\n") + 1
        lines = data[: end - start].decode("ascii", "replace").split("\n")[:-1]
        found = tuple(self._parsed(line) for line in lines)
        return Unseen(seen, found, _End(now if now[2] == end else None, end))

    # Writing

    def append(self, lines: Sequence[Line]) -> None:
        """Append lines, durably; a file that grew large is rewritten with fewer."""
        text = "".join([line.to_text(self.ledger) for line in lines]).encode()
        seen = self.seen

        def add(descriptor: int) -> None:
            before = signature(os.fstat(descriptor))
            # Own lines were just committed: unless others came before, all is known.
            known = seen.end is not None and seen.end.signature == before
            if not known:
                cut_torn(descriptor)
            write(descriptor, text)
            sync(descriptor)
            if known:
                after = signature(os.fstat(descriptor))
                seen.note(lines, _End(after, after[2]))

        self._locked(add)
        if seen.end is not None and seen.end.offset >= self._large:
            # It was told: should this fail, the next look says so.
            with suppress(LedgerError):
                self.compact()

    def enrol(self, epoch: int, lines: Sequence[Line], *, anew: bool = False) -> None:
        """Begin the file; an old one is kept beside it."""
        header = Header(ledger=self.ledger, epoch=epoch, whole=True)
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._stat() is None:
                self._rewrite(header, lines)
                return
        except OSError as error:
            raise self._unusable(error, "write") from error
        if not anew:
            raise self._begun()

        def replace(_: int) -> None:
            self._keep_old()
            self._rewrite(header, lines)

        self._locked(replace)

    def compact(self) -> None:
        """Rewrite the file with fewer lines, if all were compared with the ledger."""
        self._locked(self._compact)

    def _compact(self, _: int) -> None:
        if self.unseen().lines:
            return
        every = self._read_all()
        newest = [*self.seen.newest.values(), *self.seen.accounts.values()]
        places = {(line.place, line.hash) for line in newest}
        older = {
            (line.place, line.kind, line.hash): line
            for line in every[:-KEPT]
            # No later line tells what was decided before it.
            if line.decides or (line.place, line.hash) in places
        }
        kept = [*older.values(), *every[-KEPT:]]
        header = Header(ledger=self.ledger, epoch=self.epoch, whole=False)
        end, seen = self._rewrite(header, kept), Seen(header)
        # Others may have told of more by now, which is read after this end.
        seen.note(kept, _End(None, end))
        self.seen, self._large = seen, max(_LARGE, 2 * end)

    def claim(self, source: str) -> str:
        """Say which ledger governs a data source, by a file that is made once."""
        named = hashlib.sha256(source.encode()).hexdigest()
        path = self.path.parent / "sources" / named
        fresh = path.with_name(f"{named}.{uuid.uuid4().hex}.new")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                fresh.write_text(f"{self.ledger}\n{source}\n", "utf-8")
                descriptor = os.open(fresh, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    sync(descriptor)
                finally:
                    os.close(descriptor)
                # A name for a whole file, or none: the first to ask has it.
                with suppress(FileExistsError):
                    os.link(fresh, path)
                sync_folder(path.parent)
            finally:
                fresh.unlink(missing_ok=True)
            text = path.read_text("utf-8", "replace")
        except OSError as error:
            raise self._unusable(error, "write") from error
        ledger, _, told = text.partition("\n")
        if told != f"{source}\n":
            what = f"{path} does not say which ledger governs {source!r}"
            raise self._damaged(what)
        return ledger

    def _read_all(self) -> list[Line]:
        text = self.path.read_bytes().decode("ascii", "replace")
        return [self._parsed(line) for line in text.split("\n")[1:-1]]

    def _rewrite(self, header: Header, lines: Iterable[Line]) -> int:
        """Put a new file in the place of the old one, or the old one stays.

        Returns:
            Its size.
        """
        text = header.to_text() + "".join(line.to_text(self.ledger) for line in lines)
        fresh = self.path.with_name(f"{self.path.name}.{os.getpid()}.new")
        descriptor = os.open(fresh, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
        try:
            write(descriptor, text.encode())
            sync(descriptor)
        finally:
            os.close(descriptor)
        fresh.replace(self.path)
        sync_folder(self.path.parent)
        return len(text)

    def _keep_old(self) -> None:
        number = 1
        while (kept := self.path.with_name(f"{self.path.name}.{number}")).exists():
            number += 1
        os.link(self.path, kept)

    def _locked(self, work: Callable[[int], T]) -> T:
        """Do some work with the file open for appending, and other writers away.

        Threads keep each other away as processes do: each has the file open for itself.
        """
        try:
            lock = self._files.pop()
        except IndexError:
            lock = FileLock(self.path, os.O_RDWR | os.O_APPEND)
        try:
            found = lock.run(work, _LOCK_SECONDS)
        except FileNotFoundError:
            raise self._missing() from None
        except OSError as error:
            raise self._unusable(error, "write") from error
        self._files.append(lock)
        return found

    def _stat(self) -> Signature | None:
        try:
            return signature(self.path.stat())
        except FileNotFoundError:
            return None


def signature(status: os.stat_result) -> Signature:
    """Tell one content of a file from another."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def cut_torn(descriptor: int) -> int:
    """Cut part of a line off the end; return where the file ends then."""
    end = size = os.fstat(descriptor).st_size
    while end:
        start = max(end - _BLOCK, 0)
        at = os.pread(descriptor, end - start, start).rfind(b"\n")
        if at >= 0:
            end = start + at + 1
            break
        end = start
    if end != size:
        os.ftruncate(descriptor, end)
    return end


def write(descriptor: int, data: bytes) -> None:
    """Write all of it."""
    while data:
        data = data[os.write(descriptor, data) :]


def sync(descriptor: int) -> None:
    """Make what was written durable."""
    if hasattr(fcntl, "F_FULLFSYNC"):
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    elif hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Make names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
