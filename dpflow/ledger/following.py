"""The entries that others appended, followed before anything is decided on them.

A login that may write to the database can append an entry that lowers an account. So a
process follows each new entry: its hash, what its kind does, the gates of a grant and
the price of a settlement. It begins at its witness's newest line, or some entries
before the newest one, whichever is older; the writer of that line had followed all
before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dpflow.interrupts import without_interrupts
from dpflow.ledger.decision.checks import check, check_windows
from dpflow.ledger.entry import Entry
from dpflow.ledger.journal import follow
from dpflow.ledger.model import keys_followed
from dpflow.ledger.state import State
from dpflow.ledger.storage.base import UNREADABLE, damaged
from dpflow.ledger.storage.storage import Storage
from dpflow.ledger.storage.tables import ENDLESS, Reading
from dpflow.ledger.witness.rollback_check import Watch

#: How many entries are followed in one go, at most that many within a transaction.
MOST = 500
#: More keys than these are forgotten.
_REMEMBERED = 20_000


class TooFar(Exception):
    """More entries are new than are followed while others wait."""


class Trail:
    """Up to where a process has followed the journal.

    Args:
        storage: Of the ledger.
        watch: Says where the witness's newest line is.
    """

    def __init__(self, storage: Storage, watch: Watch) -> None:
        self._storage, self._watch = storage, watch
        #: Number and hash of the newest entry that was followed.
        self._at: tuple[int, str] | None = None
        #: Whether this process followed all that was there when it looked last.
        self.is_complete = False
        #: How many repairs the witness knew of then.
        self._epoch = 0
        #: The newest entries with some keys, as far as this process followed them.
        self._newest: dict[str, int] = {}

    @property
    def keys(self) -> list[str]:
        """The key of the newest entry that was followed."""
        return [f"#{self._at[0]}"] if self._at and self._at[0] else []

    def goes_on(self, state: State) -> bool:
        """Say whether a ledger still has the newest entry that was followed."""
        entry = state.entries.get(self._at[0]) if self._at else None
        return entry is not None and self._at == (entry.number, entry.hash)

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
        self.is_complete = head == at
        if self.is_complete:
            return
        if replaced and at is not None:
            entry = reading.entries([at[0]]).get(at[0])
            if at[0] and (entry is None or entry.hash != at[1]):
                self._at = None
        if self._is_far(head[0]):
            if self._at is not None and self._epoch == self._watch.epoch:
                # An older copy with many further entries does not go on from it.
                next(reading.after(self._at[0], self._at[0] + 1, self._at[1]))
            raise TooFar
        self._follow(reading)
        self.is_complete = True

    def catch_up(self) -> None:
        """Follow, page by page, in transactions that hold up no step."""
        with self._storage.read() as reading:
            head = reading.head()[0]
            if self._is_far(head):
                start = max(min(head - MOST, self._watch.newest(head)), 0)
                self._at = start, reading.hash_of(start)
                self._epoch = self._watch.epoch
                self._newest.clear()
        more = True
        while more:
            with self._storage.read() as reading:
                more = self._follow(reading)

    def went_on(self, before: tuple[int, str], entries: Sequence[Entry]) -> None:
        """Note what this process appended itself."""
        if self._at == before and entries:
            self._at = entries[-1].number, entries[-1].hash
        self._note(entries)

    def _is_far(self, head: int) -> bool:
        """Say whether to begin anew: after many entries, and after a repair."""
        at = self._at
        return at is None or head > at[0] + MOST or self._epoch != self._watch.epoch

    def _follow(self, reading: Reading) -> bool:
        """Follow some entries; return whether there are more."""
        assert self._at is not None
        number, last_hash = self._at
        # Hashed onto the last one that was followed, which so is the same.
        entries = [*reading.after(number, number + MOST, last_hash)]
        if not entries:
            if reading.head() == self._at:
                return False
            what = f"entry {number} is another one than before, or is not there"
            raise damaged(what, reading.place)

        def needs(state: State) -> Iterator[str]:
            for entry in entries:
                yield from keys_followed(state, entry)

        entry = entries[0]
        try:
            state = reading.load(needs, before=entry.number)
            tags = {key: state.numbers.get(key) for key in state.loaded}
            self.check(reading, tags, until=number)
            for entry in entries:
                check(state, entry)
                check_windows(state, follow(state, entry))
        except without_interrupts(*UNREADABLE) as error:
            what = f"entry {entry.number}: {error}"
            raise damaged(what, reading.place) from error
        self._note(entries)
        keys = [*{key for entry in entries for key in entry.rows}]
        newest = reading.ask("newest", names=keys, before=entry.number + 1)
        self.check(reading, dict(newest))
        self._at = entry.number, entry.hash
        return reading.head()[0] > entry.number

    def _note(self, entries: Sequence[Entry]) -> None:
        if len(self._newest) > _REMEMBERED:
            self._newest.clear()
        for entry in entries:
            self._newest.update(dict.fromkeys(entry.rows, entry.number))

    def check(
        self,
        reading: Reading,
        numbers: Mapping[str, int | None],
        *,
        until: int = ENDLESS,
    ) -> None:
        """Compare the newest tags of keys with the entries that were followed.

        Args:
            reading: Of the ledger.
            numbers: The newest entry with each key, up to the last one of these.
            until: The number of that entry.

        Raises:
            LedgerCorrupt: If a tag is missing, so that a key has an older entry's row.
        """
        for key in numbers.keys() & self._newest.keys():
            tagged, followed = numbers[key] or 0, self._newest[key]
            if tagged < followed <= until:
                what = f"{key} is as entry {tagged} left it, and {followed} came since"
                raise damaged(what, reading.place)
