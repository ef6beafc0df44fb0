"""Ids of accounts: the dataset, term, partition and gate that each id names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

Amounts = tuple[int, ...]


class Term(NamedTuple):
    """A period of a book under one set of pinned fields.

    Attributes:
        entry: Number of the entry that opened it, or tightened it last.
        fields: The term in the body of that entry.
    """

    book: str
    number: int
    entry: int
    fields: Mapping[str, Any]

    @property
    def root(self) -> str:
        """Id of the account of its whole dataset or population."""
        return f"{self.book}#{self.number}"


@lru_cache(maxsize=4096)
def split(account: str) -> tuple[str, int, str, str, str]:
    """Return book, term, kind, name and partition of an account from its id.

    The term is 0 for a part of windows, which terms share.
    """
    book, _, path = account.partition("#")
    text, _, tail = path.partition("/")
    number, partition = int(text or 0), ""
    if tail.startswith("partition/"):
        partition, _, tail = tail.removeprefix("partition/").partition("/")
        if not tail:
            return book, number, "partition", partition, partition
    kind, _, name = tail.partition("/")
    if not kind:
        kind = "population" if book.startswith("population/") else "dataset"
    return book, number, kind, name, partition


def roots_of(accounts: Iterable[str]) -> list[str]:
    """Return the accounts that the whole of each account's term has."""
    terms = dict.fromkeys(split(name)[:2] for name in accounts)
    return [f"{book}#{number}" for book, number in terms if number]
