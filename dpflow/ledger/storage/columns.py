"""Rows and keys as the columns of a database, the same in every dialect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from dpflow.ledger.entry import Entry, amounts_text, canonical, parsed
from dpflow.ledger.rows import (
    Account,
    Amounts,
    Book,
    Charge,
    Claim,
    Epoch,
    Granted,
    Release,
    Row,
    Run,
    Term,
)


@cache
def statements(dialect: str) -> Mapping[str, str]:
    """Return a dialect's statements by name."""
    text = files("dpflow.ledger.storage").joinpath(f"{dialect}.sql").read_text("utf-8")
    parts = (part.partition("\n") for part in text.split("-- name: ")[1:])
    return {name.strip(): sql.strip().rstrip(";") for name, _, sql in parts}


#: Columns of a row as they are read or written.
Columns = tuple[Any, ...]
ReadEntry = Callable[[str, int], Entry]


def row_of(columns: Columns, entry: ReadEntry) -> Row:
    """Read a row from the columns of `load`: its kind and nine more."""
    if columns[0] == "term":
        return term_of(columns[1:4], entry)
    read, width = _ROWS[columns[0]]
    return read(columns[1 : 1 + width])


def term_of(columns: Columns, entry: ReadEntry) -> Term:
    """Read a term: what it pins is in its entry."""
    book, number, place = columns
    return Term(book, number, place, entry(book, place).body.get("term", {}))


def book_of(columns: Columns) -> Book:
    """Read a book."""
    name, number, head, frozen, ran, terms = columns
    told = None if frozen is None else parsed(frozen)
    return Book(name, number, head, told, parsed(ran), terms)


def account_of(columns: Columns) -> Account:
    """Read an account."""
    name, book, entry, settled, held, overdrawn, told = columns
    sums = _amounts(settled), _amounts(held)
    return Account(name, book, entry, *sums, overdrawn != 0, _parsed(told))


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


def _release_of(columns: Columns) -> Release:
    return Release(*columns)


def _granted_of(columns: Columns) -> Granted:
    book, step, most = columns
    return Granted(book, step, _sums(most))


def _claim_of(columns: Columns) -> Claim:
    name, by = columns
    return Claim(name, parsed(by))


def _epoch_of(columns: Columns) -> Epoch:
    return Epoch(*columns)


#: How each kind of row is read, and from how many columns.
_ROWS: Mapping[str, tuple[Callable[[Columns], Row], int]] = {
    "epoch": (_epoch_of, 1),
    "book": (book_of, 6),
    "account": (account_of, 7),
    "charge": (charge_of, 9),
    "release": (_release_of, 5),
    "run": (run_of, 5),
    "granted": (_granted_of, 3),
    "claim": (_claim_of, 2),
}


def _amounts(text: str) -> Amounts:
    # The table admits digits and commas only.
    return tuple(map(int, text[1:-1].split(",")))


def _sums(text: str) -> dict[str, Amounts]:
    return {name: tuple(amounts) for name, amounts in _parsed(text).items()}


def _parsed(text: str) -> Any:
    return _NOTHING if text == "{}" else parsed(text)


_NOTHING: Mapping[str, Any] = {}


def columns_of_row(row: Row, values: Mapping[str, str]) -> Columns:
    """Return a row as its table keeps it.

    Args:
        row: The row.
        values: Kept values, by release key.
    """
    if isinstance(row, Release):
        return *row, values.get(row.key) if row.state == "settled" else None
    return _COLUMNS[type(row)](row)


def _from_book(row: Book) -> Columns:
    frozen = None if row.frozen is None else canonical(row.frozen)
    return row.name, row.number, row.hash, frozen, canonical(row.ran), row.terms


def _from_term(row: Term) -> Columns:
    return row[:3]


def _from_account(row: Account) -> Columns:
    name, book, entry, settled, held, overdrawn, told = row
    sums = amounts_text(settled), amounts_text(held)
    return name, book, entry, *sums, int(overdrawn), canonical(told) if told else "{}"


def _from_charge(row: Charge) -> Columns:
    name, state, owner, places, held, added, covers, key, epoch = row
    sums = canonical(held), canonical(added) if added else "{}"
    return name, state, owner, canonical(places), *sums, covers, key, epoch


def _from_run(row: Run) -> Columns:
    name, refused, halted, preflight, unheld = row
    place = None if unheld is None else canonical(unheld)
    return name, canonical(refused), canonical(halted), preflight, place


def _from_granted(row: Granted) -> Columns:
    return row.book, row.step, canonical(row.most)


def _from_claim(row: Claim) -> Columns:
    return row.name, canonical(row.by)


def _from_epoch(row: Epoch) -> Columns:
    return row


_COLUMNS: Mapping[type, Callable[[Any], Columns]] = {
    Book: _from_book,
    Term: _from_term,
    Account: _from_account,
    Charge: _from_charge,
    Run: _from_run,
    Granted: _from_granted,
    Claim: _from_claim,
    Epoch: _from_epoch,
}
