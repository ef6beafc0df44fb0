"""What every witness is, wherever it keeps its lines.

What was read and compared with the ledger is remembered, so that it is read once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpflow.exceptions import (
    ConfigurationError,
    LedgerCorrupt,
    LedgerUnavailable,
    LedgerUnwitnessed,
)
from dpflow.ledger.witness.lines import Header, Line


@dataclass(slots=True)
class Seen:
    """What was read of one file, or one epoch, and found to be in the ledger.

    Attributes:
        end: Where it ends, in the place's own terms; None if nothing was read.
        newest: The newest line of each book.
        accounts: The newest line about each account.
        latest: The line that was told last.
    """

    header: Header | None = None
    end: Any = None
    newest: dict[str, Line] = field(default_factory=dict)
    accounts: dict[str, Line] = field(default_factory=dict)
    latest: Line | None = None

    def note(self, lines: Iterable[Line], end: Any) -> None:
        """Remember the newest line of each book and account, and the last one."""
        for line in lines:
            known = self.newest.get(line.book, line)
            if known.number <= line.number:
                self.newest[line.book] = line
            for account in line.used:
                known = self.accounts.get(account, line)
                if known.number <= line.number:
                    self.accounts[account] = line
            self.latest = line
        # The end comes last: an interrupt makes lines be read again, and not missed.
        self.end = end


@dataclass(frozen=True, slots=True)
class Unseen:
    """Lines that were not compared with the ledger yet.

    Attributes:
        seen: What they follow: another thread may have met another file since.
        end: Where they end.
    """

    seen: Seen
    lines: tuple[Line, ...]
    end: Any


class WitnessBase(ABC):
    """The witness of one ledger.

    Args:
        place: Where it is, for messages; without any secret.
        ledger: Id of the ledger.
    """

    #: What brings a lost one back.
    advice = "Restore it"

    def __init__(self, place: str, ledger: str) -> None:
        self.place = place
        self.ledger = ledger
        #: What was compared; replaced when there is another file or epoch.
        self.seen = Seen()

    @property
    def epoch(self) -> int:
        """How many repairs the ledger had when the witness was begun."""
        header = self.seen.header
        return 0 if header is None else header.epoch

    @property
    def whole(self) -> bool:
        """Whether the witness still has every line that was ever written."""
        header = self.seen.header
        return header is not None and header.whole

    @abstractmethod
    def exists(self) -> bool:
        """Say whether it was begun.

        Raises:
            LedgerUnavailable: If the place does not answer.
        """

    @abstractmethod
    def unseen(self) -> Unseen:
        """Read what was appended since `accept`.

        Raises:
            LedgerUnwitnessed: If it was never begun, or is gone.
            LedgerCorrupt: If it is damaged or another ledger's.
            LedgerUnavailable: If it cannot be read.
        """

    @abstractmethod
    def append(self, lines: Sequence[Line]) -> None:
        """Append lines, durably.

        Raises:
            LedgerUnwitnessed: If it was never begun, or is gone.
            LedgerUnavailable: If they cannot be written; no step may start then.
        """

    @abstractmethod
    def enrol(self, epoch: int, lines: Sequence[Line], *, anew: bool = False) -> None:
        """Begin the witness with what the ledger holds now.

        Args:
            epoch: The ledger's count of repairs.
            lines: The head of each book.
            anew: Begin after an older one, which is kept.

        Raises:
            LedgerUnavailable: If it cannot be written.
            ConfigurationError: If there is one, and `anew` is not said.
        """

    @abstractmethod
    def claim(self, source: str) -> str:
        """Say which ledger governs a data source; this one, if none did yet.

        Returns:
            The id of the first ledger that asked for this source.

        Raises:
            LedgerUnavailable: If the place does not answer.
        """

    def accept(self, unseen: Unseen) -> None:
        """Remember that these lines are in the ledger."""
        unseen.seen.note(unseen.lines, unseen.end)

    def all_lines(self) -> tuple[Line, ...]:
        """Read everything; raises as `unseen`."""
        self.seen = Seen()
        return self.unseen().lines

    def _header_of(self, text: str) -> Header:
        header = Header.from_text(text)
        if header is None:
            what = "its first line is no witness's"
            raise self._damaged(what)
        if header.ledger != self.ledger:
            what = f"it is the witness of ledger {header.ledger}"
            raise self._damaged(what)
        return header

    def _parsed(self, text: str) -> Line:
        line = Line.from_text(text, self.ledger)
        if line is None:
            what = f"a line does not fit its checksum: {text[:60]!r}"
            raise self._damaged(what)
        return line

    def _begun(self) -> ConfigurationError:
        msg = f"there is a witness of this ledger at {self.place} already"
        return ConfigurationError(msg)

    def _missing(self) -> LedgerUnwitnessed:
        msg = (
            f"there is no witness at {self.place}, so nothing outside the ledger "
            f"{self.ledger} says that it forgot no charge. {self.advice}, or set "
            "DPFLOW_WITNESS to the place where it is. On a new machine, and after "
            "checking what the ledger holds, run `dpflow ledger trust`."
        )
        return LedgerUnwitnessed(msg, witness=self.place)

    def _damaged(self, what: str) -> LedgerCorrupt:
        msg = (
            f"the witness {self.place} cannot be used: {what}. {self.advice} from a "
            "backup; if there is none, move it away, check the ledger with `dpflow "
            "ledger verify` and begin a new witness with `dpflow ledger trust`."
        )
        return LedgerCorrupt(msg, witness=self.place)

    def _unusable(self, error: Exception, verb: str) -> LedgerUnavailable:
        told = error.strerror if isinstance(error, OSError) else None
        reason = (told or str(error)).rstrip(".?")
        msg = (
            f"cannot {verb} the witness {self.place}: {reason}. The step did not run; "
            "try again. DPFLOW_WITNESS names another place for it."
        )
        return LedgerUnavailable(msg, witness=self.place)


#: Makes the witness of a ledger with this id.
WitnessAt = Callable[[str], WitnessBase]
