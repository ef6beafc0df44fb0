"""A witness in a file. Lines are only ever appended.

A crash may leave part of a line at the end; the step behind it never started, so it is
ignored. Any other line that does not fit its checksum is damage, and fails closed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple

from dpflow.durable import sync, sync_path, write
from dpflow.ledger.entry import canonical
from dpflow.ledger.witness.base import Stored, Witness
from dpflow.ledger.witness.lines import compacted
from dpflow.locks import LOCK_SECONDS as _LOCK_SECONDS
from dpflow.locks import FileLock

#: Device, inode, size and time of change of a file.
Signature = tuple[int, int, int, int]

#: Bytes beyond which the file is rewritten with fewer lines.
_LARGE = 2**20


class _End(NamedTuple):
    """Which file was read, and up to where.

    Attributes:
        signature: Of a file that was read whole; None where part of a line was left.
    """

    signature: Signature | None
    offset: int


class FileWitness(Witness):
    """The witness of one ledger in a file.

    Args:
        path: The file; `begin` makes it.
        ledger: Id of the ledger.
    """

    def __init__(self, path: Path, ledger: str) -> None:
        super().__init__(str(path), ledger)
        self.path = path
        self._large = _LARGE

    def read(self, header: str | None, end: _End | None) -> Stored:
        """Return new lines; all of them if it is not the file that was read before."""
        now = signature(os.stat(self.place))  # noqa: PTH116 (before every charge)
        if header is not None and end is not None and end.signature == now:
            return header, (), end
        with self.path.open("rb") as file:
            first = file.readline()
            text = first.decode("ascii", "replace").rstrip("\n")
            start = len(first)
            if end is not None and text == header and end.offset <= now[2]:
                start = end.offset
            file.seek(start)
            data = file.read()
        # Part of a line is a crash before its step could start.
        whole = data[: data.rfind(b"\n") + 1]
        stop = start + len(whole)
        lines = whole.decode("ascii", "replace").splitlines()
        return text, lines, _End(now if now[2] == stop else None, stop)

    def write(self, texts: Sequence[str], end: _End | None) -> _End | None:
        """Append lines; a file that grew large is rewritten with fewer."""
        data = _joined(texts)

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
                # All was compared with the ledger. After an error it is as before, and
                # damage is for the next reader.
                with suppress(OSError, ValueError):
                    self._compact()
            return _End(after, after[2])

        return self._lock().run(add, _LOCK_SECONDS)

    def begin(self, texts: Sequence[str]) -> bool:
        """Begin the file; an old one stays next to it."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        asides = (self.path.with_name(f"{self.path.name}.{n}") for n in count(1))

        def replace(_: int) -> None:
            os.link(self.path, next(path for path in asides if not path.exists()))
            self._rewrite(texts)

        if self.path.exists():
            # A writer that compacts the old one would put it in the new one's place.
            self._lock().run(replace, _LOCK_SECONDS)
        else:
            self._rewrite(texts)
        return True

    def first_claim(self, source: str) -> str:
        """Return the first ledger that claimed a source, by a line of a shared file."""
        path = self.path.with_name("sources")
        mine = f"{canonical([source, self.ledger])}\n".encode()

        def claim(descriptor: int) -> str:
            cut_torn(descriptor)
            size = os.fstat(descriptor).st_size
            for line in os.pread(descriptor, size, 0).splitlines():
                name, ledger = json.loads(line)
                if name == source:
                    return str(ledger)
            write(descriptor, mine)
            sync(descriptor)
            sync_path(path.parent)
            return self.ledger

        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return FileLock(path, os.O_RDWR | os.O_APPEND | os.O_CREAT).run(
            claim, _LOCK_SECONDS
        )

    def _lock(self) -> FileLock:
        """Return a lock for one turn.

        A signal's handler that writes within a turn, in the same thread, must not have
        that turn's lock and give it up.
        """
        return FileLock(self.path, os.O_RDWR | os.O_APPEND)

    def _compact(self) -> None:
        """Rewrite the file with fewer lines, which the next reader compares again."""
        texts = self.path.read_text("ascii").splitlines()
        self._large = max(_LARGE, 2 * self._rewrite(compacted(texts, self.ledger)))

    def _rewrite(self, texts: Iterable[str]) -> int:
        """Put a new file in the place of the old one, or the old one stays.

        Returns:
            Its size.
        """
        data = _joined(texts)
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


def _joined(texts: Iterable[str]) -> bytes:
    return "".join(f"{text}\n" for text in texts).encode()


def signature(status: os.stat_result) -> Signature:
    """Tell one content of a file from another."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def cut_torn(descriptor: int) -> None:
    """Cut part of a line off the end."""
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        os.ftruncate(descriptor, os.pread(descriptor, size, 0).rfind(b"\n") + 1)
