"""What a witness is made of: a log of one line for each entry that it was told of.

A line begins with the entry's number and hash; canonical JSON and a checksum that is
bound to the ledger's id follow. Each repair of a ledger begins a new epoch of its log,
with a header and lines for all that the ledger holds; those before it are kept.
"""

from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import add
from typing import Any, NamedTuple, Protocol

from dpflow.ledger.entry import Entry, Sums, canonical
from dpflow.ledger.journal import KINDS
from dpflow.ledger.rows import sums_of_lists

_MAGIC, _VERSION = "dpflow-witness", "3"
_HEADER_PARTS = 6
#: What a line says that stands for all that some accounts had used up to its entry.
HEAD = "head"
#: How many lines are kept besides the newest of each account and the decisions.
KEPT = 1000


class Line(NamedTuple):
    """What the witness was told of one entry.

    Attributes:
        hash: Of the entry, and so of all before it.
        kind: Of the entry, or `HEAD`.
        charge: The charge that the entry is about.
        used: What was settled and held after it, of each account that it posts to.
        amounts: What it posts.
        run: The flow run of the step, if it has one.
        books: The datasets and populations that it names.
        flow: The flow of the step, if it has one.
    """

    number: int
    hash: str
    kind: str
    charge: str | None
    used: Sums
    amounts: Sums
    run: str | None = None
    books: tuple[str, ...] = ()
    flow: str | None = None

    @property
    def decides(self) -> bool:
        """Whether the entry is a decision that no later line tells of."""
        return self.kind in KINDS and KINDS[self.kind].decides

    def to_text(self, ledger: str) -> str:
        """Write the line, with its end."""
        return _summed(ledger, f"{self.number:012d} {self.hash} {canonical(self[2:])}")

    @classmethod
    def from_text(cls, text: str, ledger: str) -> Line | None:
        """Read a line; None if it is damaged or another ledger's."""
        content = _checked(ledger, text)
        if content is None:
            return None
        try:
            number, told, facts = content.split(" ", 2)
            kind, charge, used, amounts, run, books, flow = json.loads(facts)
            sums = sums_of_lists(used), sums_of_lists(amounts)
            return cls(int(number), told, kind, charge, *sums, run, tuple(books), flow)
        except (ValueError, TypeError, AttributeError):
            return None


def line_of(entry: Entry) -> Line:
    """Return what the witness is told of an entry."""
    postings, body = entry.postings, entry.body
    used = {name: tuple(map(add, p.settled, p.held)) for name, p in postings.items()}
    amounts = {name: posting.amount for name, posting in postings.items()}
    term = body.get("term")
    if term is not None:
        # Nothing was used under it, but the line tells which term it is.
        used[f"{body['book']}#{term['number']}"] = ()
    books = tuple(entry.books)
    place = entry.number, entry.hash, entry.kind, entry.charge
    return Line(*place, used, amounts, body.get("flow_run"), books, body.get("flow"))


def compacted(lines: Sequence[Line]) -> list[Line]:
    """Return fewer lines: the newest of each account, decisions, and the last ones."""
    # A term's line names its account, and says nothing of its use.
    newest = {name: line for line in lines for name, used in line.used.items() if used}
    wanted = {line.number for line in newest.values()}
    older = (line for line in lines[:-KEPT] if line.decides or line.number in wanted)
    return [
        *{(line.number, line.hash, line.kind): line for line in older}.values(),
        *lines[-KEPT:],
    ]


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

    def append(self, ledger: str, lines: Sequence[str], end: Any) -> Any:
        """Append lines to the newest epoch, durably; one that grew is compacted.

        Returns:
            Their end, if nothing came between the given end and them; else None.

        Raises:
            NotBegun: If no epoch was ever begun; nothing is written then.
        """

    def begin(self, ledger: str, epoch: int, header: str, lines: Sequence[str]) -> bool:
        """Begin an epoch with a header and lines, durably, all or nothing.

        Returns:
            Whether this did it; False if the epoch had been begun.
        """

    def claim(self, source: str, ledger: str) -> str:
        """Return the first ledger that claimed a source; this one, if none had."""
