"""Rows, their keys and entries as text, the same in every database.

A row is the canonical JSON of its fields, a list that begins with its names; a term's
facts are left to its entry.

Each text is read from the database each time. Only what it was read as before, or
written from, is remembered, by the whole of it: the same text always means the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
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
    return f"{key[0]}:{'#'.join(key[1:])}"


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
        fields = _frozen(_decoder.decode(text))
        if tuple(map(type, fields)) in _SHAPES[kind]:
            if tuple(map(str, fields[: len(key) - 1])) != key[1:]:
                what = f"another {kind} came than the one that was asked for"
                raise rows.JournalError(what)
            return _READ[kind](*fields)
    except (LookupError, RecursionError, TypeError, ValueError) as error:
        if isinstance(error, rows.JournalError):
            raise
    what = f"the row {key_text(key)!r} is nothing that can be read"
    raise rows.JournalError(what)


def _whole(text: str) -> int:
    if not text.isdecimal():
        what = f"{text} is no whole number"
        raise ValueError(what)
    return int(text)


_decoder = json.JSONDecoder(parse_int=_whole, parse_float=_whole, parse_constant=_whole)


def _frozen(value: Any) -> Any:
    """Return what JSON says, with tuples for its lists."""
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        return {name: _frozen(each) for name, each in value.items()}
    return value


_READ: Mapping[str, Callable[..., rows.Row]] = {
    "book": rows.Book,
    "term": partial(rows.Term, facts={}),
    "account": rows.Account,
    "charge": rows.Charge,
    "release": rows.Release,
    "run": rows.Run,
    "granted": rows.MostGranted,
    "claim": rows.Claim,
    "epoch": rows.Epoch,
}

_TEXT, _NUMBER, _FLAG, _LIST, _MAP = (str,), (int,), (bool,), (tuple,), (dict,)
_MAYBE, _SOME, _PLACE = (str, type(None)), (dict, type(None)), (tuple, type(None))
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
