"""What a witness is made of: a log of one line for each entry that it was told of.

A line is canonical JSON and a checksum that is bound to the ledger's id. Each repair of
a ledger begins a new epoch of its log, with a header and the heads of the ledger's
books; those before it are kept.
"""

from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import add
from typing import Any, NamedTuple, Protocol

from dpflow.ledger.entry import Entry, canonical
from dpflow.ledger.journal import KINDS
from dpflow.ledger.rows import Amounts, Sums, sums_of_lists

_MAGIC, _VERSION = "dpflow-witness", "2"
_HEADER_PARTS = 6
#: What a line says that was not written for one entry, but for a book with all before.
HEAD = "head"


class Line(NamedTuple):
    """What the witness was told of one entry of a book.

    Attributes:
        number: Of the entry in its book.
        hash: Of the entry, and so of all before it.
        kind: Of the entry; `HEAD` if the line stands for all up to it.
        charge: The charge that the entry is about.
        used: What was settled and held after it, of each account that it posts to.
        amounts: What it posts.
        run: The flow run of the step, if it has one.
    """

    book: str
    number: int
    hash: str
    kind: str
    charge: str | None
    used: Sums
    amounts: Sums
    run: str | None = None

    @property
    def place(self) -> tuple[str, int]:
        """Where the entry is."""
        return self.book, self.number

    @property
    def decides(self) -> bool:
        """Whether the entry is a decision that no later line tells of."""
        return self.kind in KINDS and KINDS[self.kind].decides

    def to_text(self, ledger: str) -> str:
        """Write the line, with its end."""
        return _summed(ledger, canonical(self))

    @classmethod
    def from_text(cls, text: str, ledger: str) -> Line | None:
        """Read a line; None if it is damaged or another ledger's."""
        content = _checked(ledger, text)
        if content is None:
            return None
        try:
            book, number, digest, kind, charge, used, amounts, run = json.loads(content)
            sums = sums_of_lists(used), sums_of_lists(amounts)
        except (ValueError, TypeError, AttributeError):
            return None
        return cls(book, number, digest, kind, charge, *sums, run)


def line_of(entry: Entry) -> Line:
    """Return what the witness is told of an entry."""
    book, number, kind, charge, postings, body, _, _, digest = entry
    used: dict[str, Amounts] = {}
    amounts: dict[str, Amounts] = {}
    for name, (amount, settled, held) in postings.items():
        used[name] = tuple(map(add, settled, held))
        amounts[name] = amount
    term = body.get("term")
    if term is not None:
        # Nothing was used under it, but the line tells which term it is.
        used[f"{book}#{term['number']}"] = ()
    run = body.get("flow_run")
    return Line(book, number, digest, kind, charge, used, amounts, run)


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The first line.

    Attributes:
        epoch: How many repairs the ledger had when the witness was begun.
        whole: Whether the witness still has every line since then.
        file: Tells this one from every other, for systems use an inode again.
    """

    ledger: str
    epoch: int
    whole: bool
    file: str = field(default_factory=lambda: uuid.uuid4().hex)

    def to_text(self) -> str:
        """Write the line, with its end."""
        state = "whole" if self.whole else "compacted"
        parts = [self.ledger, str(self.epoch), state, self.file]
        return _summed("", " ".join([_MAGIC, _VERSION, *parts]))

    @classmethod
    def from_text(cls, text: str) -> Header | None:
        """Read the line; None if it is damaged or no witness's."""
        parts = (_checked("", text) or "").split(" ")
        if parts[:2] != [_MAGIC, _VERSION] or len(parts) != _HEADER_PARTS:
            return None
        _, _, ledger, epoch, state, file = parts
        return cls(ledger=ledger, epoch=int(epoch), whole=state == "whole", file=file)


def _summed(ledger: str, content: str) -> str:
    """Write a line of some content with its checksum, and its end."""
    checksum = zlib.crc32(content.encode(), zlib.crc32(ledger.encode()))
    return f"{content} {checksum:08x}\n"


def _checked(ledger: str, text: str) -> str | None:
    """Return a line without its checksum, or None if that does not fit."""
    content = text.rpartition(" ")[0]
    return content if _summed(ledger, content) == f"{text}\n" else None


# Where the lines are


class LogError(Exception):
    """A log did not answer; its text holds no secret."""


class NotBegun(LogError):
    """A ledger has no lines in a log, or they are gone."""


class LogDamaged(LogError):
    """A log holds what nobody wrote to it."""


class Found(NamedTuple):
    """What is new in a log.

    Attributes:
        header: Of the newest epoch.
        lines: Those after the end that was asked for; all, if the header is another.
        end: Where they end, in the log's own terms.
    """

    header: str
    lines: Sequence[str]
    end: Any


class Log(Protocol):
    """An append-only log of lines, for every ledger that uses it; threads may share it.

    A file and a database each are one.

    Each method raises `LogError` or `OSError` if the place does not answer or is not
    durable.
    """

    #: Where it is, without any secret.
    place: str
    #: What brings a lost one back.
    advice: str

    def read(self, ledger: str, header: str, end: Any) -> Found:
        """Return the newest epoch's lines after an end.

        Args:
            ledger: Whose witness.
            header: Of the epoch that was read before; empty for none.
            end: What was returned last; None reads from the beginning.

        Raises:
            NotBegun: If no epoch was ever begun, or all are gone.
        """

    def append(self, ledger: str, lines: Sequence[tuple[str, str]], end: Any) -> Any:
        """Append lines to the newest epoch, each beside its book, durably.

        Returns:
            Their end, if nothing came between the given end and them; else None.

        Raises:
            NotBegun: If no epoch was ever begun; nothing is written then.
        """

    def begin(
        self, ledger: str, epoch: int, header: str, lines: Sequence[tuple[str, str]]
    ) -> bool:
        """Begin an epoch with a header and lines, durably, all or nothing.

        Returns:
            Whether this did it; False if the epoch had been begun.
        """

    def claim(self, source: str, ledger: str) -> str:
        """Return the first ledger that claimed a source; this one, if none had."""
