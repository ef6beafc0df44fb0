"""The witness of a ledger: a line for each entry that it has to remember.

A line begins with the entry's number and hash; canonical JSON and a checksum that is
bound to the ledger's id follow. The first line is a header of the same form. Each
repair of a ledger begins its witness anew, with a header and lines for all that the
ledger holds. Each line is compared with the ledger once by each process.
"""

from __future__ import annotations

import json
import uuid
import zlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import Any, NamedTuple, TypeVar

from dpflow.exceptions import (
    ConfigurationError,
    LedgerCorrupt,
    LedgerUnavailable,
    LedgerUnwitnessed,
)
from dpflow.interrupts import suppress, without_interrupts
from dpflow.ledger.entry import Entry, Sums, canonical
from dpflow.ledger.journal import KINDS
from dpflow.ledger.rows import account_key, split, sums_of_lists
from dpflow.locks import TurnQueue, reason_of

T = TypeVar("T")

#: How long a thread waits for the others of its process.
_THREAD_SECONDS = 60.0


#: What each checksum covers besides its line and the ledger's id.
_VERSION = "dpflow-witness 6"
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
        currencies: By the account of a term's whole, a digest of what its amounts mean.
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
    currencies: Mapping[str, str] = {}

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
        kind, charge, used, amounts, run, books, *rest = json.loads(facts)
        sums = sums_of_lists(used), sums_of_lists(amounts)
        return cls(int(number), digest, kind, charge, *sums, run, tuple(books), *rest)


def _sealed(ledger: str, content: str) -> str:
    """Add the checksum to the content of a line."""
    checksum = zlib.crc32(f"{_VERSION} {ledger} {content}".encode())
    return f"{content} {checksum:08x}"


def line_of(entry: Entry) -> Line:
    """Return the witness's line of an entry."""
    rows, names, body = entry.rows, entry.amounts, entry.body
    used = {n: tuple(map(add, *rows[account_key(n)][1:3])) for n in names}
    if (term := body.get("term")) is not None:
        # Nothing was used under it, but the line says which term it is.
        used[f"{body['book']}#{term['number']}"] = ()
    place = entry.number, entry.hash, entry.kind, entry.charge
    run, flow = body.get("flow_run"), body.get("flow")
    currencies = body.get("currency", {})
    return Line(*place, used, entry.amounts, run, tuple(entry.books), flow, currencies)


def currencies_of(lines: Iterable[Line]) -> frozenset[tuple[str, str]]:
    """Return the terms that lines charge, each with its currency.

    The newest term, which has no number here, governs the parts of windows.
    """
    pairs = set[tuple[str, str]]()
    for line in lines:
        if line.charge is not None or any(map(any, line.used.values())):
            shared = {split(name)[0] for name in line.used if not split(name)[1]}
            for whole, currency in line.currencies.items():
                book = split(whole)[0]
                pairs |= {(whole, currency)}
                pairs |= {(f"{book}#", currency)} if book in shared else set()
    return frozenset(pairs)


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


# The lines of one place


class End(NamedTuple):
    """Up to where a witness was read.

    Attributes:
        mark: Of the beginning: another one is a witness that was begun anew.
        at: Bytes or rows.
        lines: How many it has since it was begun or compacted.
        signature: Of a file that was read whole.
    """

    mark: Any
    at: int
    lines: int
    signature: tuple[int, ...] | None = None


#: New lines, a header first if the witness was begun anew, whether it was; their end.
Stored = tuple[Sequence[str], bool, End]
#: Returns a header and lines for the old ones; None if there are none.
Change = Callable[[Sequence[str] | None], list[str]]


