"""The witness of a ledger, wherever its lines are.

What was read and compared with the ledger is remembered, so that it is read once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dpflow.exceptions import (
    ConfigurationError,
    LedgerCorrupt,
    LedgerUnavailable,
    LedgerUnwitnessed,
)
from dpflow.ledger.witness.lines import (
    Header,
    Line,
    Log,
    LogDamaged,
    LogError,
    NotBegun,
)

T = TypeVar("T")


@dataclass(slots=True)
class Seen:
    """What was read of one file, or one epoch, and found to be in the ledger.

    Attributes:
        text: Its header as it was written.
        end: Where it ends, in the log's own terms; None if nothing was read.
        accounts: The newest line about each account.
        latest: The line that was told last.
    """

    text: str = ""
    header: Header | None = None
    end: Any = None
    accounts: dict[str, Line] = field(default_factory=dict)
    latest: Line | None = None

    def note(self, lines: Iterable[Line], end: Any) -> None:
        """Remember the newest line of each account, and the last one."""
        for line in lines:
            for account in (name for name, used in line.used.items() if used):
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


class Witness:
    """The witness of one ledger.

    Args:
        log: Where its lines are.
        ledger: Id of the ledger.
    """

    def __init__(self, log: Log, ledger: str) -> None:
        self.log = log
        self.ledger = ledger
        #: What was compared; replaced when there is another file or epoch.
        self.seen = Seen()

    @property
    def place(self) -> str:
        """Where it is, for messages; without any secret."""
        return self.log.place

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

    def exists(self) -> bool:
        """Say whether it was begun.

        Raises:
            LedgerUnavailable: If the place does not answer.
        """
        try:
            self._asked("read", self.log.read, self.seen.text, self.seen.end)
        except LedgerUnwitnessed:
            return False
        return True

    def unseen(self) -> Unseen:
        """Read what was appended since `accept`.

        Raises:
            LedgerUnwitnessed: If it was never begun, or is gone.
            LedgerCorrupt: If it is damaged or another ledger's.
            LedgerUnavailable: If it cannot be read.
        """
        seen = self.seen
        text, lines, end = self._asked("read", self.log.read, seen.text, seen.end)
        # An empty file has no header, and must not be taken for one that was not read.
        if text != seen.text or seen.header is None:
            seen = self.seen = Seen(text, self._header_of(text))
        return Unseen(seen, tuple([self._parsed(line) for line in lines]), end)

    def append(self, lines: Sequence[Line]) -> None:
        """Append lines, durably.

        Raises:
            LedgerUnwitnessed: If it was never begun, or is gone.
            LedgerUnavailable: If they cannot be written; no step may start then.
        """
        seen = self.seen
        end = self._asked("write", self.log.append, self._texts(lines), seen.end)
        # They were just committed: unless others came before them, all is known.
        if end is not None:
            seen.note(lines, end)

    def enrol(self, epoch: int, lines: Sequence[Line], *, anew: bool = False) -> None:
        """Begin the witness with what the ledger holds now.

        Args:
            epoch: The ledger's count of repairs.
            lines: All that stands for what it holds.
            anew: Begin after an older one, which is kept.

        Raises:
            LedgerUnavailable: If it cannot be written.
            ConfigurationError: If there is one, and `anew` is not said.
        """
        text = Header(ledger=self.ledger, epoch=epoch, whole=True).to_text()[:-1]
        begun = anew or not self.exists()
        if begun:
            texts = self._texts(lines)
            begun = self._asked("write", self.log.begin, epoch, text, texts)
        if not begun:
            msg = f"there is a witness of this ledger at {self.place} already"
            raise ConfigurationError(msg)

    def claim(self, source: str) -> str:
        """Say which ledger governs a data source; this one, if none did yet.

        Returns:
            The id of the first ledger that asked for this source.

        Raises:
            LedgerUnavailable: If the place does not answer.
        """
        return self._asked("write", lambda ledger: self.log.claim(source, ledger))

    def accept(self, unseen: Unseen) -> None:
        """Remember that these lines are in the ledger."""
        unseen.seen.note(unseen.lines, unseen.end)

    def all_lines(self) -> tuple[Line, ...]:
        """Read everything; raises as `unseen`."""
        self.seen = Seen()
        return self.unseen().lines

    def _asked(self, verb: str, ask: Callable[..., T], *what: Any) -> T:
        """Ask the log; what it raises is told in dpflow's words."""
        try:
            return ask(self.ledger, *what)
        except NotBegun:
            raise self._missing() from None
        except LogDamaged as error:
            raise self._damaged(str(error)) from None
        except (LogError, OSError) as error:
            raise self._unusable(error, verb) from error

    def _texts(self, lines: Sequence[Line]) -> list[str]:
        return [line.to_text(self.ledger)[:-1] for line in lines]

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

    def _missing(self) -> LedgerUnwitnessed:
        msg = (
            f"there is no witness at {self.place}, so nothing outside the ledger "
            f"{self.ledger} says that it forgot no charge. {self.log.advice}, or set "
            "DPFLOW_WITNESS to the place where it is. On a new machine, and after "
            "checking what the ledger holds, run `dpflow ledger trust`."
        )
        return LedgerUnwitnessed(msg, witness=self.place)

    def _damaged(self, what: str) -> LedgerCorrupt:
        msg = (
            f"the witness {self.place} cannot be used: {what}. {self.log.advice} from "
            "a backup; if there is none, move it away, check the ledger with `dpflow "
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
WitnessAt = Callable[[str], Witness]
