"""The rows of a ledger as the columns of a SQL table: one text for each part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dpflow.ledger.entry import amounts_text, canonical, parsed
from dpflow.ledger.rows import (
    Account,
    Amounts,
    Book,
    Charge,
    Claim,
    Epoch,
    Granted,
    Release,
    Run,
    Sums,
    Term,
)

_NO_SUMS: Sums = {}


#: What a table keeps of a row.
Columns = tuple[Any, ...]


def book_of(columns: Columns) -> Book:
    """Read a book."""
    name, number, head, frozen, ran, terms = columns
    return Book(name, number, head, frozen and parsed(frozen), parsed(ran), terms)


def account_of(columns: Columns) -> Account:
    """Read an account."""
    name, entry, settled, held, overdrawn, told = columns
    book = name.partition("#")[0]
    sums = _amounts(settled), _amounts(held)
    known = () if told == "[]" else tuple(parsed(told))
    return Account(name, book, entry, *sums, overdrawn != 0, known)


def charge_of(columns: Columns) -> Charge:
    """Read a charge."""
    name, state, owner, places, held, added, covers, key, epoch = columns
    found = {book: (made, ended) for book, (made, ended) in parsed(places).items()}
    sums = _sums(held), _sums(added)
    return Charge(name, state, owner, found, *sums, covers, key, epoch)


def run_of(columns: Columns) -> Run:
    """Read a flow run."""
    name, refused, halted, preflight, unheld = columns
    places = tuple((book, entry, bool(here)) for book, entry, here in parsed(refused))
    place = None
    if unheld is not None:
        book, number = parsed(unheld)
        place = (book, number)
    return Run(name, places, tuple(parsed(halted)), preflight, place)


def granted_of(columns: Columns) -> Granted:
    """Read what a step was granted."""
    book, step, most = columns
    return Granted(book, step, _sums(most))


def claim_of(columns: Columns) -> Claim:
    """Read who uses a name."""
    name, by = columns
    return Claim(name, parsed(by))


def _amounts(text: str) -> Amounts:
    # The table admits digits and commas only.
    return tuple(map(int, text[1:-1].split(",")))


def _sums(text: str) -> Sums:
    if text == "{}":
        return _NO_SUMS
    return {name: tuple(amounts) for name, amounts in parsed(text).items()}


def _book(row: Book) -> Columns:
    frozen = None if row.frozen is None else canonical(row.frozen)
    return row.name, row.number, row.hash, frozen, canonical(row.ran), row.terms


def _term(row: Term) -> Columns:
    return row[:3]


def _account(row: Account) -> Columns:
    name, _book, entry, settled, held, overdrawn, told = row
    sums = amounts_text(settled), amounts_text(held)
    return name, entry, *sums, int(overdrawn), canonical(told) if told else "[]"


def _charge(row: Charge) -> Columns:
    name, state, owner, places, held, added, covers, key, epoch = row
    sums = canonical(held), canonical(added) if added else "{}"
    return name, state, owner, canonical(places), *sums, covers, key, epoch


def _release(row: Release) -> Columns:
    return row


def _run(row: Run) -> Columns:
    name, refused, halted, preflight, unheld = row
    place = None if unheld is None else canonical(unheld)
    return name, canonical(refused), canonical(halted), preflight, place


def _granted(row: Granted) -> Columns:
    return row.book, row.step, canonical(row.most)


def _claim(row: Claim) -> Columns:
    return row.name, canonical(row.by)


def _epoch(row: Epoch) -> Columns:
    return row


#: Says, by the first word of a row's key, what its table keeps of it; that of releases
#: keeps their values as well.
COLUMNS: Mapping[str, Callable[[Any], Columns]] = {
    "book": _book,
    "term": _term,
    "account": _account,
    "charge": _charge,
    "release": _release,
    "run": _run,
    "granted": _granted,
    "claim": _claim,
    "epoch": _epoch,
}
