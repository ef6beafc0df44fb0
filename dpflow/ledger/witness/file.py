"""The witness in a file, which remembers each charge outside the ledger.

Lines are only ever appended:

    NUMBER HASH [kind, charge, used, amounts, run, books, flow] CHECKSUM

A crash may leave part of a line at the end; the step behind it never started, so it is
ignored. Any other line that does not fit its checksum is damage, and fails closed.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from dpflow.durable import sync, sync_path, write
from dpflow.ledger.witness.lines import (
    Found,
    Header,
    Line,
    LogDamaged,
    NotBegun,
    compacted,
)
from dpflow.locks import FileLock

T = TypeVar("T")

#: Device, inode, size and time of change of a file.
Signature = tuple[int, int, int, int]

#: How long another process may write.
_LOCK_SECONDS = 30.0
#: Beyond this the file is rewritten with fewer lines.
_LARGE = 2**20
_BLOCK = 4096


class _End(NamedTuple):
    """Which file was read, and up to where.

    Attributes:
        signature: Of a file that was read whole; none if part of a line was left.
    """

    signature: Signature | None
    offset: int


class FileLog:
    """The log of one ledger in a file.

    Args:
        path: The file; `begin` makes it.
    """

    advice = "Restore that file"

    def __init__(self, path: Path) -> None:
        self.place = str(path)
        self.path = path
        self._large = _LARGE
        #: Open for appending, each for one thread at a time.
        self._files: list[FileLock] = []

    def read(self, _: str, header: str, end: _End | None) -> Found:
        """Return what is new; all of it if it is not the file that was read before."""
        try:
            now = signature(os.stat(self.place))  # noqa: PTH116 (before every charge)
            if end is not None and end.signature == now:
                return Found(header, (), end)
            file = self.path.open("rb")
        except FileNotFoundError:
            raise NotBegun from None
        with file:
            first = file.readline()
            text = first.decode("ascii", "replace").rstrip("\n")
            again = end is not None and text == header and end.offset <= now[2]
            start = end.offset if end is not None and again else len(first)
            file.seek(start)
            data = file.read()
        # Part of a line is a crash before its step could start.
        stop = start + data.rfind(b"\n") + 1
        lines = data[: stop - start].decode("ascii", "replace").split("\n")[:-1]
        return Found(text, lines, _End(now if now[2] == stop else None, stop))

    def append(
        self, ledger: str, lines: Sequence[str], end: _End | None
    ) -> _End | None:
        """Append lines; a file that grew large is rewritten with fewer."""
        data = "".join([f"{text}\n" for text in lines]).encode()

        def add(descriptor: int) -> _End | None:
            before = signature(os.fstat(descriptor))
            known = end is not None and end.signature == before
            if not known:
                cut_torn(descriptor)
            write(descriptor, data)
            sync(descriptor)
            if not known:
                return None
            after = signature(os.fstat(descriptor))
            if after[2] >= self._large:
                # All was compared with the ledger. Should this fail, it is as before.
                with suppress(OSError):
                    self._compact(ledger)
            return _End(after, after[2])

        try:
            return self._locked(add)
        except FileNotFoundError:
            raise NotBegun from None

    def begin(self, _: str, __: int, header: str, lines: Sequence[str]) -> bool:
        """Begin the file; an old one is kept beside it."""
        texts = [header, *lines]

        def replace(_: int) -> None:
            number = 1
            while (kept := self.path.with_name(f"{self.path.name}.{number}")).exists():
                number += 1
            os.link(self.path, kept)
            self._rewrite(texts)

        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.path.exists():
            self._locked(replace)
        else:
            self._rewrite(texts)
        return True

    def claim(self, source: str, ledger: str) -> str:
        """Return the first ledger that claimed a source, by a file made once."""
        named = hashlib.sha256(source.encode()).hexdigest()
        path = self.path.parent / "sources" / named
        fresh = path.with_name(f"{named}.{uuid.uuid4().hex}.new")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            fresh.write_text(f"{ledger}\n{source}\n", "utf-8")
            sync_path(fresh)
            # A name for a whole file, or none: the first to ask has it.
            with suppress(FileExistsError):
                os.link(fresh, path)
            sync_path(path.parent)
        finally:
            fresh.unlink(missing_ok=True)
        text = path.read_text("utf-8", "replace")
        first, _, told = text.partition("\n")
        if told != f"{source}\n":
            what = f"{path} does not say which ledger governs {source!r}"
            raise LogDamaged(what)
        return first

    def _compact(self, ledger: str) -> None:
        """Rewrite the file with fewer lines.

        Who reads it next compares what was kept once more.
        """
        text, *texts = self.path.read_text("ascii", "replace").split("\n")[:-1]
        header = Header.from_text(text)
        every = [Line.from_text(each, ledger) for each in texts]
        if header is None or None in every:
            # Whoever reads it next says so.
            return
        lines = compacted([line for line in every if line is not None])
        fresh = Header(ledger=ledger, epoch=header.epoch, whole=False)
        kept = [line.to_text(ledger)[:-1] for line in lines]
        self._large = max(_LARGE, 2 * self._rewrite([fresh.to_text()[:-1], *kept]))

    def _rewrite(self, texts: Iterable[str]) -> int:
        """Put a new file in the place of the old one, or the old one stays.

        Returns:
            Its size.
        """
        data = "".join(f"{text}\n" for text in texts).encode()
        fresh = self.path.with_name(f"{self.path.name}.{os.getpid()}.new")
        descriptor = os.open(fresh, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
        try:
            write(descriptor, data)
            sync(descriptor)
        finally:
            os.close(descriptor)
        fresh.replace(self.path)
        sync_path(self.path.parent)
        return len(data)

    def _locked(self, work: Callable[[int], T]) -> T:
        """Do some work with the file open for appending, and other writers away.

        Threads keep each other away as processes do: each has the file open for itself.
        """
        try:
            lock = self._files.pop()
        except IndexError:
            lock = FileLock(self.path, os.O_RDWR | os.O_APPEND)
        found = lock.run(work, _LOCK_SECONDS)
        self._files.append(lock)
        return found


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
