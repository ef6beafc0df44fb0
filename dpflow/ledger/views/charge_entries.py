"""What an entry says, together with the entry that began its charge.

The end of a charge names it, and the entry that reserved it says which step, flow and
cost it was; people read both as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from dpflow.ledger.entry import Entry
from dpflow.ledger.model import Keys, Reach
from dpflow.ledger.provenance import told_anew
from dpflow.ledger.rows import Term
from dpflow.ledger.storage.transaction import Reading

#: Kinds of entries that say all there is to say, though they name a charge.
_WHOLE = ("reserve", "refuse")
#: So many entries are looked at together.
_PAGE = 500


def told(
    reading: Reading, entries: Iterable[Entry]
) -> Iterator[tuple[Entry, dict[str, Any]]]:
    """Yield entries with what each says, and what the beginning of its charge said.

    Args:
        reading: The ledger.
        entries: Any, in any order.
    """
    rest = iter(entries)
    while page := list(islice(rest, _PAGE)):
        made = _made(reading, page)
        for entry in page:
            yield entry, _body(entry, made)


def _made(reading: Reading, entries: Iterable[Entry]) -> dict[str, Mapping[str, Any]]:
    """Return what began the charges that entries end or raise, by charge."""
    found: dict[str, Mapping[str, Any]] = {}
    named: dict[str, None] = {}
    for entry in entries:
        if entry.charge is not None and entry.kind == "reserve":
            found[entry.charge] = entry.body
        elif entry.charge is not None and entry.kind not in _WHOLE:
            named[entry.charge] = None
    unknown = tuple(charge for charge in named if charge not in found)
    if unknown:
        state = reading.load(Keys(charges=unknown, reach=Reach.ENTRIES))
        for name in unknown:
            charge = state.charge(name)
            if charge is not None:
                found[name] = state.made(charge, next(iter(charge.places))).body
    return found


def _body(entry: Entry, made: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    if entry.kind == "open":
        return {"reason": entry.body["term"]["reason"], **entry.body}
    first = None if entry.kind in _WHOLE else made.get(entry.charge or "")
    if first is None:
        return dict(entry.body)
    body = told_anew(first, entry.body)
    if entry.kind == "amend":
        body["reserved_cost"] = first["cost"]
    return body


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
