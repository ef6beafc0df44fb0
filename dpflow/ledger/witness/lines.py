"""What a witness is made of: a header, and one line for each entry that it was told of.

A line is canonical JSON and a checksum that is bound to the ledger's id.
"""

from __future__ import annotations

import json
import uuid
import zlib
from dataclasses import dataclass, field
from operator import add
from typing import NamedTuple

from dpflow.ledger.entry import Entry, canonical
from dpflow.ledger.rows import Amounts, Sums, sums_of_lists

_MAGIC, _VERSION = "dpflow-witness", "2"
_HEADER_PARTS = 6
#: What a line says that was not written for one entry, but for a book with all before.
HEAD = "head"
#: Entries that move no budget, hold no step and are a person's decision.
DECIDED = frozenset({"open", "tighten", "freeze", "unfreeze"})
#: Entries that the witness is told of. What ends a charge only ever lowers or keeps
#: what is used, so that a ledger that forgot it promises nothing more.
TOLD = DECIDED | {"adopt", "reserve", "amend", "prior", "repair", "checkpoint"}


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
        return self.kind in DECIDED

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
