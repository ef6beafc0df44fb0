"""The entries that others appended, followed before anything is decided on them.

Whoever may write to the database can append an entry that lowers an account. So a
process follows each new entry: its hash, what its kind does, the gates of a grant and
the price of a settlement. It begins at its witness's newest line, or some entries
before the newest one, whichever is older; whoever wrote that line had followed all
before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from dpflow.exceptions import LedgerError
from dpflow.ledger.damage import UNREADABLE, damaged
from dpflow.ledger.decision.checks import check
from dpflow.ledger.entry import Entry, JournalError
from dpflow.ledger.journal import follow
from dpflow.ledger.model import keys_followed
from dpflow.ledger.state import State
from dpflow.ledger.storage.storage import Storage
from dpflow.ledger.storage.tables import Reading

if TYPE_CHECKING:
    from dpflow.ledger.witness.rollback_check import Watch

#: How many entries are followed at once, at most that many within a transaction.
MOST = 500
#: More keys than these are forgotten.
_REMEMBERED = 20_000


class TooFar(Exception):
    """More entries are new than are followed while others wait."""


class Trail:
    """Up to where a process has followed the journal.

    Args:
        storage: Of the ledger.
        watch: Tells where the witness's newest line is.
    """

    def __init__(self, storage: Storage, watch: Watch) -> None:
        self._storage, self._watch = storage, watch
        #: Number and hash of the newest entry that was followed.
        self._at: tuple[int, str] | None = None
        #: How many repairs the witness knew of then.
        self._epoch = 0
        #: The newest entries with some keys, as far as this process followed them.
        self._newest: dict[str, int] = {}

    def check(self, reading: Reading, state: State) -> None:
        """Check that no key that was loaded is as an older entry left it.

        Raises:
            LedgerCorrupt: If a tag is gone.
        """
        for key in state.asked & self._newest.keys():
            found, known = state.numbers.get(key, 0), self._newest[key]
            if found < known:
                what = f"{key} is as entry {found} left it, and {known} moved it since"
                raise damaged(what, reading.place)

    def _note(self, entries: Iterable[Entry]) -> None:
        if len(self._newest) > _REMEMBERED:
            self._newest.clear()
        for entry in entries:
            self._newest.update(dict.fromkeys(entry.rows, entry.number))

    def follow(self, reading: Reading, *, replaced: bool = False) -> None:
        """Follow what was appended since, within a transaction.

        Args:
            reading: Of the ledger.
            replaced: Begin anew where the ledger is another one than before. A step
                is refused then.

        Raises:
            LedgerCorrupt: If an entry does not follow from those before it.
            TooFar: If there is more than `MOST`; then `catch_up` outside of it.
        """
        head, at = reading.head(), self._at
        if head == at:
            return
        if replaced and at is not None:
            entry = reading.entries([at[0]]).get(at[0])
            if at[0] and (entry is None or entry.hash != at[1]):
                self._at = None
        if self._is_far(head[0]):
            raise TooFar
        self._follow(reading, MOST)

    def catch_up(self) -> None:
        """Follow, page by page, in transactions that keep nobody waiting."""
        left = True
        with self._storage.read() as reading:
            head = reading.head()[0]
            if self._is_far(head):
                start = max(min(head - MOST, self._watch.newest(head)), 0)
                self._at = start, reading.hash_of(start)
                self._epoch = self._watch.epoch
                self._newest.clear()
        while left:
            with self._storage.read() as reading:
                left = self._follow(reading, MOST)

    def _is_far(self, head: int) -> bool:
        """Say whether to begin anew: after many entries, and after a repair."""
        at = self._at
        return at is None or head > at[0] + MOST or self._epoch != self._watch.epoch

    def went_on(self, before: tuple[int, str], entries: Sequence[Entry]) -> None:
        """Note what this process appended itself."""
        if self._at == before and entries:
            self._at = entries[-1].number, entries[-1].hash
        self._note(entries)

    def _follow(self, reading: Reading, most: int) -> bool:
        """Follow some entries; return whether there are more."""
        assert self._at is not None
        number, told = self._at
        # Hashed onto the last one that was followed, which so is the same.
        entries = [*reading.after(number, number + most, told)]
        if not entries and reading.head() != self._at:
            what = f"entry {number} is another one than before, or is not there"
            raise damaged(what, reading.place)
        if not entries:
            return False
        try:
            follow_all(reading, entries)
        except JournalError as error:
            raise damaged(str(error), reading.place) from error
        self._at = entries[-1].number, entries[-1].hash
        self._note(entries)
        return reading.head()[0] > self._at[0]


def follow_all(reading: Reading, entries: Sequence[Entry]) -> None:
    """Follow entries that come one after another.

    Raises:
        JournalError: If one does not follow from those before it.
    """

    def needs(state: State) -> Iterator[str]:
        for entry in entries:
            yield from keys_followed(state, entry)

    state = reading.load(needs, before=entries[0].number)
    for entry in entries:
        try:
            check(state, entry)
            follow(state, entry)
        except (JournalError, *UNREADABLE) as error:
            if isinstance(error, LedgerError):
                raise
            what = f"entry {entry.number}: {error}"
            raise JournalError(what) from error
    named = {key: entry.number for entry in entries for key in entry.rows}
    newest = reading.ask("newest", names=[*named], before=entries[-1].number + 1)
    for key, number in newest:
        if number != named[key]:
            what = (
                f"{key} is as entry {number} left it, and {named[key]} moved it since"
            )
            raise JournalError(what)
