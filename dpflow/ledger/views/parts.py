"""Parts of a divided dataset: all of them, or one."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from dpflow.exceptions import ConfigurationError
from dpflow.ledger.journal import KINDS
from dpflow.ledger.model import Keys, State
from dpflow.ledger.storage.transaction import Reading

#: Kinds of entries that may leave an account overdrawn.
_BY_HAND = [name for name, kind in KINDS.items() if kind.by_hand]


def load_parts(
    reading: Reading, book: str, part: str | None = None
) -> tuple[State, int]:
    """Read every term of a book, and its accounts: all, or those of one part.

    An account of which more was charged by hand than it admits is always read: it
    breaks what is promised of all parts.

    Returns:
        The state, and the number of parts with an account.

    Raises:
        ConfigurationError: If the part has no account.
    """
    ids = {name: partition_of(name) for name in reading.accounts(book)}
    parts = {*ids.values()} - {""}
    if part is None:
        return reading.load(Keys(whole=(book,))), len(parts)
    if part not in parts:
        msg = (
            f"nothing was charged to a part {part!r} of dataset {book!r}. Its whole "
            f"budget remains. `dpflow status {shlex.quote(book)} --details` shows the "
            "fullest parts."
        )
        raise ConfigurationError(msg)
    names = [name for name, of in ids.items() if of in {"", part}]
    return load_accounts(reading, book, [*names, *overdrawn(reading, book)]), len(parts)


def load_accounts(reading: Reading, book: str, names: Iterable[str]) -> State:
    """Read every term of a book, the accounts of its whole, and others by their ids."""
    return reading.load(Keys(terms=(book,), accounts=tuple(dict.fromkeys(names))))


def partition_of(account: str) -> str:
    """Return the partition that an account's id speaks of; empty if of none."""
    # Neither terms nor partitions have a slash in their name.
    _, kind, part, *_ = (*account.partition("#")[2].split("/", 3), "", "", "")
    return part if kind == "partition" else ""


def overdrawn(reading: Reading, book: str) -> Iterable[str]:
    """Return the ids of accounts that were left overdrawn, as the journal tells."""
    return dict.fromkeys(
        name
        for entry in reading.rare(book, *_BY_HAND)
        for name in entry.body.get("overdrawn", ())
    )
