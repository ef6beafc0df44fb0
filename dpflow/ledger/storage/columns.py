"""Rows and keys as the columns of a database, the same in every dialect."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from dpflow.ledger.entry import Entry, canonical
from dpflow.ledger.model import Keys
from dpflow.ledger.rows import (
    Account,
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


def parameters(keys: Keys) -> dict[str, str]:
    """Return what `load` asks for, as JSON texts."""
    gates = [
        (book, f"/{place}" if place else "")
        for book, places in keys.gates.items()
        for place in places
    ]
    return {
        "books": json.dumps([*keys.books, *keys.whole]),
        "gates": json.dumps(gates),
        "charges": json.dumps(keys.charges),
        "releases": json.dumps(keys.releases),
        "runs": json.dumps(keys.runs),
        "granted": json.dumps(keys.granted),
        "claims": json.dumps(keys.claims),
        "whole": json.dumps(keys.whole),
    }


def entries_behind(columns: tuple[Any, ...]) -> Iterator[tuple[str, int]]:
    """Yield the entries that a row must agree with."""
    match columns[0]:
        case "book" if columns[2]:
            yield columns[1], columns[2]
        case "term":
            yield columns[1], columns[3]
        case "account":
            yield columns[2], columns[3]
        case "run" if columns[5] is not None:
            book, number = json.loads(columns[5])
            yield book, number
        case "charge":
            for book, numbers in json.loads(columns[4]).items():
                yield from ((book, number) for number in numbers if number)


def row_of(columns: tuple[Any, ...], entry: Callable[[str, int], Entry]) -> Row:
    """Read a row from the columns of `load`."""
    kind, a, b, c, d, e, f, g, h, i = columns
    match kind:
        case "epoch":
            return Epoch(a)
        case "book":
            frozen = None if d is None else json.loads(d)
            return Book(a, b, c, frozen, json.loads(e), f)
        case "term":
            return Term(a, b, c, entry(a, c).body.get("term", {}))
        case "account":
            sums = _amounts(d), _amounts(e)
            return Account(a, b, c, *sums, bool(f), json.loads(g))
        case "charge":
            places = {book: (n[0], n[1]) for book, n in json.loads(d).items()}
            return Charge(a, b, c, places, _sums(e), _sums(f), g, h, i)
        case "release":
            return Release(a, b, c, d, e)
        case "run":
            refused = tuple((r[0], r[1], bool(r[2])) for r in json.loads(b))
            unheld = None if e is None else json.loads(e)
            place = None if unheld is None else (unheld[0], unheld[1])
            return Run(a, refused, tuple(json.loads(c)), d, place)
        case "granted":
            return Granted(a, b, _sums(c))
        case _:
            return Claim(a, json.loads(b))


def columns_of_row(row: Row, values: Mapping[str, str]) -> tuple[Any, ...]:
    """Return a row as its table keeps it."""
    match row:
        case Book(name, number, head, frozen, ran, terms):
            told = None if frozen is None else canonical(frozen)
            return name, number, head, told, canonical(ran), terms
        case Term(book, number, entry):
            return book, number, entry
        case Account(name, book, entry, settled, held, overdrawn, told):
            sums = canonical(settled), canonical(held)
            return name, book, entry, *sums, int(overdrawn), canonical(told)
        case Charge(name, state, owner, places, held, added, covers, key, epoch):
            sums = canonical(held), canonical(added)
            return name, state, owner, canonical(places), *sums, covers, key, epoch
        case Release(key, charge, book, state, digest):
            value = values.get(key) if state == "settled" else None
            return key, charge, book, state, digest, value
        case Run(name, refused, halted, preflight, unheld):
            place = None if unheld is None else canonical(unheld)
            return name, canonical(refused), canonical(halted), preflight, place
        case Granted(book, step, most):
            return book, step, canonical(most)
        case Claim(name, by):
            return name, canonical(by)
        case _:
            return ()


def _amounts(text: str) -> tuple[int, ...]:
    return tuple(json.loads(text))


def _sums(text: str) -> dict[str, tuple[int, ...]]:
    return {name: tuple(amounts) for name, amounts in json.loads(text).items()}
