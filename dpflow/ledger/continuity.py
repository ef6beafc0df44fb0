"""The newest entry that a process saw: the ledger still has it.

So an open process notices an older copy in the ledger's place without a witness, too.
"""

from __future__ import annotations

from dpflow.ledger.state import State
from dpflow.ledger.storage.base import damaged
from dpflow.ledger.storage.tables import Reading

#: How many entries are compared with their tags when a process begins.
_RECENT = 500


class NewestEntry:
    """The newest entry that a process saw.

    Args:
        place: The ledger, for messages.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        #: How many repairs the ledger had, and number and hash of the entry.
        self._seen: tuple[int, int, str] | None = None

    @property
    def keys(self) -> list[str]:
        """Keys that `check` reads."""
        return ["repairs", *([f"#{self._seen[1]}"] if self._seen else [])]

    def check(self, reading: Reading, state: State) -> None:
        """Refuse a ledger that lacks the entry, and remember its newest one.

        A repaired ledger has another history, and one repair more. A process that
        begins compares the newest entries with their tags: a page that a disk lost
        would hide one.

        Raises:
            LedgerCorrupt: If the entry is another one or is not there, or if a tag is
                missing.
        """
        if self._seen is None:
            recent = state.head[0] - _RECENT
            for key, number in reading.ask("untagged", after=recent):
                what = f"no tag says that entry {number} names {key}"
                raise damaged(what, self._place)
        else:
            repairs, number, digest = self._seen
            entry = state.entries.get(number)
            is_here = number == 0 or (entry is not None and entry.hash == digest)
            if state.repairs < repairs or (state.repairs == repairs and not is_here):
                what = f"entry {number} is another one than before, or is not there"
                raise damaged(what, self._place)
        self.note(state)

    def note(self, state: State) -> None:
        """Remember the newest entry of a state; an older one changes nothing."""
        newest = (state.repairs, *state.head)
        self._seen = max(self._seen or newest, newest)
