"""The witness of a ledger, in a file or in a database.

Each line is compared with the ledger once by each process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from dpflow.exceptions import (
    ConfigurationError,
    LedgerCorrupt,
    LedgerUnavailable,
    LedgerUnwitnessed,
)
from dpflow.ledger.rows import account_key
from dpflow.ledger.witness.lines import WHOLE, Line, header_text
from dpflow.locks import TurnQueue

T = TypeVar("T")

#: So many entries are read at once.
AT_ONCE = 500
#: How long a thread waits for the others of its process.
_THREAD_SECONDS = 60.0


@dataclass(slots=True)
class Seen:
    """Lines of one file, or one epoch, that were compared with the ledger.

    Attributes:
        text: The header as it was written; None if nothing was read.
        end: Where they end, as the place counts.
        newest: By the key of an account, the number of the newest line about its use.
        latest: The line that was written last.
    """

    text: str | None = None
    header: Line | None = None
    end: Any = None
    newest: dict[str, int] = field(default_factory=dict)
    latest: Line | None = None

    def note(self, lines: Iterable[Line], end: Any) -> None:
        """Remember lines that the ledger holds, and where they end."""
        for line in lines:
            for name in (name for name, used in line.used.items() if used):
                key = account_key(name)
                self.newest[key] = max(line.number, self.newest.get(key, 0))
            self.latest = line
        # The end comes last: an interrupt makes lines be read again, and not missed.
        self.end = end


class Unseen(NamedTuple):
    """Lines that were not compared with the ledger yet.

    Attributes:
        seen: The lines before them: another thread may have met another file since.
        end: Where they end.
    """

    seen: Seen
    lines: Sequence[Line]
    end: Any

    @property
    def expected(self) -> list[Line]:
        """These lines and the newest before them, which the ledger has to hold.

        A ledger's file can be overwritten while it is open.
        """
        return [*self.lines, *filter(None, [self.seen.latest])]

    @property
    def numbers(self) -> list[int]:
        """The newest of their entries, to be loaded with a decision's keys."""
        return [line.number for line in self.expected[-AT_ONCE:]]


#: The first line of the newest file or epoch; the lines after the end that was given,
#: or all if the header is another; and their end.
Stored = tuple[str, Sequence[str], Any]


