"""Which parts of a divided dataset are read: all, or a page of them.

A dataset may have very many parts. What names an account is read of all of them, which
is quick; what stands in an account is checked against its entry, which takes longer,
and so is done for a page.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from dpflow.ledger.model import Keys, State
from dpflow.ledger.storage.transaction import Reading

#: Kinds of entries that may leave an account overdrawn.
_BY_HAND = ("amend", "prior", "repair")


class Parts(NamedTuple):
    """Parts by their names, from the last: of periods, the newest ones.

    Attributes:
        most: So many; None: all.
        first: The name that the page begins with. Default: the last of all.
    """

    most: int | None = None
    first: str | None = None


class PartsRead(NamedTuple):
    """How much was read of a divided dataset's parts.

    Attributes:
        known: How many have an account.
        read: How many of them were read.
        following: The part that the next page begins with; None after the last one.
    """

    known: int
    read: int
    following: str | None

    @property
    def all_read(self) -> bool:
        """Whether no part was left out."""
        return self.read == self.known

    def as_json(self) -> dict[str, int | str | None]:
        """Return the same for programs."""
        return self._asdict()


#: Of a dataset that is not divided.
NO_PARTS = PartsRead(0, 0, None)
ALL_PARTS = Parts()
#: What a page shows, unless somebody asks for another.
PAGE_OF_PARTS = Parts(most=500)


def load_parts(
    reading: Reading, book: str, parts: Parts = ALL_PARTS
) -> tuple[State, PartsRead]:
    """Read every term of a book, and its accounts but those of parts that are left out.

    An account of which more was charged by hand than it admits is always read: it
    breaks what is promised of all parts.
    """
    ids = {name: partition_of(name) for name in reading.accounts(book)}
    chosen, found = _page({*ids.values()} - {""}, parts)
    if found.all_read:
        return reading.load(Keys(whole=(book,))), found
    names = [name for name, part in ids.items() if part in chosen]
    return load_accounts(reading, book, [*names, *overdrawn(reading, book)]), found


def load_accounts(reading: Reading, book: str, names: Iterable[str]) -> State:
    """Read every term of a book, the accounts of its whole, and others by their ids."""
    return reading.load(Keys(terms=(book,), accounts=tuple(dict.fromkeys(names))))


def partition_of(account: str) -> str:
    """Return the partition that an account's id speaks of; empty if of none."""
    # Neither terms nor partitions have a slash in their name.
    _, kind, part, *_ = (*account.partition("#")[2].split("/", 3), "", "", "")
    return part if kind == "partition" else ""


def _page(names: set[str], parts: Parts) -> tuple[set[str], PartsRead]:
    """Choose parts; what belongs to no part is chosen with them."""
    down = sorted(names, reverse=True)
    if parts.first is not None:
        down = [name for name in down if name <= parts.first]
    read = down if parts.most is None else down[: parts.most]
    following = down[len(read)] if len(read) < len(down) else None
    return {"", *read}, PartsRead(len(names), len(read), following)


def overdrawn(reading: Reading, book: str) -> Iterable[str]:
    """Return the ids of accounts that were left overdrawn, as the journal tells."""
    return dict.fromkeys(
        name
        for entry in reading.rare(book, *_BY_HAND)
        for name in entry.body.get("overdrawn", ())
    )
