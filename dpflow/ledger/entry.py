"""An entry of a book's journal: its columns, its canonical text and its hash.

It needs the standard library only, so that an auditor can run it alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
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


def canonical(data: object) -> str:
    """Write JSON-able data in one form: sorted, without spaces, in ASCII."""
    return _encode(data)


def postings_text(postings: Mapping[str, Posting]) -> str:
    """Write postings in canonical form."""
    return _encode(postings)


def postings_from_text(text: str) -> dict[str, Posting]:
    """Read what `postings_text` wrote.

    Raises:
        JournalError: If it is anything else, or has another form.
    """
    try:
        found = {
            account: Posting(*(_amounts(part) for part in parts))
            for account, parts in json.loads(text).items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        what = f"{text[:80]!r} are no postings"
        raise JournalError(what) from error
    if _encode(found) != text:
        what = f"{text[:80]!r} is not the canonical form of its postings"
        raise JournalError(what)
    return found


def _amounts(found: object) -> Amounts:
    if not isinstance(found, list) or not found:
        raise ValueError
    for amount in found:
        # A bool is an int, and 1.0 equals one.
        if type(amount) is not int or amount < 0:
            raise ValueError
    return tuple(found)


def entry_hash(previous: str, columns: Columns) -> str:
    """Return the hash that chains an entry to the one before it.

    Args:
        previous: The hash of the entry before; empty for the first.
        columns: The entry.
    """
    book, number, kind, charge, postings, body, at, writer = columns
    named = "null" if charge is None else quoted(charge)
    text = (
        f'{previous}{{"at":{quoted(at)},"body":{body},"book":{quoted(book)},'
        f'"charge":{named},"kind":{quoted(kind)},"number":{number:d},'
        f'"postings":{postings},"writer":{quoted(writer)}}}'
    )
    return sha256(text.encode()).hexdigest()


def entry_of(previous: str, columns: Columns, told: str) -> Entry:
    """Read an entry from a database's columns.

    Args:
        previous: The hash of the entry before; empty for the first.
        columns: The entry.
        told: Its hash.

    Raises:
        JournalError: If it is not what was hashed when it was written.
    """
    if entry_hash(previous, columns) != told:
        what = "its content, or an entry before it, is not what was hashed"
        raise JournalError(what)
    try:
        body = json.loads(columns.body)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        what = "its body is no JSON object"
        raise JournalError(what)
    postings = postings_from_text(columns.postings)
    book, number, kind, charge, _, _, at, writer = columns
    return Entry(book, number, kind, charge, postings, body, at, writer, told)


def columns_of(entry: Entry) -> Columns:
    """Return an entry as a database keeps it."""
    book, number, kind, charge, postings, body, at, writer, _ = entry
    told = postings_text(postings)
    return Columns(book, number, kind, charge, told, canonical(body), at, writer)
