"""A witness in a file. Lines are only ever appended.

A crash may leave part of a line at the end; the step behind it never started, so it is
ignored. Any other line that does not fit its checksum is damage, and fails closed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path

from dpflow.durable import make_private_folder, sync, sync_path, write
from dpflow.ledger.witness.base import Change, End, Stored, Witness
from dpflow.locks import LOCK_SECONDS as _LOCK_SECONDS
from dpflow.locks import FileLock, open_private


class FileWitness(Witness):
    """The witness of one ledger in a file.

    Args:
        path: The file; `rewrite` makes it.
        ledger: Id of the ledger.
    """

    def __init__(self, path: Path, ledger: str) -> None:
        super().__init__(str(path), ledger)
        self.path = path

    def read(self, end: End | None) -> Stored:
        """Return new lines; all of them if it is not the file that was read before."""
        now = signature(os.stat(self.place))  # noqa: PTH116 (before every charge)
        if end is not None and end.signature == now:
            return (), False, end
        with self.path.open("rb") as file:
            mark = file.readline()
            if end is None or end.mark != mark or end.at > now[2]:
                end = None
            start = 0 if end is None else end.at
            file.seek(start)
            data = file.read()
        # Part of a line is a crash before its step could start.
        data = data[: data.rfind(b"\n") + 1]
        texts, stop = data.decode("ascii", "replace").splitlines(), start + len(data)
        lines = len(texts) + (0 if end is None else end.lines)
        last = End(mark, stop, lines, now if now[2] == stop else None)
        return texts, end is None, last

    def write(self, texts: Sequence[str], end: End | None) -> End | None:
        """Append lines."""

        def add(descriptor: int) -> End | None:
            before = signature(os.fstat(descriptor))
            if end is None or end.signature != before:
                cut_torn(descriptor)
            write(descriptor, _joined(texts))
            sync(descriptor)
            if end is None or end.signature != before:
                return None
            now = signature(os.fstat(descriptor))
            return End(end.mark, now[2], end.lines + len(texts), now)

        return self._lock().run(add, _LOCK_SECONDS)

    def rewrite(self, change: Change) -> None:
        """Put a new file in the place of the old one, or the old one stays."""
        asides = (self.path.with_name(f"{self.path.name}.{n}") for n in count(1))
        fresh = self.path.with_name(f"{self.path.name}.{os.getpid()}.new")

        def replace(_: int | None = None) -> None:
            there = self.path.exists()
            old = self.path.read_text("ascii").splitlines() if there else None
            texts = change(old)
            if old and old[0][:12] != texts[0][:12]:
                os.link(self.path, next(path for path in asides if not path.exists()))
            descriptor = open_private(fresh, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
            try:
                write(descriptor, _joined(texts))
                sync(descriptor)
            finally:
                os.close(descriptor)
            fresh.replace(self.path)
            sync_path(self.path.parent)

        make_private_folder(self.path.parent)
        if self.path.exists():
            # Two who rewrite it at the same time would lose lines of one another.
            self._lock().run(replace, _LOCK_SECONDS)
        else:
            replace()

    def _lock(self) -> FileLock:
        """Return a lock for one turn.

        A signal's handler that writes within a turn, in the same thread, must not have
        that turn's lock and give it up.
        """
        return FileLock(self.path, os.O_RDWR | os.O_APPEND)


def _joined(texts: Iterable[str]) -> bytes:
    return "".join(f"{text}\n" for text in texts).encode()


def signature(status: os.stat_result) -> tuple[int, int, int, int]:
    """Tell one content of a file from another: device, inode, size, time of change."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def cut_torn(descriptor: int) -> None:
    """Cut part of a line off the end."""
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        os.ftruncate(descriptor, os.pread(descriptor, size, 0).rfind(b"\n") + 1)
