"""What an entry says, together with the entry that began its charge.

The end of a charge names it, and the entry that reserved it says which step, flow and
cost it was; people read both as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dpflow.ledger.entry import Entry
from dpflow.ledger.model import Keys, Reach
from dpflow.ledger.provenance import told_anew
from dpflow.ledger.rows import Term
from dpflow.ledger.storage.base import Reading

#: Kinds of entries that say all there is to say, though they name a charge.
_WHOLE = ("reserve", "refuse")
#: So many charges are looked up at once.
_PAGE = 500


def made_by(reading: Reading, entries: Iterable[Entry]) -> dict[str, Mapping[str, Any]]:
    """Return what began the charges that entries end or raise, by charge.

    Args:
        reading: The ledger.
        entries: Any; those among them that begin a charge are not looked up.
    """
    found: dict[str, Mapping[str, Any]] = {}
    unknown: dict[str, None] = {}
    for entry in entries:
        if entry.charge is not None and entry.kind == "reserve":
            found[entry.charge] = entry.body
        elif entry.charge is not None and entry.kind not in _WHOLE:
            unknown[entry.charge] = None
    wanted = [charge for charge in unknown if charge not in found]
    for start in range(0, len(wanted), _PAGE):
        page = tuple(wanted[start : start + _PAGE])
        state = reading.load(Keys(charges=page, reach=Reach.ENTRIES))
        for name in page:
            charge = state.charge(name)
            if charge is not None:
                found[name] = state.made(charge, next(iter(charge.places))).body
    return found


def body_of(entry: Entry, made: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return what an entry says, with what the beginning of its charge said.

    Args:
        entry: The entry.
        made: What began its charge, by charge.
    """
    if entry.kind == "open":
        return {"because": entry.body["term"]["because"], **entry.body}
    first = None if entry.kind in _WHOLE else made.get(entry.charge or "")
    if first is None:
        return dict(entry.body)
    told = told_anew(first, entry.body)
    if entry.kind == "amend":
        told["reserved_cost"] = first["cost"]
    return told


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