class Witness(ABC):
    """The witness of one ledger, used by one thread at a time.

    Each place implements `read`, `write`, `begin` and `first_claim`. They raise
    FileNotFoundError if the witness was never begun or is lost, ValueError if it is
    damaged, and any other OSError or LedgerUnavailable if the place does not answer or
    is not durable; texts hold no secret.

    Args:
        place: Where it is, for messages; without any secret.
        ledger: Id of the ledger.
    """

    def __init__(self, place: str, ledger: str) -> None:
        self.place = place
        self.ledger = ledger
        #: Replaced when there is another file or epoch.
        self.seen = Seen()
        self._alone = TurnQueue()

    @property
    def epoch(self) -> int:
        """How many repairs the ledger had when the witness was begun."""
        return 0 if self.seen.header is None else self.seen.header.number

    @property
    def whole(self) -> bool:
        """Whether the witness still has every line that was ever written."""
        return self.seen.header is not None and self.seen.header.kind == WHOLE

    def exists(self) -> bool:
        """Say whether it was begun.

        Raises:
            LedgerUnavailable: If the place does not answer.
        """
        try:
            self._asked(self.read, self.seen.text, self.seen.end)
        except LedgerUnwitnessed:
            return False
        return True

    def unseen(self) -> Unseen:
        """Read the lines that were appended since `accept`.

        Raises:
            LedgerUnwitnessed: If it was never begun, or is lost.
            LedgerCorrupt: If it is damaged or another ledger's.
            LedgerUnavailable: If it cannot be read.
        """
        return self._asked(self._unseen)

    def append(self, lines: Sequence[Line]) -> None:
        """Append lines, durably.

        Raises:
            LedgerUnwitnessed: If it was never begun, or is lost.
            LedgerUnavailable: If they cannot be written; no step may start then.
        """
        seen, texts = self.seen, [line.to_text(self.ledger) for line in lines]
        end = self._asked(self.write, texts, seen.end)
        # They were just committed: unless others came before them, all were compared.
        if end is not None:
            seen.note(lines, end)

    def enrol(self, epoch: int, lines: Sequence[Line], *, anew: bool = False) -> None:
        """Begin the witness with lines for all that the ledger holds now.

        Args:
            epoch: The ledger's count of repairs.
            lines: The lines.
            anew: Begin after an older one, which stays.

        Raises:
            LedgerUnavailable: If it cannot be written.
            ConfigurationError: If there is one, without `anew`.
        """
        header = header_text(self.ledger, epoch, WHOLE)
        texts = [header, *(line.to_text(self.ledger) for line in lines)]
        there = not anew and self.exists()
        if there or not self._asked(self.begin, texts):
            msg = f"there is a witness of this ledger at {self.place} already"
            raise ConfigurationError(msg)

    def claim(self, source: str) -> str:
        """Return the ledger that governs a data source; this one, if none did yet.

        Raises:
            LedgerUnavailable: If the place does not answer.
        """
        return self._asked(self.first_claim, source)

    def accept(self, unseen: Unseen) -> None:
        """Remember that these lines are in the ledger."""
        unseen.seen.note(unseen.lines, unseen.end)

    def all_lines(self) -> Sequence[Line]:
        """Read everything; raises as `unseen`."""
        self.seen = Seen()
        return self.unseen().lines

    def _unseen(self) -> Unseen:
        seen = self.seen
        text, lines, end = self.read(seen.text, seen.end)
        if text != seen.text:
            seen = self.seen = Seen(text, Line.from_text(text, self.ledger))
        found = tuple([Line.from_text(line, self.ledger) for line in lines])
        return Unseen(seen, found, end)

    def _asked(self, ask: Callable[..., T], *arguments: Any) -> T:
        """Ask the place while no other thread does."""
        try:
            return self._alone.run(lambda: ask(*arguments), _THREAD_SECONDS)
        except FileNotFoundError:
            msg = (
                f"there is no witness at {self.place}, so nothing outside the ledger "
                f"{self.ledger} says that it forgot no charge. Restore it, or set "
                "DPFLOW_WITNESS to its place. On a new machine, and after checking "
                "what the ledger holds, run `dpflow ledger trust`."
            )
            raise LedgerUnwitnessed(msg, witness=self.place) from None
        except ValueError as error:
            msg = (
                f"the witness {self.place} is damaged: {error}. Restore it from a "
                "backup. Without one, move it away, check the ledger with `dpflow "
                "ledger verify`, and begin a new witness with `dpflow ledger trust`."
            )
            raise LedgerCorrupt(msg, witness=self.place) from None
        except (OSError, LedgerUnavailable) as error:
            text = str(getattr(error, "strerror", None) or error).rstrip(".?")
            msg = (
                f"the witness {self.place} does not answer: {text}. The step did not "
                "run; try again. DPFLOW_WITNESS names another place for it."
            )
            raise LedgerUnavailable(msg, witness=self.place) from error

    @abstractmethod
    def read(self, header: str | None, end: Any) -> Stored:
        """Return the newest lines after an end.

        Args:
            header: The one that was read before, if any.
            end: As returned last; None reads from the beginning.
        """

    @abstractmethod
    def write(self, texts: Sequence[str], end: Any) -> Any:
        """Append lines, durably; compact the witness if it grew large.

        Returns:
            Their end, if nothing came between the given end and them; else None.
        """

    @abstractmethod
    def begin(self, texts: Sequence[str]) -> bool:
        """Begin anew with a header and lines, durably, all or nothing.

        Returns:
            Whether this did it; False if the epoch had been begun.
        """

    @abstractmethod
    def first_claim(self, source: str) -> str:
        """Return the first ledger that claimed a source; this one, if none had."""


#: Makes the witness of a ledger with this id.
WitnessAt = Callable[[str], Witness]
