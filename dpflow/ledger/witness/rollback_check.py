"""The ledger against its witness: before each decision, and after each grant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from operator import add
from typing import NamedTuple

from dpflow.exceptions import (
    ConfigurationError,
    LedgerError,
    LedgerRolledBack,
    LedgerUnwitnessed,
)
from dpflow.ledger.decision.terms import BY_ITSELF
from dpflow.ledger.entry import Entry
from dpflow.ledger.journal import KINDS
from dpflow.ledger.model import Keys, State
from dpflow.ledger.rows import Account, epoch_of
from dpflow.ledger.storage.base import Place, damaged
from dpflow.ledger.storage.transaction import Reading, Storage
from dpflow.ledger.witness.base import Unseen, Witness
from dpflow.ledger.witness.lines import HEAD, Line, line_of
from dpflow.policy import Policy

#: More lines than these are compared by questions of their own, so many at once.
_AT_ONCE = 500


class Look(NamedTuple):
    """What the witness says that the ledger has to hold.

    Attributes:
        unseen: What was not compared with the ledger yet.
        lines: This, and the newest lines of some books.
        places: The entries to load with what is needed anyway; none if they are many.
    """

    unseen: Unseen
    lines: Sequence[Line]
    places: tuple[Place, ...]


class Watch:
    """Keeps a ledger from deciding anything after it forgot a charge.

    Args:
        place: The ledger, for messages.
        witness: What remembers its charges; None if that was waived.
    """

    def __init__(self, place: str, witness: Witness | None) -> None:
        self.place = place
        self.witness = witness
        #: Sources that this ledger governs, which never changes.
        self._governed: set[str] = set()

    def look(self, books: Iterable[str] = ()) -> Look | None:
        """Read what the ledger has to hold, before it is asked; None if it is waived.

        Also the newest lines again, for a ledger's file can be overwritten while it is
        open.

        Raises:
            LedgerUnwitnessed: If there is no witness.
            LedgerCorrupt: If the witness is damaged.
            LedgerUnavailable: If it cannot be read.
        """
        if self.witness is None:
            return None
        unseen = self.witness.unseen()
        seen = unseen.seen
        again = [*map(seen.newest.get, books), seen.latest]
        lines = [*unseen.lines, *filter(None, again)]
        places = {(line.book, line.number): None for line in lines[: _AT_ONCE + 1]}
        return Look(unseen, lines, () if len(lines) > _AT_ONCE else tuple(places))

    def check(self, look: Look | None, reading: Reading, state: State) -> None:
        """Check that the ledger holds what the witness was told.

        Args:
            look: What that is.
            reading: Of the ledger, begun after the look.
            state: Loaded from it, with the entries at the look's places.

        Raises:
            LedgerRolledBack: If something is not there.
            LedgerCorrupt: If an account does not stand where it was moved last: its
                row then agrees with an entry of its own, only not with the newest one.
        """
        witness = self.witness
        if witness is None or look is None:
            return
        epoch, unseen, held = epoch_of(state.rows), look.unseen, state.entries
        header = unseen.seen.header
        if header is not None and epoch < header.epoch:
            raise self._older(epoch, witness)
        unsure = [
            line
            for line in look.lines
            if (entry := held.get((line.book, line.number))) is None
            or entry.hash != line.hash
        ]
        gone = unsure and missing(reading, unsure)
        if gone:
            raise self._rolled_back(reading, gone, witness)
        if unseen.end != unseen.seen.end:
            witness.accept(unseen)
        told = unseen.seen.accounts
        for row in state.rows.values():
            if not isinstance(row, Account):
                continue
            line = told.get(row.id)
            if line is not None and row.id in line.amounts and row.entry < line.number:
                what = (
                    f"account {row.id!r} of the ledger {self.place} is as entry "
                    f"{row.entry} left it, and entry {line.number} moved it since"
                )
                raise damaged(what, self.place)

    def governors(self, policies: Iterable[Policy]) -> Mapping[str, str]:
        """Return which other ledgers govern the sources of some policies, by source.

        Two ledgers on the same data would each promise its own budget, and together
        lose the sum. The first ledger that used a source governs it; the place of the
        witness remembers which, and without a witness nothing is noticed.

        Raises:
            LedgerUnavailable: If the place of the witness does not answer.
        """
        found: dict[str, str] = {}
        witness = self.witness
        for source in {policy.source for policy in policies} - self._governed:
            if source is None or witness is None:
                continue
            governor = witness.claim(source)
            if governor == witness.ledger:
                self._governed.add(source)
            else:
                found[source] = governor
        return found

    def check_sources(
        self, policies: Iterable[Policy], others: Mapping[str, str]
    ) -> None:
        """Refuse a step on a source that another ledger governs.

        Args:
            policies: Of the step's datasets.
            others: Which other ledgers govern their sources.

        Raises:
            ConfigurationError: If another ledger governs one of the sources.
        """
        for policy in policies:
            governor = others.get(policy.source or "")
            if governor is not None and self.witness is not None:
                msg = (
                    f"ledger {governor} governs the data source {policy.source!r} of "
                    f"dataset {policy.dataset!r}, according to the witness "
                    f"{self.witness.place}; this is ledger {self.witness.ledger}. Two "
                    "ledgers on the same data would lose more than either promises. "
                    "Set DPFLOW_LEDGER_URL to the governing ledger; the step did not "
                    "run."
                )
                raise ConfigurationError(msg)

    def problem(self, storage: Storage) -> str | None:
        """Say why no step would run, for those who only look at the ledger."""
        try:
            look = self.look()
            with storage.read() as reading:
                places = () if look is None else look.places
                self.check(look, reading, reading.load(Keys(entries=places)))
        except LedgerError as error:
            return error.message
        return None

    def forgotten(self, reading: Reading, book: str) -> tuple[str, ...]:
        """Return a book's accounts that lack a charge which was witnessed.

        Raises:
            LedgerCorrupt: If the witness is damaged.
            LedgerUnavailable: If it cannot be read.
        """
        lines: Iterable[Line] = ()
        if self.witness is not None:
            with suppress(LedgerUnwitnessed):
                lines = self.witness.all_lines()
        gone = missing(reading, [line for line in lines if line.book == book])
        found = {
            account: None
            for line in gone
            for account, used in line.used.items()
            if line.charge is not None or any(used)
        }
        return tuple(found)

    def tell(self, entries: Iterable[Entry]) -> None:
        """Tell the witness, durably, of entries that are committed.

        Decisions that charge nothing are told where there is a witness. Where it is
        missing no step runs anyway, and who enrols it anew tells it of them.

        Raises:
            LedgerUnwitnessed: If there is no witness.
            LedgerUnavailable: If it cannot be written.
        """
        if self.witness is None:
            return
        lines = [line_of(entry) for entry in entries if is_told(entry)]
        if not lines:
            return
        try:
            self.witness.append(lines)
        except LedgerUnwitnessed:
            if not all(line.decides for line in lines):
                raise

    def _rolled_back(
        self, reading: Reading, gone: Sequence[Line], witness: Witness
    ) -> LedgerRolledBack:
        first, entries = gone[0], {line.place for line in gone}
        newest = reading.load(Keys(books=(first.book,))).book(first.book).number
        held = f"ends at entry {newest}" if newest else "has no such journal"
        if newest >= first.number:
            held = "has another entry there"
        many = "" if len(entries) == 1 else "s"
        what = f"charge{many}"
        if all(line.decides for line in gone):
            what = f"freeze{many} or applied polic{'ies' if many else 'y'}"
        elif all(line.kind == "checkpoint" for line in gone):
            what = f"signed checkpoint{many}"
        msg = (
            f"the ledger {self.place} lacks {len(entries)} {what} that its witness "
            f"{witness.place} has seen: the first is entry {first.number} of the "
            f"journal of {first.book!r}, and the ledger {held}. A "
            "backup was restored, its -wal was lost, it is a copy, or a copy of it is "
            "in use. Stop that, and bring the right ledger back; if none has it all, "
            "`dpflow ledger reconcile` shows what is missing and makes it good. "
            "No step runs until then."
        )
        account = next(iter(first.used), first.book)
        return LedgerRolledBack(
            msg,
            ledger=self.place,
            witness=witness.place,
            account=account,
            seq=first.number,
        )

    def _older(self, epoch: int, witness: Witness) -> LedgerRolledBack:
        msg = (
            f"the ledger {self.place} was repaired {epoch} times, but its witness "
            f"{witness.place} knows of {witness.epoch} repairs: this is a copy from "
            "before one. Bring the repaired ledger back, or run `dpflow ledger "
            "reconcile`. No step runs until then."
        )
        return LedgerRolledBack(msg, ledger=self.place, witness=witness.place)


def is_told(entry: Entry) -> bool:
    """Say whether the witness hears of an entry.

    Not of a term that a step opened by itself: nobody decided it, and the line of the
    first charge under it covers it.
    """
    if entry.kind == "open":
        return entry.body["term"]["reason"] not in BY_ITSELF
    return KINDS[entry.kind].told


def missing(reading: Reading, lines: Iterable[Line]) -> list[Line]:
    """Return the lines whose entry the ledger does not hold with the same hash.

    Args:
        reading: Of the ledger.
        lines: What was told, oldest first.
    """
    rest = iter(lines)
    gone: list[Line] = []
    while some := list(islice(rest, _AT_ONCE)):
        found = reading.entries({line.place for line in some})
        for line in some:
            entry = found.get(line.place)
            if entry is None or entry.hash != line.hash:
                gone.append(line)
    return gone


# The lines that begin a witness


def beginning(reading: Reading) -> list[Line]:
    """Return all the lines that begin a witness: heads of books, and decisions.

    The newest entry of a book does not tell whether a decision was before it.
    """
    found = []
    for book in reading.books():
        head = head_of(reading, book)
        found += [head, *_decisions(reading, book, head.number)]
    return found


def head_of(reading: Reading, book: str) -> Line:
    """Return the line that stands for all of a book: what each account has used."""
    state = reading.load(Keys(whole=(book,)))
    used = {
        row.id: tuple(map(add, row.settled, row.held))
        for row in state.rows.values()
        if isinstance(row, Account)
    }
    row = state.book(book)
    used.setdefault(f"{book}#{row.terms}", ())
    return Line(book, row.number, row.hash, HEAD, None, used, {})


def _decisions(reading: Reading, book: str, head: int) -> Iterator[Line]:
    """Yield the newest entry of each kind that closed something, or signed it."""
    frozen = reading.load(Keys(books=(book,))).book(book).frozen is not None
    wanted = {"tighten", "checkpoint", *(["freeze"] if frozen else [])}
    for entry in reading.rare(book):
        if entry.kind in wanted and entry.number <= head:
            wanted.remove(entry.kind)
            yield line_of(entry)
        if not wanted:
            return


def begin_anew(
    storage: Storage, witness: Witness, epoch: int, begun: Sequence[Line]
) -> None:
    """Begin a witness after an older one.

    Args:
        storage: Of the ledger.
        witness: Its witness.
        epoch: The ledger's count of repairs.
        begun: The `beginning`, as it was when the repair was committed.
    """
    witness.enrol(epoch, begun, anew=True)
    known = {(line.place, line.kind) for line in begun}
    # What was charged since that commit may have been told to the old one.
    with storage.read() as reading:
        since = [
            line for line in beginning(reading) if (line.place, line.kind) not in known
        ]
    if since:
        witness.append(since)
