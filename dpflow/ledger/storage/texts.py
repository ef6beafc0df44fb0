"""Rows and their keys as text, the same in every database.

A row is the canonical JSON of its fields, a list that begins with its names; a term's
facts are left to its entry.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from itertools import product
from typing import Any

from dpflow.ledger.entry import canonical
from dpflow.ledger.rows import (
    Account,
    Amounts,
    Book,
    Charge,
    Claim,
    Epoch,
    Granted,
    JournalError,
    Key,
    Release,
    Row,
    Run,
    Sums,
    Term,
)

_Fields = list[Any]


@cache
def statements(dialect: str) -> Mapping[str, str]:
    """Return a dialect's statements by name."""
    folder = files("dpflow.ledger.storage")
    both = (f"{name}.sql" for name in ("questions", dialect))
    texts = (folder.joinpath(name).read_text("utf-8") for name in both)
    parts = [p.partition("\n") for text in texts for p in text.split("-- name: ")[1:]]
    return {name.strip(): sql.strip().rstrip(";") for name, _, sql in parts}


# Keys: no name of a book has a "#"


def key_text(key: Key) -> str:
    """Write a key; no two have the same text."""
    kind, *names = key
    return f"{kind}:{names[0] if len(names) == 1 else '#'.join(names)}"


def key_of_text(text: str) -> Key:
    """Read what `key_text` wrote."""
    kind, _, name = text.partition(":")
    if kind in ("term", "granted"):
        book, _, rest = name.partition("#")
        return kind, book, rest
    return (kind, name) if name else (kind,)


def prefixed(kind: str, book: str | None = None) -> tuple[str, str]:
    """Return between which two texts the keys of a kind are, or those of a book."""
    if book is None:
        return kind, f"{kind};"
    return f"{kind}:{book}#", f"{kind}:{book}$"


# Rows


def row_text(row: Row) -> str:
    """Write a row."""
    return canonical(row[:3] if isinstance(row, Term) else row)


def output_of(row: Row, values: Mapping[str, str]) -> str | None:
    """Return the output that is kept beside a row, if it is that of a release."""
    if isinstance(row, Release) and row.state == "settled":
        return values.get(row.key)
    return None


def row_of(key: Key, text: str) -> Row:
    """Read a row; a term has no facts yet.

    Raises:
        JournalError: If it is that of another key, or nothing that `row_text` wrote.
    """
    kind = key[0]
    try:
        fields = _parsed(text)
        if tuple(map(type, fields)) in _SHAPES[kind]:
            names = fields[: len(key) - 1]
            same = names[0] == key[1] if len(key) == _ONE else _are(names, key)
            if not same:
                what = f"another {kind} came than the one that was asked for"
                raise JournalError(what)
            return _READ[kind](fields)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, JournalError):
            raise
    what = f"the row {key_text(key)!r} is nothing that can be read"
    raise JournalError(what)


#: The length of the key of a row with a single name.
_ONE = 2


def _are(names: _Fields, key: Key) -> bool:
    return tuple(map(str, names)) == key[1:]


def _no_number(text: str) -> None:
    what = f"{text} is no whole number"
    raise ValueError(what)


_decoder = json.JSONDecoder(parse_float=_no_number, parse_constant=_no_number)


def _parsed(text: str) -> _Fields:
    found, end = _decoder.raw_decode(text)
    if end != len(text) or not isinstance(found, list):
        what = "it is no list"
        raise ValueError(what)
    return found


#: True is no amount.
_WHOLE = {int}


def _amounts(found: _Fields) -> Amounts:
    if {*map(type, found)} != _WHOLE or min(found) < 0:
        what = f"{found!r:.80} are no amounts"
        raise ValueError(what)
    return tuple(found)


def _sums(found: Mapping[str, _Fields]) -> Sums:
    return {name: _amounts(each) for name, each in found.items()}


def _account(fields: _Fields) -> Row:
    name, book, entry, settled, held, overdrawn, told = fields
    return Account(
        name, book, entry, _amounts(settled), _amounts(held), overdrawn, told
    )


def _charge(fields: _Fields) -> Row:
    name, state, owner, places, held, added, covers, key, epoch = fields
    found = {book: (made, ended) for book, (made, ended) in places.items()}
    return Charge(
        name, state, owner, found, _sums(held), _sums(added), covers, key, epoch
    )


def _run(fields: _Fields) -> Row:
    name, refused, halted, preflight, unheld = fields
    places = tuple((book, entry, here) for book, entry, here in refused)
    place = None
    if unheld is not None:
        book, number = unheld
        place = (book, number)
    return Run(name, places, tuple(halted), preflight, place)


def _granted(fields: _Fields) -> Row:
    book, step, most = fields
    return Granted(book, step, _sums(most))


_READ: Mapping[str, Callable[[_Fields], Row]] = {
    "book": lambda fields: Book(*fields),
    "term": lambda fields: Term(fields[0], fields[1], fields[2], {}),
    "account": _account,
    "charge": _charge,
    "release": lambda fields: Release(*fields),
    "run": _run,
    "granted": _granted,
    "claim": lambda fields: Claim(*fields),
    "epoch": lambda fields: Epoch(*fields),
}

_TEXT, _NUMBER, _FLAG, _LIST, _MAP = (str,), (int,), (bool,), (list,), (dict,)
_MAYBE, _SOME, _PLACE = (str, type(None)), (dict, type(None)), (list, type(None))
#: What the fields of each kind may be.
_SHAPES: Mapping[str, frozenset[tuple[type, ...]]] = {
    kind: frozenset(product(*fields))
    for kind, fields in {
        "book": (_TEXT, _NUMBER, _TEXT, _SOME, _MAP, _NUMBER),
        "term": (_TEXT, _NUMBER, _NUMBER),
        "account": (_TEXT, _TEXT, _NUMBER, _LIST, _LIST, _FLAG, _MAP),
        "charge": (
            *(_TEXT, _TEXT, _TEXT, _MAP, _MAP, _MAP),
            *(_MAYBE, _MAYBE, _NUMBER),
        ),
        "release": (_TEXT, _TEXT, _TEXT, _TEXT, _MAYBE),
        "run": (_TEXT, _LIST, _LIST, _MAYBE, _PLACE),
        "granted": (_TEXT, _TEXT, _MAP),
        "claim": (_TEXT, _MAP),
        "epoch": (_NUMBER,),
    }.items()
}
