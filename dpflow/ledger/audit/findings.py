"""What a verification finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dpflow.exceptions import LedgerError
from dpflow.ledger.checkpoint import first_wrong
from dpflow.ledger.damage import UNREADABLE
from dpflow.ledger.entry import Entry, JournalError
from dpflow.ledger.keys import LedgerKey


class Finding(NamedTuple):
    """Something that does not agree.

    Attributes:
        entry: Number of the bad entry, where it is one.
    """

    problem: str
    entry: int | None = None

    def __str__(self) -> str:
        """Say where it is, and what."""
        place = "" if self.entry is None else f"entry {self.entry}: "
        return f"{place}{self.problem}"


@dataclass(slots=True, kw_only=True)
class Verification:
    """What a verification read, and what it found.

    Attributes:
        bad: The first bad entry of the journal, then all else; empty if all agrees.
        checkpoints: How many there are.
        signed: Whether their signatures were checked.
        values: Whether the values of releases were compared with their digests.
        head: Number and hash of the newest entry that was read.
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
    head: tuple[int, str] = (0, "")

    @property
    def fine(self) -> bool:
        """Whether nothing is bad."""
        return not self.bad

    def add(self, problem: str, entry: int | None = None) -> None:
        """Add what is wrong, once."""
        finding = Finding(problem, entry)
        if finding not in self.bad:
            self.bad.append(finding)

    def read(
        self, columns: Sequence[Any], reader: Callable[[tuple[Any, ...]], Entry]
    ) -> Entry | None:
        """Read the entry after the newest; None if it is bad, which is noted.

        Args:
            columns: Of the entry, as a database keeps it.
            reader: Checks them, with the hash of the entry before.
        """
        number, previous = self.head
        try:
            if columns[0] != number + 1:
                what = f"entry {number + 1} is missing or out of order"
                raise JournalError(what)
            entry = reader((*columns, previous))
        except (*UNREADABLE, RecursionError) as error:
            what = str(error)
            if not isinstance(error, JournalError | LedgerError):
                what = f"it is no entry of its kind ({type(error).__name__})"
            self.add(what, number + 1)
            return None
        self.head, self.entries = (entry.number, entry.hash), entry.number
        return entry

    def checkpoint(self, entry: Entry, hash_of: Callable[[int], str]) -> Any:
        """Return the signed part of a checkpoint, after comparing it with the journal.

        Args:
            entry: The checkpoint's.
            hash_of: Returns the hash of an earlier entry.
        """
        point, number = entry.body["signed"], entry.body["signed"]["number"]
        if not 0 < number < entry.number or point["hash"] != hash_of(number):
            what = "it was signed with another content: the history was rewritten"
            self.add(what, number)
        return point

    def check_points(
        self, ledger: str, points: Sequence[Mapping[str, Any]], key: LedgerKey | None
    ) -> None:
        """Check who signed the checkpoints, and that all are there."""
        self.signed, self.checkpoints = key is not None, len(points)
        if not points and key is not None:
            self.add(
                "the journal has no signed checkpoint: it was never signed, or its "
                "checkpoints were removed. If it is known to be right, sign it with "
                "`dpflow ledger sign`"
            )
        try:
            wrong = first_wrong(key, ledger, points)
        except UNREADABLE:
            wrong = 0
        if wrong is not None:
            self.add("its checkpoint was forged, or signed with another key", wrong)
