"""A witness in a file. Lines are only ever appended, and compacted now and then.

A crash may leave part of a line at the end; the step behind it never started, so it is
ignored. Any other line that does not fit its checksum is damage, and fails closed.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from dpflow.durable import make_private_folder, sync, sync_path, write
from dpflow.interrupts import suppress
from dpflow.ledger.witness.base import Accounts, Prove, Witness
from dpflow.ledger.witness.lines import Line, Witnessed, seal, unseal
from dpflow.locks import LOCK_SECONDS as _LOCK_SECONDS
from dpflow.locks import FileLock, open_private

#: A file of more bytes, and of twice as many as when it was compacted, is compacted.
_LONG_BYTES = 2**20


class FileWitness(Witness):
    """The witness of one ledger in a file.

    Args:
        path: The file; `begin` makes it.
        ledger: Id of the ledger.
    """

    def __init__(self, path: Path, ledger: str) -> None:
        super().__init__(str(path), ledger)
        self.path = path
        self._state = Witnessed()
        #: Header of the file that was read, and up to where.
        self._header, self._end = b"", 0
        self._signature: tuple[int, ...] | None = None
        #: Lines that were not proved yet.
        self._unproved: list[Line] = []
        #: Bytes of the file when it was begun or compacted.
        self._begun_bytes = 0

    def _load(self, datasets: Sequence[str] | None, accounts: Accounts) -> Witnessed:
        del accounts
        if datasets is None:
            self._header, self._signature = b"", None
        now = signature(os.stat(self.path))  # noqa: PTH116 (before every charge)
        if now == self._signature:
            return self._state
        with self.path.open("rb") as file:
            self._take(file.fileno())
            if self._end == now[2]:
                self._signature = now
        return self._state

    def _take(self, descriptor: int) -> None:
        """Read new lines; all of them if it is not the file that was read before."""
        size = os.fstat(descriptor).st_size
        header = os.pread(descriptor, 4096, 0).partition(b"\n")[0]
        if not header or header != self._header or self._end > size:
            unseal(self.ledger, header.decode("ascii", "replace"))
            self._state, self._unproved = Witnessed(), []
            self._header, self._end = header, len(header) + 1
            self._begun_bytes = size
        data = os.pread(descriptor, size - self._end, self._end)
        # Part of a line is a crash before its step could start.
        data = data[: data.rfind(b"\n") + 1]
        for text in data.decode("ascii", "replace").splitlines():
            line = unseal(self.ledger, text)
            if not isinstance(line, Line):
                self._state.put(line)
                continue
            self._state.add(line)
            if line.kind != "forked":
                self._unproved.append(line)
        self._end += len(data)

    def _raise(
        self, lines: Sequence[Line], prove: Prove, *, synced: bool
    ) -> Sequence[Line]:
        def append(descriptor: int) -> Sequence[Line]:
            if signature(os.fstat(descriptor)) != self._signature:
                cut_torn(descriptor)
                self._take(descriptor)
            # Of another dataset's lines a later writer of that dataset finds out.
            chosen = self._choose(self._state, lines, self._unproved, prove)
            data = "".join(f"{seal(self.ledger, line)}\n" for line in chosen).encode()
            write(descriptor, data)
            self._end += len(data)
            for line in chosen:
                self._state.add(line)
            if synced:
                sync(descriptor)
            self._signature = signature(os.fstat(descriptor))
            names = {line.dataset for line in chosen}
            self._unproved = [x for x in self._unproved if x.dataset not in names]
            return chosen

        written = self._lock().run(append, _LOCK_SECONDS)
        if self._end > max(_LONG_BYTES, 2 * self._begun_bytes):
            # After an error it is as before, and damage is for the next reader.
            with suppress(OSError, ValueError):
                self._rewrite(None)
        return written

    def _begin(self, state: Witnessed, *, anew: bool) -> None:
        if self.path.exists() and not anew:
            raise self.refuse_second()
        self._rewrite(state)

    def _rewrite(self, state: Witnessed | None) -> None:
        """Put a new file in the place of the old one, or the old one stays.

        Args:
            state: What it holds, and the old one stays aside; None for what the old
                one holds.
        """
        asides = (self.path.with_name(f"{self.path.name}.{n}") for n in count(1))
        fresh = self.path.with_name(f"{self.path.name}.{os.getpid()}.new")

        def replace(descriptor: int | None = None) -> None:
            if state is None and descriptor is not None:
                self._take(descriptor)
                self._state.thin()
            elif descriptor is not None:
                os.link(self.path, next(path for path in asides if not path.exists()))
            after = self._state if state is None else state
            texts = [
                seal(self.ledger, row)
                for row in (("file", uuid.uuid4().hex, 0, "0"), *after.rows())
            ]
            opened = open_private(fresh, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
            try:
                write(opened, "".join(f"{text}\n" for text in texts).encode())
                sync(opened)
            finally:
                os.close(opened)
            fresh.replace(self.path)
            sync_path(self.path.parent)
            # It is read again by the next turn.
            self._header, self._signature = b"", None

        make_private_folder(self.path.parent)
        if state is None or self.path.exists():
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


def signature(status: os.stat_result) -> tuple[int, int, int, int]:
    """Tell one content of a file from another: device, inode, size, time of change."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def cut_torn(descriptor: int) -> None:
    """Cut part of a line off the end."""
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        os.ftruncate(descriptor, os.pread(descriptor, size, 0).rfind(b"\n") + 1)
