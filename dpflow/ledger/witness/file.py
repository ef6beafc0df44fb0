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

from dpflow.exceptions import ConfigurationError, LedgerUnavailable
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
    """Which file was read, and up to where."""

    signature: Signature = (0, 0, 0, 0)
    offset: int = 0


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

    @property
    def _end(self) -> _End:
        end: _End | None = self._seen.end
        return end or _End()

    # Reading

    def exists(self) -> bool:
        """Say whether there is a file; raises if its folder cannot be searched."""
        try:
            return self._stat() is not None
        except OSError as error:
            raise self._unavailable(error, "read") from error

    def _unseen(self) -> Unseen:
        try:
            now = self._stat()
            if now is None:
                raise self._missing()
            if now == self._end.signature:
                return Unseen((), self._end)
            return self._read(now)
        except OSError as error:
            raise self._unavailable(error, "read") from error

    def _read(self, now: Signature) -> Unseen:
        """Read what is new; all of it if it is not the file that was read before."""
        if self._end.signature[2] >= now[2]:
            self._seen = Seen()
        with self.path.open("rb") as file:
            first = file.readline()
            header = self._header_of(first.decode("ascii", "replace").rstrip("\n"))
            if header != self._seen.header:
                self._seen = Seen(header=header)
            start = max(self._end.offset, len(first))
            file.seek(start)
            data = file.read()
        # Part of a line is a crash before its step could start.
        data = data[: data.rfind(b"\n") + 1]
        lines = data.decode("ascii", "replace").split("\n")[:-1]
        found = tuple(self._parsed(line) for line in lines)
        return Unseen(found, _End(now, start + len(data)))

    # Writing

    def _append(self, lines: Sequence[Line]) -> None:
        text = "".join(line.to_text(self.ledger) for line in lines).encode()

        def add(descriptor: int) -> None:
            end = cut_torn(descriptor)
            write(descriptor, text)
            sync(descriptor)
            self._note_own(descriptor, end, lines)

        self._locked(add)

    def _note_own(self, descriptor: int, end: int, lines: Sequence[Line]) -> None:
        """Remember own lines, which were just committed, unless others came before."""
        seen, now = self._seen, signature(os.fstat(descriptor))
        if self._end.offset == end and self._end.signature[:2] == now[:2]:
            # The end comes last: an interrupt makes lines be read again, not missed.
            seen.note(lines)
            seen.end = _End(now, now[2])

    def enrol(self, epoch: int, lines: Sequence[Line], *, anew: bool = False) -> None:
        """Begin the file; an old one is kept beside it."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            header = Header(ledger=self.ledger, epoch=epoch, whole=True)
            if self._stat() is None:
                self._rewrite(header, lines)
                return
            if not anew:
                msg = f"there is a witness at {self.path} already"
                raise ConfigurationError(msg)
        except OSError as error:
            raise self._unavailable(error, "write") from error

        def replace(_: int) -> None:
            self._keep_old()
            self._rewrite(header, lines)

        self._locked(replace)

    def compact(self) -> None:
        """Rewrite a large file with fewer lines; all were compared with the ledger."""
        if self._end.offset >= self._large:
            self._alone(lambda: self._locked(self._compact), "write")

    def _compact(self, _: int) -> None:
        if self._unseen().lines:
            return
        every = self._read_all()
        seen = self._seen
        newest = [*seen.newest.values(), *seen.accounts.values()]
        places = {(line.place, line.hash) for line in newest}
        older = {
            (line.place, line.kind, line.hash): line
            for line in every[:-KEPT]
            # No later line tells what was decided before it.
            if line.decides or (line.place, line.hash) in places
        }
        header = Header(ledger=self.ledger, epoch=self.epoch, whole=False)
        self._rewrite(header, [*older.values(), *every[-KEPT:]])
        fresh = self._unseen()
        self._accept(fresh)
        self._large = max(_LARGE, 2 * fresh.end.offset)

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
            raise self._unavailable(error, "write") from error
        ledger, _, told = text.partition("\n")
        if told != f"{source}\n":
            what = f"{path} does not say which ledger governs {source!r}"
            raise self._damaged(what)
        return ledger

    def _read_all(self) -> list[Line]:
        text = self.path.read_bytes().decode("ascii", "replace")
        return [self._parsed(line) for line in text.split("\n")[1:-1]]

    def _rewrite(self, header: Header, lines: Iterable[Line]) -> None:
        """Put a new file in the place of the old one, or the old one stays."""
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

    def _keep_old(self) -> None:
        number = 1
        while (kept := self.path.with_name(f"{self.path.name}.{number}")).exists():
            number += 1
        os.link(self.path, kept)

    def _locked(self, work: Callable[[int], T]) -> T:
        """Do some work with the file open for appending, and other writers away."""
        lock = FileLock(self.path, os.O_RDWR | os.O_APPEND)
        try:
            try:
                return lock.run(work, _LOCK_SECONDS)
            finally:
                lock.close()
        except FileNotFoundError:
            raise self._missing() from None
        except OSError as error:
            raise self._unavailable(error, "write") from error

    def _stat(self) -> Signature | None:
        try:
            return signature(self.path.stat())
        except FileNotFoundError:
            return None

    def _unavailable(self, error: OSError, verb: str) -> LedgerUnavailable:
        return self._unusable(error.strerror or str(error), verb)


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
