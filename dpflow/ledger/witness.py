"""The witness in a file, which remembers each charge outside the ledger.

Lines are only ever appended:

    ledger_id account seq hash used_after asked reservation run crc

A crash may leave part of a line at the end; the step behind it never started, so it is
ignored. Any other line that does not fit its checksum is damage, and fails closed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from dpflow.exceptions import ConfigurationError, LedgerUnavailable
from dpflow.ledger.witness_base import Seen, Unseen, WitnessBase
from dpflow.ledger.witness_lines import (
    Header,
    Line,
    Signature,
    cut_torn,
    signature,
    sync,
    sync_folder,
    write,
)

#: Beyond this the file is rewritten with fewer lines.
_LARGE = 2**20
#: How many lines a rewritten file keeps, besides the newest of each account.
_KEPT = 1000


class _End(NamedTuple):
    """Which file was read, and up to where."""

    signature: Signature = (0, 0, 0, 0)
    offset: int = 0


class Witness(WitnessBase):
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

    def unseen(self) -> Unseen:
        """Read what was appended since `accept`."""
        with self._mine():
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

    def append(self, lines: Sequence[Line]) -> None:
        """Append lines, durably."""
        text = "".join(line.to_text(self.ledger) for line in lines).encode()
        with self._mine():
            try:
                with self._locked() as descriptor:
                    end = cut_torn(descriptor)
                    write(descriptor, text)
                    sync(descriptor)
                    self._note_own(descriptor, end, lines)
            except OSError as error:
                raise self._unavailable(error, "write") from error

    def _note_own(self, descriptor: int, end: int, lines: Sequence[Line]) -> None:
        """Remember own lines, which were just committed, unless others came before."""
        seen, now = self._seen, signature(os.fstat(descriptor))
        if self._end.offset == end and self._end.signature[:2] == now[:2]:
            seen.end = _End(now, now[2])
            seen.note(lines)
            seen.latest = tuple(line.account for line in lines)

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
            with self._locked():
                self._keep_old()
                self._rewrite(header, lines)
        except OSError as error:
            raise self._unavailable(error, "write") from error

    def compact(self) -> None:
        """Rewrite a large file with fewer lines; all were compared with the ledger."""
        with self._mine():
            if self._end.offset < self._large:
                return
            try:
                with self._locked():
                    if self.unseen().lines:
                        return
                    every = self._read_all()
                    newest = set(self._seen.newest.values())
                    older = [
                        line
                        for line in every[:-_KEPT]
                        # No later line tells what was decided before it.
                        if line in newest or line.decides
                    ]
                    header = Header(ledger=self.ledger, epoch=self.epoch, whole=False)
                    self._rewrite(header, [*dict.fromkeys(older), *every[-_KEPT:]])
            except OSError as error:
                raise self._unavailable(error, "write") from error
            fresh = self.unseen()
            self.accept(fresh)
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

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Open the file for appending and keep other writers away."""
        while True:
            try:
                descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
            except FileNotFoundError:
                raise self._missing() from None
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                found = self._stat()
                if found and found[:2] == signature(os.fstat(descriptor))[:2]:
                    yield descriptor
                    return
            finally:
                os.close(descriptor)

    def _stat(self) -> Signature | None:
        try:
            return signature(self.path.stat())
        except FileNotFoundError:
            return None

    def _unavailable(self, error: OSError, verb: str) -> LedgerUnavailable:
        return self._unusable(error.strerror or str(error), verb)
