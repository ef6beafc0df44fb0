"""An entry of a book's journal: its columns, its canonical text and its hash.

It needs the standard library only, so that an auditor can run it alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from json import encoder
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


def _no_json(found: object) -> object:
    what = f"{type(found).__name__} is nothing that JSON knows"
    raise TypeError(what)


#: Made once: `json.JSONEncoder` makes one of these at each call.
_make = getattr(encoder, "c_make_encoder", None)
_chunks = _make and _make(None, _no_json, quoted, None, ":", ",", True, False, False)
_slowly = json.JSONEncoder(
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
    if _chunks is None or not isinstance(data, dict | list | tuple):
        return _slowly(data)
    try:
        return "".join(_chunks(data, 0))
    except RecursionError as error:
        what = "it holds itself, or is too deep"
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


def amounts_text(amounts: Amounts) -> str:
    """Write amounts in canonical form."""
    return f"[{','.join(map(str, amounts))}]"


def postings_text(postings: Mapping[str, Posting]) -> str:
    """Write postings in canonical form."""
    return canonical(postings)


def postings_from_text(text: str) -> dict[str, Posting]:
    """Read what `postings_text` wrote.

    Raises:
        JournalError: If it is anything else, or has another form.
    """
    found: dict[str, Posting] = {}
    if text == "{}":
        return found
    last = ""
    try:
        # Cutting loses nothing, and each piece is known to have one form only. A name
        # that is cut itself leaves pieces that have none.
        for part in text[2:-3].split(']],"'):
            told, _, sums = part.partition('":[[')
            name = told if _plain(told) else _name(told)
            amount, settled, held = sums.split("],[")
            both = (_amounts(amount), _amounts(settled), _amounts(held))
            # A named tuple's own way of making one takes twice as long.
            found[name] = tuple.__new__(Posting, both)
            if name <= last:
                return _slowly_read(text)
            last = name
    except ValueError:
        return _slowly_read(text)
    return found if text[:2] == '{"' and text[-3:] == "]]}" else _slowly_read(text)


def _slowly_read(text: str) -> dict[str, Posting]:
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


#: Whether JSON writes a text as it is: ASCII without controls, quotes and backslashes.
_plain = re.compile(r"[ !#-\[\]-~]*").fullmatch


@lru_cache(maxsize=10_000)
def _name(told: str) -> str:
    name: str = parsed(f'"{told}"')
    if quoted(name) != f'"{told}"':
        raise ValueError(told)
    return name


@lru_cache(maxsize=1_000)
def _amounts(text: str) -> Amounts:
    # Of digits and commas alone, JSON knows no other list than the canonical one.
    if not text.isascii() or not text.replace(",", "").isdigit():
        raise ValueError(text)
    return tuple(parsed(f"[{text}]"))


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
    told, text = texts or (postings_text(postings), canonical(body))
    fields = (book, number, kind, charge, told, text, at, writer)
    return tuple.__new__(Columns, fields)
