"""What a witness file is made of: lines with checksums, written durably."""

from __future__ import annotations

import fcntl
import os
import uuid
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote

_MAGIC, _VERSION = "dpflow-witness", "1"
_HEADER_PARTS, _LINE_PARTS = 6, 8
_SAFE = "#/:@"
_BLOCK = 4096
#: What a line asks that was not written for one charge, but to begin the file.
HEAD = "-"

#: Device, inode, size and time of change of a file.
Signature = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What the witness saw of one account.

    Attributes:
        hash: Of the entry with this number.
        used: What was settled and held after it, as a tally's text.
        asked: What that entry added; `HEAD` if the line stands for all before it.
    """

    account: str
    seq: int
    hash: str
    used: str
    asked: str
    reservation: str | None = None
    run: str | None = None

    @property
    def decides(self) -> bool:
        """Whether the entry moved no budget and holds no step.

        It froze an account, lowered its gate or, as the first, opened a term.
        """
        return not (self.reservation or self.asked.strip("[0,]"))

    @property
    def unused(self) -> bool:
        """Whether nothing was settled or held after the entry."""
        return not self.used.strip("[0,]")

    def to_text(self, ledger: str) -> str:
        """Write the line."""
        numbers = [str(self.seq), self.hash, self.used, self.asked]
        names = [quote(name or "", _SAFE) for name in (self.reservation, self.run)]
        return _summed([ledger, quote(self.account, _SAFE), *numbers, *names])

    @classmethod
    def from_text(cls, text: str, ledger: str) -> Line | None:
        """Read a line; None if it is damaged or another ledger's."""
        parts = _checked(text)
        if parts is None or len(parts) != _LINE_PARTS or parts[0] != ledger:
            return None
        _, account, seq, digest, used, asked, reservation, run = parts
        return cls(
            account=unquote(account),
            seq=int(seq),
            hash=digest,
            used=used,
            asked=asked,
            reservation=unquote(reservation) or None,
            run=unquote(run) or None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The first line.

    Attributes:
        epoch: How many repairs the ledger had when the file was begun.
        whole: Whether the file still has every line since then.
        file: Tells this file from every other, for systems use an inode again.
    """

    ledger: str
    epoch: int
    whole: bool
    file: str = field(default_factory=lambda: uuid.uuid4().hex)

    def to_text(self) -> str:
        """Write the line."""
        state = "whole" if self.whole else "compacted"
        parts = [self.ledger, str(self.epoch), state, self.file]
        return _summed([_MAGIC, _VERSION, *parts])

    @classmethod
    def from_text(cls, text: str) -> Header | None:
        """Read the line; None if it is damaged or no witness's."""
        parts = _checked(text)
        if parts is None or parts[:2] != [_MAGIC, _VERSION]:
            return None
        if len(parts) != _HEADER_PARTS:
            return None
        _, _, ledger, epoch, state, file = parts
        return cls(ledger=ledger, epoch=int(epoch), whole=state == "whole", file=file)


def _summed(parts: list[str]) -> str:
    text = " ".join(parts)
    return f"{text} {zlib.crc32(text.encode()):08x}\n"


def _checked(text: str) -> list[str] | None:
    """Return the parts of a line, or None if it does not fit its checksum."""
    content, _, crc = text.rpartition(" ")
    if crc != f"{zlib.crc32(content.encode()):08x}":
        return None
    return content.split(" ")


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
