"""Every stored row beside the one that the journal comes to, and what is found."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dpflow.ledger.entry import canonical
from dpflow.ledger.rows import (
    Account,
    Book,
    Charge,
    Claim,
    Key,
    MostGranted,
    Release,
    Row,
    Run,
    Term,
)
from dpflow.ledger.storage.row_texts import key_of_text, row_text
from dpflow.ledger.storage.transaction import Reading

#: Says whether a value is the one that a release's digest stands for.
Fits = Callable[[Release, str], bool]
_PAGE = 2000
#: The fields of each kind of row, as they are kept.
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "book": Book._fields,
    "term": Term._fields[:3],
    "account": Account._fields,
    "charge": Charge._fields,
    "release": Release._fields,
    "run": Run._fields,
    "granted": MostGranted._fields,
    "claim": Claim._fields,
}
_NAMES = {
    "book": "the journal of {}",
    "charge": "reservation {}",
    "release": "release {}",
    "run": "run {}",
    "term": "term {1} of dataset {0!r}",
    "granted": "what was granted of step {1!r} on dataset {0!r}",
    "claim": "the name {!r}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that does not agree.

    Attributes:
        account: The account, where it is one's.
        book: The dataset or population whose journal holds the bad entry.
        entry: Number of the bad entry, where it is one.
    """

    problem: str
    account: str | None = None
    book: str | None = None
    entry: int | None = None

    def __str__(self) -> str:
        """Say where it is, and what."""
        where = "" if self.account is None else f"account {self.account!r}"
        if self.account is None and self.book is not None:
            where = f"dataset {self.book!r}"
        where += "" if self.entry is None else f", entry {self.entry}"
        return f"{where}: {self.problem}" if where else self.problem


@dataclass(slots=True, kw_only=True)
class Verification:
    """What a verification read, and what it found.

    Attributes:
        bad: The first bad entry of each journal, then all else; empty if all agrees.
        checkpoints: How many there are.
        signed: Whether their signatures were checked.
        values: Whether the values of releases were compared with their digests.
        heads: Number and hash of the newest entry that was read, by dataset.
    """

    accounts: int = 0
    entries: int = 0
    postings: int = 0
    reservations: int = 0
    releases: int = 0
    checkpoints: int = 0
    signed: bool = False
    values: bool = False
    witness: str = "waived"
    bad: list[Finding] = field(default_factory=list)
    heads: dict[str, tuple[int, str]] = field(default_factory=dict)

    @property
    def fine(self) -> bool:
        """Whether nothing is bad."""
        return not self.bad


class Comparing:
    """Compares the rows of one kind, page by page.

    Args:
        kind: Of the rows.
        rows: Those that the journal comes to. They may go on to change between two
            pages, as long as they are what is stored when a page is read.
        fits: Checks the values of releases.
    """

    def __init__(self, kind: str, rows: Mapping[Key, Row], fits: Fits) -> None:
        self.kind = kind
        self.number = 0
        self._rows = rows
        self._fits = fits
        self._missing: set[Key] = {key for key in rows if key[0] == kind}
        self._above = ""
        self.ended = False

    def page(self, reading: Reading) -> Iterator[Finding]:
        """Compare the next rows that are stored."""
        found = reading.kept(self.kind, self._above, _PAGE)
        self.ended = len(found) < _PAGE
        for text, value, output in found:
            key = key_of_text(text)
            self._missing.discard(key)
            self.number += 1
            row = self._rows.get(key)
            # Most rows are what they should be, and nothing is kept with them.
            if row is None or output is not None or row_text(row) != value:
                yield from self._compared(key, value, output)
            self._above = text

    def missing(self) -> Iterator[Finding]:
        """Yield what the journal tells of and is not stored, after the last page."""
        for key in sorted(self._missing & self._rows.keys()):
            yield _finding(key, "the journal tells of it, and it has no row")

    def _compared(self, key: Key, told: str, output: str | None) -> Iterator[Finding]:
        row = self._rows.get(key)
        if row is None:
            yield _finding(key, "it has a row, and no entry of the journal made it")
            return
        ours = row_text(row)
        if told != ours and (problem := _difference(self.kind, ours, told)):
            yield _finding(key, problem)
        elif isinstance(row, Release):
            yield from _valued(row, output, self._fits)
        elif output is not None:
            yield _finding(key, "an output is kept with it, and it is no release")


def _difference(kind: str, ours: str, told: str) -> str | None:
    """Say which field of a row is not what its journal comes to."""
    try:
        theirs = json.loads(told)
    except ValueError:
        theirs = None
    names = COLUMNS[kind]
    if not isinstance(theirs, list) or len(theirs) != len(names):
        return f"its row says {told:.200}, its journal {ours:.200}"
    for name, one, other in zip(names, json.loads(ours), theirs, strict=True):
        # True is no 1, nor 1.0.
        same = canonical([one]) == canonical([other])
        if not same and not _same(name, one, other):
            return f"its row says {name} {_said(other)}, its journal {_said(one)}"
    if canonical(theirs) != told:
        return f"its row is not as dpflow writes it: {told:.200}"
    return None


def _said(field: Any) -> str:
    return field if isinstance(field, str) else canonical([field])[1:-1]


def _valued(row: Release, value: str | None, fits: Fits) -> Iterator[Finding]:
    """Compare a release's value with the digest that was settled."""
    kept = value is None if row.state != "settled" else True
    if not kept or (value is not None and not fits(row, value)):
        yield Finding(problem=f"release {row.key} is not the value that was kept")


def _same(name: str, ours: Any, theirs: Any) -> bool:
    """Say whether two lists hold the same, where their order means nothing."""
    if name not in ("refused", "halted") or not isinstance(theirs, list):
        return False
    both = [sorted(map(json.dumps, each)) for each in (ours, theirs)]
    return both[0] == both[1]


def _finding(key: Key, problem: str) -> Finding:
    if key[0] == "account":
        return Finding(account=key[1], problem=problem)
    name = _NAMES[key[0]].format(*key[1:])
    return Finding(problem=f"{name}: {problem}")
