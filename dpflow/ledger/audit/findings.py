"""Findings of a verification."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dpflow.exceptions import LedgerError
from dpflow.ledger.checkpoint import SIGNED, signed_text
from dpflow.ledger.damage import UNREADABLE
from dpflow.ledger.entry import Entry, JournalError
from dpflow.ledger.keys import LedgerKey


class Finding(NamedTuple):
    """A disagreement, with the number of the bad entry where there is one."""

    problem: str
    entry: int | None = None

    def __str__(self) -> str:
        """Return the place and the problem."""
        place = "" if self.entry is None else f"entry {self.entry}: "
        return f"{place}{self.problem}"


@dataclass(slots=True, kw_only=True)
class Verification:
    """Counts and findings of a verification.

    Attributes:
        bad: The first bad entry of the journal, then all else; empty if all agrees.
        checkpoints: Number of signed checkpoints.
        signed: Whether their signatures were checked.
        values: Whether the values of releases were compared with their digests.
        head: Number and hash of the newest entry that was read.
        points: Signed parts of the checkpoints, oldest first.
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
    points: list[Mapping[str, Any]] = field(default_factory=list, repr=False)

    @property
    def fine(self) -> bool:
        """Whether nothing is bad."""
        return not self.bad

    def add(self, problem: str, entry: int | None = None) -> None:
        """Add a finding, once."""
        finding = Finding(problem, entry)
        if finding not in self.bad:
            self.bad.append(finding)

    def read(
        self,
        page: Iterable[Sequence[Any]],
        reader: Callable[[tuple[Any, ...]], Entry],
        hash_of: Callable[[int], str],
    ) -> bool:
        """Read the next entries; return False after a bad one, which is a finding.

        Args:
            page: Columns of the entries, as a database keeps them.
            reader: Checks the columns, with the hash of the entry before.
            hash_of: Returns the hash of an earlier entry.
        """
        number, previous = self.head
        try:
            for columns in page:
                if columns[0] != number + 1:
                    what = f"entry {number + 1} is missing or out of order"
                    raise JournalError(what)
                entry = reader((*columns, previous))
                if entry.kind == "checkpoint":
                    self._note(entry, hash_of)
                number, previous = self.head = entry.number, entry.hash
        except (*UNREADABLE, RecursionError) as error:
            what = str(error)
            if not isinstance(error, JournalError | LedgerError):
                what = f"it is no entry of its kind ({type(error).__name__})"
            self.add(what, number + 1)
        self.entries = number
        return self.fine

    def _note(self, entry: Entry, hash_of: Callable[[int], str]) -> None:
        """Compare a checkpoint with the journal before it."""
        point = {name: entry.body["signed"][name] for name in SIGNED}
        number = point["number"]
        if not 0 < number < entry.number or point["hash"] != hash_of(number):
            what = "it was signed with another content: the history was rewritten"
            self.add(what, number)
        self.points.append(point)

    def check_points(self, ledger: str, key: LedgerKey | None) -> None:
        """Check the signatures of the checkpoints, and that none is missing."""
        self.signed, self.checkpoints = key is not None, len(self.points)
        if not self.points and key is not None:
            self.add(
                "the journal has no signed checkpoint: it was never signed, or its "
                "checkpoints were removed. If it is known to be right, sign it with "
                "`dpflow ledger sign`"
            )
        previous = ""
        for count, point in enumerate(self.points, 1):
            placed = (point["count"], point["previous"]) == (count, previous)
            text, previous = signed_text(ledger, point), point["signature"]
            if not placed or (key and not key.verifies(text, previous)):
                what = "its checkpoint was forged, or signed with another key"
                self.add(what, point["number"])
                return
