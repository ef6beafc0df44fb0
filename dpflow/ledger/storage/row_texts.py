"""Rows, their keys and entries as text, the same in every database.

A row is the canonical JSON of its fields, a list that begins with its names; a term's
facts are left to its entry.

Each text is read from the database each time. Only what it was read as before, or
written from, is remembered, by the whole of it: the same text always means the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import product
from typing import Any, TypeVar

from dpflow.ledger import rows
from dpflow.ledger.entry import (
    Entry,
    Written,
    canonical,
    columns_of,
    entry_of,
    with_body,
)

T = TypeVar("T")

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


def key_text(key: rows.Key) -> str:
    """Write a key; no two have the same text."""
    return f"{key[0]}:{key[1] if len(key) == _ONE else '#'.join(key[1:])}"


def key_of_text(text: str) -> rows.Key:
    """Read what `key_text` wrote."""
    kind, _, name = text.partition(":")
    if kind in ("term", "granted"):
        book, _, rest = name.partition("#")
        return kind, book, rest
    return (kind, name) if name else (kind,)


def place_text(place: tuple[str, int]) -> str:
    """Write the place of an entry."""
    return f"{place[0]}#{place[1]}"


def prefixed(kind: str, book: str | None = None) -> tuple[str, str]:
    """Return between which two texts the keys of a kind are, or those of a book."""
    if book is None:
        return kind, f"{kind};"
    return f"{kind}:{book}#", f"{kind}:{book}$"


#: More texts than these are forgotten.
_MOST = 512


def _remember(known: dict[str, T], text: str, found: T) -> T:
    if len(known) >= _MOST:
        known.clear()
    known[text] = found
    return found


# Entries

#: By its hash, an entry without its body, and the columns that proved it.
_entries: dict[str, tuple[Sequence[Any], Entry]] = {}


def entry_texts(entries: Iterable[Entry]) -> list[tuple[Any, ...]]:
    """Write entries: the columns of each, and its hash."""
    found = []
    for entry in entries:
        columns = (*columns_of(entry), entry.hash)
        previous = entry.previous if isinstance(entry, Written) else None
        if previous:
            proved = ((*columns, previous), Entry(*entry[:5], {}, *entry[6:]))
            _remember(_entries, entry.hash, proved)
        found.append(columns)
    return found


def entry_from(columns: Sequence[Any], *, body: bool = True) -> Entry:
    """Read an entry from its columns, its hash and the one before.

    Args:
        columns: As they were read.
        body: Read its body as well. Without it, an entry only proves what it moved.

    Raises:
        JournalError: If it is not what was hashed when it was written.
    """
    told = columns[8]
    known = _entries.get(told)
    if known is None or known[0] != columns:
        proof = entry_of(columns[9] or "", columns[:8], told, proof=True)
        known = _remember(_entries, told, (columns, proof))
    return with_body(known[1], columns[5]) if body else known[1]


# Rows

#: By its text, a row and its key.
_rows: dict[str, tuple[rows.Key, rows.Row]] = {}


def row_texts(
    changes: rows.Changes, values: Mapping[str, str]
) -> list[tuple[str, str, str | None]]:
    """Write rows: the key, the text and the output of each.

    Args:
        changes: The rows; None takes one away.
        values: Outputs that are kept, by release key.
    """
    found: list[tuple[str, str, str | None]] = []
    for key, row in changes.items():
        if row is None:
            continue
        text, output = row_text(row), None
        if isinstance(row, rows.Release) and row.state == "settled":
            output = values.get(row.key)
        if not isinstance(row, rows.Term):
            _remember(_rows, text, (key, row))
        found.append((key_text(key), text, output))
    return found


def row_text(row: rows.Row) -> str:
    """Write a row."""
    return canonical(row[:3] if isinstance(row, rows.Term) else row)


def row_of(key: rows.Key, text: str) -> rows.Row:
    """Read a row; a term has no facts yet.

    Raises:
        JournalError: If it is that of another key, or nothing that `row_text` wrote.
    """
    known = _rows.get(text)
    if known is None or known[0] != key:
        known = _remember(_rows, text, (key, _row_of(key, text)))
    return known[1]


def _row_of(key: rows.Key, text: str) -> rows.Row:
    kind = key[0]
    try:
        fields = _parsed(text)
        if tuple(map(type, fields)) in _SHAPES[kind]:
            names = fields[: len(key) - 1]
            same = names[0] == key[1] if len(key) == _ONE else _are(names, key)
            if not same:
                what = f"another {kind} came than the one that was asked for"
                raise rows.JournalError(what)
            return _READ[kind](fields)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, rows.JournalError):
            raise
    what = f"the row {key_text(key)!r} is nothing that can be read"
    raise rows.JournalError(what)


#: The length of the key of a row with a single name.
_ONE = 2


def _are(names: _Fields, key: rows.Key) -> bool:
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


def _amounts(found: _Fields) -> rows.Amounts:
    if {*map(type, found)} != _WHOLE or min(found) < 0:
        what = f"{found!r:.80} are no amounts"
        raise ValueError(what)
    return tuple(found)


def _sums(found: Mapping[str, _Fields]) -> rows.Sums:
    return {name: _amounts(each) for name, each in found.items()}


def _account(fields: _Fields) -> rows.Row:
    name, book, entry, settled, held, overdrawn, told = fields
    return rows.Account(
        name, book, entry, _amounts(settled), _amounts(held), overdrawn, told
    )


def _charge(fields: _Fields) -> rows.Row:
    name, state, owner, places, held, added, covers, key, epoch = fields
    found = {book: (made, ended) for book, (made, ended) in places.items()}
    return rows.Charge(
        name, state, owner, found, _sums(held), _sums(added), covers, key, epoch
    )


def _run(fields: _Fields) -> rows.Row:
    name, refused, halted, preflight, unheld = fields
    places = tuple((book, entry, here) for book, entry, here in refused)
    place = None
    if unheld is not None:
        book, number = unheld
        place = (book, number)
    return rows.Run(name, places, tuple(halted), preflight, place)


def _granted(fields: _Fields) -> rows.Row:
    book, step, most = fields
    return rows.MostGranted(book, step, _sums(most))


_READ: Mapping[str, Callable[[_Fields], rows.Row]] = {
    "book": lambda fields: rows.Book(*fields),
    "term": lambda fields: rows.Term(fields[0], fields[1], fields[2], {}),
    "account": _account,
    "charge": _charge,
    "release": lambda fields: rows.Release(*fields),
    "run": _run,
    "granted": _granted,
    "claim": lambda fields: rows.Claim(*fields),
    "epoch": lambda fields: rows.Epoch(*fields),
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