@dataclass(slots=True)
class Seen:
    """Lines since one header that were compared with the ledger.

    Attributes:
        mark: Of the header, as `End` has it.
        newest: By the key of an account, the number of the newest line about its use.
        latest: The line that was written last.
    """

    mark: Any = None
    epoch: int = 0
    end: End | None = None
    newest: dict[str, int] = field(default_factory=dict)
    latest: Line | None = None

    def note(self, lines: Iterable[Line], end: End) -> None:
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
    """

    seen: Seen
    lines: Sequence[Line]
    end: End

    @property
    def expected(self) -> list[Line]:
        """These lines and the newest before them, which the ledger has to hold.

        A ledger's file can be overwritten while it is open.
        """
        return [*self.lines, *filter(None, [self.seen.latest])]


class Witness(ABC):
    """The witness of one ledger, used by one thread at a time.

    Each place implements the abstract methods. They raise FileNotFoundError if the
    witness was never begun or is lost, ValueError if it is damaged, and any other
    OSError or LedgerUnavailable if the place does not answer or is not durable; texts
    hold no secret.

    Args:
        place: Where it is, for messages; without any secret.
        ledger: Id of the ledger.
    """

    def __init__(self, place: str, ledger: str) -> None:
        self.place = place
        self.ledger = ledger
        #: Replaced when there is another header.
        self.seen = Seen()
        self._alone = TurnQueue()

    @property
    def epoch(self) -> int:
        """How many repairs the ledger had when the witness was begun."""
        return self.seen.epoch

    def exists(self) -> bool:
        """Say whether it was begun.

        Raises:
            LedgerUnavailable: If the place does not answer.
        """
        with suppress(LedgerUnwitnessed):
            self._asked(self.read, self.seen.end)
            return True
        return False

    def unseen(self) -> Unseen:
        """Read the lines that were appended since `accept`.

        Raises:
            LedgerUnwitnessed: If it was never begun, or is lost.
            LedgerCorrupt: If it is damaged or another ledger's.
            LedgerUnavailable: If it cannot be read.
        """
        return self._asked(self._unseen)

    def accept(self, unseen: Unseen) -> None:
        """Remember that these lines are in the ledger."""
        unseen.seen.note(unseen.lines, unseen.end)

    def all_lines(self) -> Sequence[Line]:
        """Read everything; raises as `unseen`."""
        self.seen = Seen()
        return self.unseen().lines

    def append(self, lines: Sequence[Line]) -> None:
        """Append lines, durably; compact the witness if it grew long.

        Raises:
            LedgerUnwitnessed: If it was never begun, or is lost.
            LedgerUnavailable: If they cannot be written; no step may start then.
        """
        seen, texts = self.seen, [line.to_text(self.ledger) for line in lines]
        end = self._asked(self.write, texts, seen.end)
        # They were just committed: unless others came before them, all were compared.
        if end is None:
            return
        seen.note(lines, end)
        if end.lines > 2 * (KEPT + len(seen.newest)):
            # After an error it is as before, and damage is for the next reader.
            with suppress(LedgerUnwitnessed, LedgerUnavailable, LedgerCorrupt):
                self._asked(self.rewrite, self._fewer)

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

        def begin(old: Sequence[str] | None) -> list[str]:
            if old is not None and not anew:
                msg = f"there is a witness of this ledger at {self.place} already"
                raise ConfigurationError(msg)
            return self._texts(header_of(epoch), lines)

        self._asked(self.rewrite, begin)

    def _texts(self, header: Line, lines: Iterable[Line]) -> list[str]:
        return [line.to_text(self.ledger) for line in (header, *lines)]

    def _fewer(self, old: Sequence[str] | None) -> list[str]:
        header, *lines = [Line.from_text(text, self.ledger) for text in old or ("",)]
        return self._texts(header_of(header.number), compacted(lines))

    def _unseen(self) -> Unseen:
        texts, anew, end = self.read(self.seen.end)
        lines = [Line.from_text(text, self.ledger) for text in texts]
        if anew:
            header, *lines = lines or [Line.from_text("", self.ledger)]
            if end.mark != self.seen.mark:
                self.seen = Seen(end.mark, header.number)
        return Unseen(self.seen, tuple(lines), end)

    def _asked(self, ask: Callable[..., T], *arguments: Any) -> T:
        """Ask the place while no other thread does."""
        try:
            return self._alone.run(ask, _THREAD_SECONDS, *arguments)
        except without_interrupts(FileNotFoundError):
            msg = (
                f"there is no witness at {self.place}, so nothing outside the ledger "
                f"{self.ledger} says that it forgot no charge. Restore it, or set "
                "DPFLOW_WITNESS to its place. On a new machine, and after checking "
                "what the ledger holds, run `dpflow ledger trust`."
            )
            raise LedgerUnwitnessed(msg, witness=self.place) from None
        except without_interrupts(ValueError) as error:
            msg = (
                f"the witness {self.place} is damaged: {error}. Restore it from a "
                "backup. Without one, move it away, check the ledger with `dpflow "
                "ledger verify`, and begin a new witness with `dpflow ledger trust`."
            )
            raise LedgerCorrupt(msg, witness=self.place) from None
        except without_interrupts(OSError, LedgerUnavailable) as error:
            why = reason_of(error) if isinstance(error, OSError) else str(error)
            text = why.rstrip(".?")
            msg = (
                f"the witness {self.place} does not answer: {text}. The step did not "
                "run; try again. DPFLOW_WITNESS names another place for it."
            )
            raise LedgerUnavailable(msg, witness=self.place) from error

    @abstractmethod
    def read(self, end: End | None) -> Stored:
        """Return the lines after an end; all of them if it was begun anew since."""

    @abstractmethod
    def write(self, texts: Sequence[str], end: End | None) -> End | None:
        """Append lines, durably.

        Returns:
            Their end, if nothing came between the given end and them; else None.
        """

    @abstractmethod
    def rewrite(self, change: Change) -> None:
        """Replace the header and all lines, durably, all or nothing.

        Those of another epoch stay, too.
        """


#: Makes the witness of a ledger with this id.
WitnessAt = Callable[[str], Witness]
