"""The ledger and its witness: compared before each decision, written after it.

The witness lies in a folder or in another PostgreSQL database.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path

from dpflow.config import NO_WITNESS, WITNESS_VARIABLE, expanded
from dpflow.exceptions import (
    ConfigurationError,
    LedgerError,
    LedgerRolledBack,
    LedgerUnwitnessed,
)
from dpflow.interrupts import without_interrupts
from dpflow.ledger.decision.terms import BY_ITSELF
from dpflow.ledger.entry import Entry
from dpflow.ledger.journal import KINDS
from dpflow.ledger.rows import split
from dpflow.ledger.state import State
from dpflow.ledger.storage.base import damaged, driver_needed, is_postgres
from dpflow.ledger.storage.memory import MEMORY
from dpflow.ledger.storage.storage import Storage
from dpflow.ledger.storage.tables import ENDLESS, Needs, Reading
from dpflow.ledger.witness.base import (
    Line,
    Witness,
    WitnessAt,
    compacted,
    currencies_of,
    line_of,
)
from dpflow.ledger.witness.file import FileWitness


def witness_at(setting: str | None, ledger_url: str) -> WitnessAt | None:
    """Return what makes the witness of a ledger from its id; None if it is waived.

    Nothing is opened yet.

    Args:
        setting: A folder, `postgresql://...` of another database than the ledger's,
            or "none"; None for DPFLOW_WITNESS, else the default of the kind of
            database.
        ledger_url: Where the ledger is.

    Raises:
        ConfigurationError: If no default would protect the ledger, or the setting
            names no place, one that will not do, or one whose library is not
            installed.
    """
    setting = setting or os.environ.get(WITNESS_VARIABLE, "").strip() or None
    shared = is_postgres(ledger_url)
    # A ledger in memory ends with its process, and no older copy of it can come back.
    if setting == NO_WITNESS or ledger_url.startswith(MEMORY):
        return None
    if setting is not None and is_postgres(setting):
        with driver_needed("a witness"):
            # The driver's import takes as long as all of dpflow's own.
            from dpflow.ledger.witness.postgres import PostgresWitness  # noqa: PLC0415
        return partial(PostgresWitness, setting, ledger_url if shared else None)
    if "://" in (setting or "") or (setting is None and shared):
        what = "is not set" if setting is None else f"names {setting.split(':')[0]}"
        msg = (
            f"the place of the witness {what}. Set `witness` in [tool.dpflow] of "
            "pyproject.toml, or DPFLOW_WITNESS, to a folder that all workers share and "
            "that is not restored together with the ledger, to postgresql://... of "
            f"another database, or to the word {NO_WITNESS!r} to do without one."
        )
        raise ConfigurationError(msg)
    if setting is not None and not setting.startswith("/"):
        setting = expanded(setting, "the witness")
    folder = _state_folder() if setting is None else Path(setting).absolute()
    return lambda ledger: FileWitness(folder / f"{ledger}.witness", ledger)


def _state_folder() -> Path:
    """Return the folder of witnesses in the user's state folder.

    Raises:
        ConfigurationError: If there is no home folder.
    """
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    # The specification says to ignore relative ones.
    if not state.is_absolute():
        try:
            state = Path.home() / ".local" / "state"
        except without_interrupts(RuntimeError) as error:
            msg = "the user has no home folder for the witness; set DPFLOW_WITNESS"
            raise ConfigurationError(msg) from error
    return state / "dpflow"


#: Entries that are read together.
AT_ONCE = 500
_NONE: Mapping[int, Entry] = {}


class Watch:
    """Keeps a ledger from deciding anything after it forgot a charge.

    Args:
        place: The ledger, for messages.
        witness: Its witness; None if that was waived.
    """

    def __init__(self, place: str, witness: Witness | None) -> None:
        self.place = place
        self.witness = witness

    @property
    def epoch(self) -> int:
        """How many repairs the ledger had when its witness was begun."""
        return 0 if self.witness is None else self.witness.epoch

    def load(self, reading: Reading, needs: Needs, *, guarded: bool = True) -> State:
        """Load keys, and check that the ledger holds what the witness has.

        Args:
            reading: Of the ledger; nothing was read yet.
            needs: Returns the keys.
            guarded: Whether to check anything.

        Raises:
            LedgerUnwitnessed: If there is no witness.
            LedgerRolledBack: If an entry is not there.
            LedgerCorrupt: If the witness is damaged, or an account does not stand where
                it was moved last: the newest entry that names it is hidden.
            LedgerUnavailable: If the witness cannot be read.
        """
        if self.witness is None or not guarded:
            return reading.load(needs)
        look, place = self.witness.unseen(), self.witness.place
        seen, epoch, lines = look.seen, self.witness.epoch, look.expected
        newest = [line.number for line in lines[-AT_ONCE:]]
        state, what = reading.load(needs, numbers=newest), ""
        if state.repairs < epoch:
            what = f"had {state.repairs} repairs, its witness {place} says {epoch}"
        elif lacking := missing(reading, lines, state.entries):
            kinds = ", ".join(sorted({line.kind for line in lacking}))
            what = f"lacks {len(lacking)} lines of its witness {place} ({kinds}); the "
            what += f"first is of entry {lacking[0].number}"
        if what:
            msg = (
                f"the ledger {self.place} {what}. A backup was restored, its -wal was "
                "lost, it is a copy, or a copy of it is in use. Stop that, and bring "
                "the right ledger back; if none has all entries, `dpflow ledger "
                "reconcile` shows the missing ones and charges them. No step runs "
                "until then."
            )
            raise LedgerRolledBack(msg, ledger=self.place, witness=place)
        if look.end != seen.end:
            self.witness.accept(look)
        for key in reading.tagged.keys() & seen.newest.keys():
            older, moved = reading.tagged[key] or 0, seen.newest[key]
            if older < moved:
                what = f"{key} is as entry {older} left it, {moved} moved it since"
                raise damaged(what, self.place)
        return state

    def problem(self, storage: Storage) -> str | None:
        """Return the reason that no step would run, for commands that only show."""
        try:
            with storage.read() as reading:
                self.load(reading, lambda _: ("repairs",))
        except LedgerError as error:
            return error.message
        return None

    def forgotten(self, reading: Reading, book: str) -> frozenset[tuple[str, str]]:
        """Return a book's terms that lack charges which were witnessed.

        Each is the account of its whole, with the currency of these.

        Raises:
            LedgerCorrupt: If the witness is damaged.
            LedgerUnavailable: If it cannot be read.
        """
        if self.witness is None or not self.witness.exists():
            return frozenset()
        lines = [line for line in self.witness.all_lines() if book in line.books]
        lost = currencies_of(missing(reading, lines))
        return frozenset(pair for pair in lost if split(pair[0])[0] == book)

    def record(self, entries: Iterable[Entry]) -> None:
        """Write entries that are committed to the witness, durably.

        A decision that charges nothing needs no witness: without one no step runs, and
        a witness that is enrolled anew has the decision.

        Raises:
            LedgerUnwitnessed: If there is no witness.
            LedgerUnavailable: If it cannot be written.
        """
        lines = [line_of(entry) for entry in entries if is_witnessed(entry)]
        if self.witness is None or not lines:
            return
        try:
            self.witness.append(lines)
        except LedgerUnwitnessed:
            if not all(line.decides for line in lines):
                raise


def is_witnessed(entry: Entry) -> bool:
    """Return whether the witness has a line for an entry.

    It has none for a term that a step opened automatically: the line of the first
    charge under the term covers it.
    """
    if entry.kind == "open":
        return entry.body["term"]["reason"] not in BY_ITSELF
    return KINDS[entry.kind].witnessed


def missing(
    reading: Reading, lines: Iterable[Line], loaded: Mapping[int, Entry] = _NONE
) -> list[Line]:
    """Return the lines whose entry the ledger does not hold with the same hash.

    Args:
        reading: Of the ledger.
        lines: The lines.
        loaded: Entries that it holds.
    """

    def away(lines: Iterable[Line], entries: Mapping[int, Entry]) -> list[Line]:
        return [
            line
            for line in lines
            if line.number not in entries or entries[line.number].hash != line.hash
        ]

    lacking, rest = list[Line](), iter(away(lines, loaded))
    while some := list(islice(rest, AT_ONCE)):
        lacking += away(some, reading.entries({line.number for line in some}))
    return lacking


# The lines that begin a witness


def begin(storage: Storage, witness: Witness, *, anew: bool = False) -> list[Line]:
    """Begin a witness with what the ledger holds now.

    Args:
        storage: Of the ledger.
        witness: Its witness.
        anew: Begin after an older one, which stays.

    Returns:
        The lines.

    Raises:
        ConfigurationError: If there is one, without `anew`.
    """
    with storage.read() as reading:
        head = reading.head()[0]
        repairs = reading.load(lambda _: ("repairs",)).repairs
    lines = compacted(lines_of(storage, until=head))
    witness.enrol(repairs, lines, anew=anew)
    # Entries since then may be in the older witness alone.
    if since := [*lines_of(storage, head)]:
        witness.append(since)
    return lines


def lines_of(storage: Storage, after: int = 0, until: int = ENDLESS) -> Iterator[Line]:
    """Yield the lines of a journal's entries after one, oldest first.

    Each page is a transaction of its own.
    """
    more = True
    while more:
        with storage.read() as reading:
            page = [*reading.after(after, min(until, after + AT_ONCE))]
        yield from (line_of(entry) for entry in page if is_witnessed(entry))
        more = len(page) == AT_ONCE
        after += len(page)
