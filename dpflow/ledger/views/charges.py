"""Charges as the journal has them: the entries that began and ended each.

The end of a charge names it, and the entry that reserved it says which step, flow and
cost it was; people read both as one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from operator import attrgetter, sub
from typing import Any

from dpflow.ledger.entry import Amounts, Entry
from dpflow.ledger.journal import KINDS, charge_keys
from dpflow.ledger.provenance import told_anew
from dpflow.ledger.state import State
from dpflow.ledger.storage.tables import ENDLESS, Reading

_number = attrgetter("number")
#: Kinds whose entries may name no dataset, or only parts of one.
_STRAY = ("adjust", "repair", "withdraw")


@dataclass(slots=True)
class JournalCharge:
    """A charge, or an amount that a person charged.

    Attributes:
        made: The entry that reserved it; of an amount, the entry itself.
        ended: The entry that ended it; None while it is open.
        amounts: Charged amount by account: posted or still held.
    """

    made: Entry
    ended: Entry | None
    amounts: dict[str, Amounts]

    @property
    def last(self) -> Entry:
        """Its newest entry."""
        return self.ended or self.made

    @property
    def body(self) -> dict[str, Any]:
        """Facts of both entries."""
        return joined(self.last, self.made)


def charges(reading: Reading, book: str, after: int = 0) -> Iterator[JournalCharge]:
    """Yield the charges on a dataset or population that entries began, moved or ended.

    Each comes at its end, and the open ones come last.

    Args:
        reading: The ledger.
        book: The dataset or population.
        after: Number of the entry after which to begin.
    """
    begun: dict[str, JournalCharge] = {}
    stray = [e for e in reading.rare(*_STRAY) if e.number > after and book in e.books]
    named = reading.naming_after(root_keys(reading, book), after)
    for entry in _once(merge(named, reversed(stray), key=_number)):
        kind, name = KINDS[entry.kind], entry.charge or ""
        if entry.kind == "reserve":
            begun[name] = charge = JournalCharge(entry, None, entry.amounts)
            if around := begun.get(drawn_from(entry.body)):
                for place in charge.amounts.keys() & around.amounts.keys():
                    rest = map(sub, around.amounts[place], charge.amounts[place])
                    around.amounts[place] = tuple(rest)
        elif kind.posts:
            before = begun.pop(name, None) if kind.ends else begun.get(name)
            made = {name: before.made} if before else beginnings(reading, [name])
            posted = entry.amounts if kind.settles else {}
            yield JournalCharge(made.get(name, entry), entry, posted)
    yield from begun.values()


def newest_first(reading: Reading, books: Collection[str]) -> Iterator[Entry]:
    """Yield the entries about datasets and populations, newest first."""
    keys = [key for book in books for key in root_keys(reading, book)]
    named = reading.naming([*keys, *(f"book/{book}" for book in books)])
    stray = (e for e in reading.rare(*_STRAY) if {*books_of(reading, e)} & {*books})
    yield from _once(merge(named, stray, key=_number, reverse=True))


def root_keys(reading: Reading, book: str) -> list[str]:
    """Return the keys of the accounts that a book's whole has in each of its terms."""
    return [f"account/{key[5:]}" for key in reading.names(f"term/{book}#")]


def books_of(reading: Reading, entry: Entry) -> Sequence[str]:
    """Return the datasets and populations that an entry is about."""
    if entry.kind != "withdraw":
        return entry.books
    return [
        book for e in beginnings(reading, [entry.charge]).values() for book in e.books
    ]


def newest_numbers(reading: Reading, keys: Iterable[str], most: int) -> list[int]:
    """Return the numbers of the entries that name one of some keys, newest first."""
    pages = (
        reading.ask("numbers_down", key=key, before=ENDLESS, limit=most) for key in keys
    )
    return sorted({number for page in pages for (number,) in page}, reverse=True)[:most]


def window(reading: Reading, keys: Iterable[str], most: int) -> tuple[int, bool]:
    """Return after which number the newest entries with keys begin.

    Returns:
        The number, and whether older entries name one of the keys.
    """
    found = newest_numbers(reading, keys, most + 1) or [reading.head()[0]]
    older = len(found) > most
    return found[-1] - (not older), older


def read_charges(reading: Reading, names: Collection[str]) -> State:
    """Read charges with the entries that began and ended them."""
    return reading.load(lambda s: (key for n in names for key in charge_keys(s, n)))


def beginnings(reading: Reading, names: Iterable[str | None]) -> dict[str, Entry]:
    """Return the entries that reserved charges, by charge."""
    keys = [f"charge/{name}" for name in dict.fromkeys(names) if name]
    return reading.load(lambda _: keys).made if keys else {}


def bodies(reading: Reading, entries: Sequence[Entry]) -> Iterator[dict[str, Any]]:
    """Yield the facts of each entry and of the beginning of its charge."""
    made = beginnings(reading, (each.charge for each in entries))
    return (joined(each, made.get(each.charge or "")) for each in entries)


def joined(entry: Entry, made: Entry | None) -> dict[str, Any]:
    """Return the facts of an entry and of the one that began its charge."""
    if made is None or entry.kind in ("reserve", "refuse"):
        return dict(entry.body)
    return told_anew(made.body, entry.body)


def drawn_from(body: Mapping[str, Any]) -> str:
    """Return the reservation that held what an entry reserves; "" if none did."""
    return str((body.get("preflight") or {}).get("id", ""))


def openings(reading: Reading, book: str) -> dict[int, Entry]:
    """Return the entries that opened the terms of a book, by term, newest first."""
    return {
        int(entry.body["term"]["number"]): entry
        for entry in reading.naming(reading.names(f"term/{book}#"))
        if entry.kind == "open"
    }


def _once(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Yield each of some entries in order once."""
    last = 0
    for entry in entries:
        if entry.number != last:
            yield entry
        last = entry.number
