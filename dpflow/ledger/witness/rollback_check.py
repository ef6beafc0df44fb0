"""The ledger against its witness: before each decision, and after each grant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from dpflow.exceptions import (
    ConfigurationError,
    LedgerError,
    LedgerRolledBack,
    LedgerUnwitnessed,
)
from dpflow.ledger.damage import damaged
from dpflow.ledger.decision.terms import BY_ITSELF
from dpflow.ledger.entry import Entry
from dpflow.ledger.journal import KINDS
from dpflow.ledger.state import State
from dpflow.ledger.storage.storage import Storage
from dpflow.ledger.storage.tables import Reading
from dpflow.ledger.witness.base import Unseen, Witness
from dpflow.ledger.witness.lines import HEAD, Line, line_of
from dpflow.policy import Policy

#: More lines than these are compared by questions of their own, so many at once.
_AT_ONCE = 500


class Look(NamedTuple):
    """What the witness says that the ledger has to hold.

    Attributes:
        unseen: What was not compared with the ledger yet.
        lines: This, and the newest line.
        numbers: The entries to load with what is needed anyway; none if they are many.
    """

    unseen: Unseen
    lines: Sequence[Line]
    numbers: Sequence[int]


class Watch:
    """Keeps a ledger from deciding anything after it forgot a charge.

    Args:
        place: The ledger, for messages.
        witness: What remembers its charges; None if that was waived.
    """

    def __init__(self, place: str, witness: Witness | None) -> None:
        self.place = place
        self.witness = witness
        #: By source, the ledger that governs it, which never changes.
        self._governors: dict[str | None, str] = {}

    def look(self) -> Look | None:
        """Read what the ledger has to hold, before it is asked; None if it is waived.

        Also the newest line again, for a ledger's file can be overwritten while it is
        open.

        Raises:
            LedgerUnwitnessed: If there is no witness.
            LedgerCorrupt: If the witness is damaged.
            LedgerUnavailable: If it cannot be read.
        """
        if self.witness is None:
            return None
        unseen = self.witness.unseen()
        lines = [*unseen.lines, *filter(None, [unseen.seen.latest])]
        numbers = [] if len(lines) > _AT_ONCE else [line.number for line in lines]
        return Look(unseen, lines, numbers)

    @property
    def epoch(self) -> int:
        """How many repairs the ledger had when its witness was begun."""
        return 0 if self.witness is None else self.witness.epoch

    def newest(self, head: int) -> int:
        """Return the number of the witness's newest line; the head without one."""
        with suppress(LedgerError):
            look = self.look()
            if look is not None and look.lines:
                return max(line.number for line in look.lines)
        return head

    def check(self, look: Look | None, reading: Reading, state: State) -> None:
        """Check that the ledger holds what the witness was told.

        Args:
            look: What that is.
            reading: Of the ledger, begun after the look.
            state: Loaded from it, with the entries of the look.

        Raises:
            LedgerRolledBack: If something is not there.
            LedgerCorrupt: If an account does not stand where it was moved last: the
                newest entry that names it is hidden.
        """
        witness = self.witness
        if witness is None or look is None:
            return
        unseen, held = look.unseen, state.entries
        header = unseen.seen.header
        if header is not None and state.repairs < header.epoch:
            raise self._older(state.repairs, witness)
        unsure = [
            line
            for line in look.lines
            if (entry := held.get(line.number)) is None or entry.hash != line.hash
        ]
        gone = unsure and missing(reading, unsure)
        if gone:
            raise self._rolled_back(reading, gone, witness)
        if unseen.end != unseen.seen.end:
            witness.accept(unseen)
        told = unseen.seen.accounts
        for key in state.asked:
            line, number = (
                told.get(key.removeprefix("account/")),
                state.numbers.get(key, 0),
            )
            # A term's line names its account and posts nothing.
            if line is not None and number < line.number and line.used.get(key[8:]):
                what = (
                    f"account {key[8:]!r} is as entry {number} left it, and entry "
                    f"{line.number} moved it since"
                )
                raise damaged(what, self.place)

    def claim_sources(self, policies: Iterable[Policy]) -> None:
        """Ask the witness which ledgers govern the sources of some policies.

        Two ledgers on the same data would each promise its own budget, and together
        lose the sum. The first ledger that used a source governs it; the place of the
        witness remembers which. Without a witness nothing is noticed.

        Raises:
            LedgerUnavailable: If the place of the witness does not answer.
        """
        if self.witness is None:
            return
        for source in {policy.source for policy in policies} - self._governors.keys():
            if source is not None:
                self._governors[source] = self.witness.claim(source)

    def check_sources(self, policies: Iterable[Policy]) -> None:
        """Refuse a step on a source that another ledger governs.

        Raises:
            ConfigurationError: If another ledger governs a source that was claimed.
        """
        witness = self.witness
        for policy in policies:
            governor = self._governors.get(policy.source)
            if witness is not None and governor not in (None, witness.ledger):
                msg = (
                    f"ledger {governor} governs the data source {policy.source!r} of "
                    f"dataset {policy.dataset!r}, according to the witness "
                    f"{witness.place}; this is ledger {witness.ledger}. Two ledgers on "
                    "the same data would lose more than either promises. Set "
                    "DPFLOW_LEDGER_URL to the governing ledger; the step did not run."
                )
                raise ConfigurationError(msg)

    def problem(self, storage: Storage) -> str | None:
        """Say why no step would run, for those who only look at the ledger."""
        try:
            look = self.look()
            numbers = () if look is None else look.numbers
            with storage.read() as reading:
                state = reading.load(lambda _: ("repairs",), numbers=numbers)
                self.check(look, reading, state)
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
        gone = missing(reading, [line for line in lines if book in line.books])
        found = {
            account: None
            for line in gone
            for account, used in line.used.items()
            if (line.charge is not None or any(used)) and account.startswith(f"{book}#")
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
        first, entries = gone[0], {line.number for line in gone}
        newest = reading.head()[0]
        held = f"ends at entry {newest}" if newest else "has no entry"
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
            f"{witness.place} has seen: the first is entry {first.number}, and the "
            f"ledger {held}. A "
            "backup was restored, its -wal was lost, it is a copy, or a copy of it is "
            "in use. Stop that, and bring the right ledger back; if none has it all, "
            "`dpflow ledger reconcile` shows what is missing and makes it good. "
            "No step runs until then."
        )
        return LedgerRolledBack(
            msg,
            ledger=self.place,
            witness=witness.place,
            account=next(iter(first.used), ""),
            seq=first.number,
        )

    def _older(self, repairs: int, witness: Witness) -> LedgerRolledBack:
        msg = (
            f"the ledger {self.place} was repaired {repairs} times, but its witness "
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
        found = reading.entries({line.number for line in some})
        for line in some:
            entry = found.get(line.number)
            if entry is None or entry.hash != line.hash:
                gone.append(line)
    return gone


# The lines that begin a witness


def beginning(reading: Reading) -> list[Line]:
    """Return all the lines that begin a witness, oldest first.

    The newest entry of each account says what it has used; the newest entry of all,
    where the journal ends; and no account tells of a decision.
    """
    head = reading.head()[0]
    used: dict[int, list[str]] = {head: []} if head else {}
    names, decided = iter(reading.names("account/")), [*_decisions(reading)]
    while some := list(islice(names, _AT_ONCE)):
        for key, number in _numbers(reading, some).items():
            used.setdefault(number, []).append(key.removeprefix("account/"))
    heads = (_head(reading, used, some) for some in _chunks(sorted(used)))
    lines = [*(line for some in heads for line in some), *map(line_of, decided)]
    return sorted(lines, key=lambda line: line.number)


def _numbers(reading: Reading, keys: Sequence[str]) -> Mapping[str, int]:
    return reading.load(lambda _: keys).numbers


def _chunks(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(numbers), _AT_ONCE):
        yield numbers[start : start + _AT_ONCE]


def _head(
    reading: Reading, used: Mapping[int, Sequence[str]], numbers: Sequence[int]
) -> Iterator[Line]:
    """Yield lines for what accounts had used after their newest entries."""
    for number, entry in sorted(reading.entries(numbers).items()):
        told = line_of(entry).used
        mine = {name: told[name] for name in used[number]}
        books = tuple(dict.fromkeys(name.partition("#")[0] for name in mine))
        yield Line(number, entry.hash, HEAD, None, mine, {}, None, books)


def _decisions(reading: Reading) -> Iterator[Entry]:
    """Yield the newest tightening, freeze and checkpoint that still hold."""
    tightened: set[str] = set()
    books = reading.books()
    state = reading.load(lambda _: [f"book/{book}" for book in books])
    frozen = {book for book in books if state.book(book).frozen is not None}
    signed = False
    for entry in reading.rare("tighten", "freeze", "checkpoint"):
        book = str(entry.body.get("book"))
        if entry.kind == "checkpoint":
            if not signed:
                yield entry
            signed = True
        elif entry.kind == "freeze":
            if book in frozen:
                yield entry
            frozen.discard(book)
        elif book not in tightened:
            tightened.add(book)
            yield entry


def begin_anew(
    storage: Storage, witness: Witness, repairs: int, begun: Sequence[Line]
) -> None:
    """Begin a witness after an older one.

    Args:
        storage: Of the ledger.
        witness: Its witness.
        repairs: The ledger's count of repairs.
        begun: The `beginning`, as it was when the repair was committed.
    """
    witness.enrol(repairs, begun, anew=True)
    known = {(line.number, line.kind) for line in begun}
    # What was charged since that commit may have been told to the old one.
    with storage.read() as reading:
        since = [
            line for line in beginning(reading) if (line.number, line.kind) not in known
        ]
    if since:
        witness.append(since)
