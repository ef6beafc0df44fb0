"""What tells a ledger from others, and what every storage says of one it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dpflow.exceptions import LedgerCorrupt, LedgerUnavailable
from dpflow.ledger.entry import first_hash


class Identity(NamedTuple):
    """What a ledger is told from others by; it never changes.

    Attributes:
        ledger: Its id.
        environment: The only one that it serves; None for any.
        created_at: A label.
    """

    ledger: str
    environment: str | None
    created_at: str

    @property
    def first(self) -> str:
        """The hash before that of the first entry."""
        return first_hash(self.ledger, VERSION, self.created_at, self.environment)


#: Of the tables and of the law: hash text, kinds, and what `journal.after` does. Each
#: change of them raises it; a ledger of another version is refused.
VERSION = 1


def another_version(place: str) -> LedgerUnavailable:
    """Make the error for a ledger whose tables another version made."""
    msg = (
        f"the ledger {place} has the tables of another version of dpflow, which this "
        "version cannot read. Use that version, or make a new ledger with `dpflow "
        "ledger init` and charge the prior spending there."
    )
    return LedgerUnavailable(msg, ledger=place)


def check_version(place: str, found: object) -> None:
    """Refuse a ledger of another version.

    Raises:
        LedgerCorrupt: If what it says is no version.
        LedgerUnavailable: If it is another one.
    """
    if type(found) is not int:
        msg = f"{place} is damaged: it says that it is of version {found!r:.40}"
        raise LedgerCorrupt(msg, ledger=place)
    if found != VERSION:
        raise another_version(place)


def identity_of(rows: Sequence[tuple[Any, ...]], place: str) -> Identity:
    """Read the identity of a ledger that this version may use."""
    if len(rows) != 1:
        msg = f"{place} is no ledger: its identity row is missing"
        raise LedgerCorrupt(msg, ledger=place)
    ((ledger, environment, created_at, version),) = rows
    check_version(place, version)
    return Identity(ledger, environment, created_at)


def another_ledger(place: str, opened: str, found: str) -> LedgerCorrupt:
    """Make the error for a ledger that was put in the place of the one in use."""
    msg = (
        f"the ledger {place} had id {opened} when it was opened and has {found} now: "
        "another ledger was put in its place. Restore the first."
    )
    return LedgerCorrupt(msg, ledger=place)


def read_only_error(place: str) -> LedgerUnavailable:
    """Make the error for a write where only reading was asked for."""
    msg = f"the ledger {place} was opened for reading only; nothing is charged"
    return LedgerUnavailable(msg, ledger=place)


def damaged(what: str, place: str) -> LedgerCorrupt:
    """Make the error for an entry that is not what it should be."""
    msg = (
        f"the ledger {place} is damaged, or someone edited it. {what[:1].upper()}"
        f"{what[1:]}. Nothing was charged. `dpflow ledger verify` shows all of it; "
        "restore a backup before any further step."
    )
    return LedgerCorrupt(msg, ledger=place)
