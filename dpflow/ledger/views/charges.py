"""Charges as the journal of a dataset has them: the entries that began and ended each.

The end of a charge names it, and the entry that reserved it says which step, flow and
cost it was; people read both as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import sub
from typing import Any

from dpflow.ledger.entry import Entry
from dpflow.ledger.journal import KINDS
from dpflow.ledger.model import Keys, Reach
from dpflow.ledger.provenance import told_anew
from dpflow.ledger.rows import Amounts, Term
from dpflow.ledger.storage.transaction import Reading


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
        return joined(self.last, self.made.body)


def charges(reading: Reading, book: str, after: int) -> Iterator[JournalCharge]:
    """Yield the charges that a book's entries began, moved or ended.

    Each comes at its end, and the open ones come last.

    Args:
        reading: The ledger.
        book: Name of the book.
        after: Number of the entry after which to begin.
    """
    begun: dict[str, JournalCharge] = {}
    for entry in reading.after(book, after):
        kind, name = KINDS[entry.kind], entry.charge or ""
        amounts = {place: posting.amount for place, posting in entry.postings.items()}
        if entry.kind == "reserve":
            begun[name] = JournalCharge(entry, None, amounts)
            if around := begun.get(drawn_from(entry.body) or ""):
                for place in amounts.keys() & around.amounts.keys():
                    rest = map(sub, around.amounts[place], amounts[place])
                    around.amounts[place] = tuple(rest)
        elif kind.settles or kind.ends:
            charge = begun.pop(name, None) if kind.ends else begun.get(name)
            made = {name: charge.made} if charge else beginnings(reading, [name])
            posted = amounts if kind.settles else {}
            yield JournalCharge(made.get(name, entry), entry, posted)
    yield from begun.values()


def beginnings(reading: Reading, names: Iterable[str]) -> dict[str, Entry]:
    """Return the entries that reserved charges, by charge."""
    names = tuple(filter(None, names))
    if not names:
        return {}
    state = reading.load(Keys(charges=names, reach=Reach.ENTRIES))
    found = filter(None, map(state.charge, names))
    return {each.id: state.made(each, next(iter(each.places))) for each in found}


def told(
    reading: Reading, entries: Sequence[Entry]
) -> Iterator[tuple[Entry, dict[str, Any]]]:
    """Yield entries with the facts of each and of the beginning of its charge.

    Args:
        reading: The ledger.
        entries: Any, in any order.
    """
    made = {each.charge or "": each for each in entries if each.kind == "reserve"}
    named = {each.charge or "" for each in entries if each.kind != "refuse"}
    made |= beginnings(reading, named - made.keys())
    for entry in entries:
        yield entry, joined(entry, getattr(made.get(entry.charge or ""), "body", None))


def joined(entry: Entry, first: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the facts of an entry and of the one that began its charge."""
    if entry.kind == "open":
        return {"reason": entry.body["term"]["reason"], **entry.body}
    if first is None or entry.kind in ("reserve", "refuse"):
        return dict(entry.body)
    return told_anew(first, entry.body)


def drawn_from(body: Mapping[str, Any]) -> str | None:
    """Return the preflight that held what an entry reserves; None if none did."""
    found: Mapping[str, str] = body.get("preflight") or {}
    return found.get("id")


def openings(reading: Reading, book: str) -> dict[int, Entry]:
    """Return the entries that opened the terms of a book, by term, newest first."""
    return {
        int(entry.body["term"]["number"]): entry for entry in reading.rare(book, "open")
    }


def account_of_term(term: Term) -> str:
    """Return the id of the account that a term's whole dataset or population has."""
    return f"{term.book}#{term.number}"
