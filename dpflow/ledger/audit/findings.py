"""What a verification finds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpflow.ledger.checkpoint import first_wrong
from dpflow.ledger.damage import UNREADABLE
from dpflow.ledger.keys import LedgerKey


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

    def add(self, problem: str, book: str, entry: int | None = None) -> None:
        """Add what is wrong with a journal, once."""
        finding = Finding(problem=problem, book=book, entry=entry)
        if finding not in self.bad:
            self.bad.append(finding)

    def check_points(
        self,
        ledger: str,
        book: str,
        points: Sequence[Mapping[str, Any]],
        key: LedgerKey | None,
    ) -> None:
        """Check who signed the checkpoints of a journal, and that all are there."""
        self.checkpoints += len(points)
        if not points and key is not None:
            what = (
                "it has no signed checkpoint: it was opened without the key, or its "
                "checkpoints were removed. If it is known to be right, sign it with "
                "`dpflow ledger sign`"
            )
            self.add(what, book)
        try:
            wrong = first_wrong(key, ledger, book, points)
        except UNREADABLE:
            wrong = 0
        if wrong is not None:
            what = "its checkpoint was forged, or signed with another key"
            self.add(what, book, wrong)
