"""Lines of a witness: one for each entry that the witness has to remember.

A line begins with the entry's number and hash; canonical JSON and a checksum that is
bound to the ledger's id follow. The first line is a header of the same form. Each
repair of a ledger begins its witness anew, with a header and lines for all that the
ledger holds.
"""

from __future__ import annotations

import json
import uuid
import zlib
from collections import deque
from collections.abc import Iterable
from operator import add
from typing import NamedTuple

from dpflow.ledger.entry import Entry, Sums, canonical
from dpflow.ledger.journal import KINDS
from dpflow.ledger.rows import sums_of_lists

#: What each checksum covers besides its line and the ledger's id.
_VERSION = "dpflow-witness 5"
#: Lines that compaction leaves besides the newest of each account and the decisions.
KEPT = 1000


class Line(NamedTuple):
    """What the witness remembers of one entry.

    Attributes:
        hash: Of the entry, and so of all before it.
        charge: The charge that the entry is about.
        used: Settled and held after it, of each account that it posts to.
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
        """Whether the entry is a decision that no later line shows."""
        return self.kind in KINDS and KINDS[self.kind].decides

    def to_text(self, ledger: str) -> str:
        """Write the line."""
        return _sealed(ledger, f"{self.number:012d} {self.hash} {canonical(self[2:])}")

    @classmethod
    def from_text(cls, text: str, ledger: str) -> Line:
        """Read a line.

        Raises:
            ValueError: If it is damaged, or another ledger's or version's.
        """
        content = text.rpartition(" ")[0]
        if text != _sealed(ledger, content):
            what = f"a line does not fit the ledger and its checksum: {text[:60]!r}"
            raise ValueError(what)
        number, digest, facts = content.split(" ", 2)
        kind, charge, used, amounts, run, books, flow = json.loads(facts)
        sums = sums_of_lists(used), sums_of_lists(amounts)
        return cls(int(number), digest, kind, charge, *sums, run, tuple(books), flow)


def _sealed(ledger: str, content: str) -> str:
    """Add the checksum to the content of a line."""
    checksum = zlib.crc32(f"{_VERSION} {ledger} {content}".encode())
    return f"{content} {checksum:08x}"


def line_of(entry: Entry) -> Line:
    """Return the witness's line of an entry."""
    postings, body = entry.postings, entry.body
    used = {name: tuple(map(add, p.settled, p.held)) for name, p in postings.items()}
    if (term := body.get("term")) is not None:
        # Nothing was used under it, but the line says which term it is.
        used[f"{body['book']}#{term['number']}"] = ()
    place = entry.number, entry.hash, entry.kind, entry.charge
    run, flow = body.get("flow_run"), body.get("flow")
    return Line(*place, used, entry.amounts, run, tuple(entry.books), flow)


def header_of(epoch: int) -> Line:
    """Return a first line.

    Args:
        epoch: How many repairs the ledger had when the witness was begun.
    """
    # File systems use the number of a removed file again; its first line is another.
    return Line(epoch, uuid.uuid4().hex, "header", None, {}, {})


def compacted(lines: Iterable[Line]) -> list[Line]:
    """Return fewer lines: the newest of each account, decisions, and the last ones."""
    last = deque[tuple[int, Line]](maxlen=KEPT)
    newest, decisions = dict[str, tuple[int, Line]](), dict[int, Line]()
    for place in enumerate(lines):
        at, line = place
        last.append(place)
        if line.decides:
            decisions[at] = line
        for name, used in line.used.items():
            # A term's line names its account, and says nothing of its use.
            if used and line.number >= newest.get(name, place)[1].number:
                newest[name] = place
    remaining = {**decisions, **dict(newest.values()), **dict(last)}
    return [remaining[at] for at in sorted(remaining)]
