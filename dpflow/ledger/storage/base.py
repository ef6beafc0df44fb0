"""What tells a ledger from others, and what every storage says of one it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dpflow.exceptions import LedgerCorrupt, LedgerUnavailable

#: Book and number of an entry.
Place = tuple[str, int]


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


#: What this code writes, and the oldest code that may write after it.
SCHEMA_VERSION = 1


def another_version(place: str) -> LedgerUnavailable:
    """Make the error for a ledger whose tables another version made."""
    msg = (
        f"the ledger {place} has the tables of another version of dpflow, which this "
        "version cannot read. Use that version, or make a new ledger with `dpflow "
        "ledger init` and charge the prior spending there."
    )
    return LedgerUnavailable(msg, ledger=place)


def check_writer(place: str, needed: object) -> None:
    """Refuse a ledger that only a newer dpflow may write to.

    Raises:
        LedgerCorrupt: If what it says is no version.
        LedgerUnavailable: If it is one.
    """
    if type(needed) is not int:
        msg = f"{place} is damaged: it says that it needs schema {needed!r:.40}"
        raise LedgerCorrupt(msg, ledger=place)
    if needed > SCHEMA_VERSION:
        msg = (
            f"the ledger {place} needs a dpflow that writes schema {needed}; this one "
            f"writes {SCHEMA_VERSION}. Upgrade dpflow."
        )
        raise LedgerUnavailable(msg, ledger=place)


def identity_of(rows: Sequence[tuple[Any, ...]], place: str) -> Identity:
    """Read the identity of a ledger that this version may write."""
    if len(rows) != 1:
        msg = f"{place} is no ledger: its identity row is missing"
        raise LedgerCorrupt(msg, ledger=place)
    ((ledger, environment, created_at, needed),) = rows
    check_writer(place, needed)
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
    """Make the error for a row or an entry that is not what it should be."""
    msg = (
        f"{what}. Someone edited the ledger, or it is damaged: restore a backup before "
        "any further step."
    )
    return LedgerCorrupt(msg, ledger=place)
