"""An entry of a book's journal: its columns, its canonical text and its hash.

It needs the standard library only, so that an auditor can run it alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, NamedTuple

from dpflow.ledger.rows import Amounts, JournalError


class Posting(NamedTuple):
    """What an entry does to one account, and the account's sums after it."""

    amount: Amounts
    settled: Amounts
    held: Amounts


class Entry(NamedTuple):
    """One line of a book's journal.

    Attributes:
        number: From 1 on, without a gap.
        charge: The charge that it begins, moves or ends, if any.
        body: Further facts: who, why, which cost. Never data.
        at: A label; nothing is decided by it.
        hash: Of all this and the hash before.
    """

    book: str
    number: int
    kind: str
    charge: str | None
    postings: Mapping[str, Posting]
    body: Mapping[str, Any]
    at: str
    writer: str
    hash: str


class Columns(NamedTuple):
    """An entry as a database keeps it, without its hash.

    Attributes:
        postings: In canonical form.
        body: In canonical form.
    """

    book: str
    number: int
    kind: str
    charge: str | None
    postings: str
    body: str
    at: str
    writer: str


# Text and hashes


_encode = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
).encode
_decoder: Any = json.JSONDecoder()
_read = _decoder.scan_once


def canonical(data: object) -> str:
    """Write JSON-able data in one form: sorted, without spaces, in ASCII.

    Raises:
        TypeError: If it is nothing that JSON knows.
        ValueError: If there is no end of it, or a number is none.
    """
    try:
        return _encode(data)
    except RecursionError as error:
        what = "it is too deep"
        raise ValueError(what) from error


def parsed(text: str) -> Any:
    """Read JSON without anything around it.

    Raises:
        ValueError: If it is anything else.
    """
    try:
        found, end = _read(text, 0)
    except StopIteration:
        end = -1
    if end != len(text):
        what = f"{text[:80]!r} is no JSON, or goes on behind its end"
        raise ValueError(what)
    return found


def postings_from_text(text: str) -> dict[str, Posting]:
    """Read postings from their canonical form.

    Raises:
        JournalError: If it is anything else, or has another form.
    """
    try:
        found = {
            name: Posting(*map(tuple, sums)) for name, sums in parsed(text).items()
        }
        numbers = [n for posting in found.values() for sums in posting for n in sums]
        fine = all(type(number) is int and number >= 0 for number in numbers)
        fine = fine and all(map(all, found.values())) and canonical(found) == text
    except (AttributeError, RecursionError, TypeError, ValueError):
        fine = False
    if not fine:
        what = f"{text[:80]!r} are no postings in their canonical form"
        raise JournalError(what)
    return found


def entry_hash(previous: str, columns: Sequence[Any]) -> str:
    """Return the hash that chains an entry to the one before it.

    Args:
        previous: The hash of the entry before; empty for the first.
        columns: The entry's, those of `Columns`.
    """
    book, number, kind, charge, postings, body, at, writer = columns
    named = "null" if charge is None else quoted(charge)
    text = (
        f'{previous}{{"at":{quoted(at)},"body":{body},"book":{quoted(book)},'
        f'"charge":{named},"kind":{quoted(kind)},"number":{number:d},'
        f'"postings":{postings},"writer":{quoted(writer)}}}'
    )
    return sha256(text.encode()).hexdigest()


def entry_of(
    previous: str, columns: Sequence[Any], told: str, *, proof: bool = False
) -> Entry:
    """Read an entry from a database's columns.

    Args:
        previous: The hash of the entry before; empty for the first.
        columns: The entry's, those of `Columns`.
        told: Its hash.
        proof: Leave its body out: the entry only proves what it moved.

    Raises:
        JournalError: If it is not what was hashed when it was written.
    """
    if entry_hash(previous, columns) != told:
        what = "its content, or an entry before it, is not what was hashed"
        raise JournalError(what)
    book, number, kind, charge, postings, text, at, writer = columns
    body = _NO_BODY if proof else _body_of(kind, text)
    moved = postings_from_text(postings)
    fields = (book, number, kind, charge, moved, body, at, writer, told)
    return tuple.__new__(Entry, fields)


def with_body(entry: Entry, text: str) -> Entry:
    """Return an entry with its body, which is read from its text.

    Raises:
        JournalError: If it is no JSON object.
    """
    body = _body_of(entry.kind, text)
    return tuple.__new__(Entry, (*entry[:5], body, *entry[6:]))


def _body_of(kind: str, text: str) -> Mapping[str, Any]:
    try:
        body = _same_body(text) if kind in _LONG else parsed(text)
    except ValueError:
        body = None
    if type(body) is not dict:
        what = "its body is no JSON object"
        raise JournalError(what)
    return body


_NO_BODY: Mapping[str, Any] = {}
#: Kinds of which the same few are read at each step, and their bodies are long.
_LONG = ("open", "tighten")
_same_body = lru_cache(maxsize=256)(parsed)


class Written(Entry):
    """An entry that was just written, with its texts.

    Attributes:
        texts: Its postings and its body in canonical form; None once it is changed.
        previous: The hash of the entry before; empty for the first.
    """

    texts: tuple[str, str] | None = None
    previous: str = ""


def columns_of(entry: Entry) -> Columns:
    """Return an entry as a database keeps it."""
    book, number, kind, charge, postings, body, at, writer, _ = entry
    texts = entry.texts if isinstance(entry, Written) else None
    told, text = texts or (canonical(postings), canonical(body))
    fields = (book, number, kind, charge, told, text, at, writer)
    return tuple.__new__(Columns, fields)
