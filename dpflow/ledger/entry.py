"""An entry of the journal: its columns, its canonical text and its hash.

Entries are numbered from 1 and chained by hashes. `rows` says what each key that the
entry names is after it, so that the newest entry with a key says what the key is now.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

Amounts = tuple[int, ...]
#: Amounts by account.
Sums = Mapping[str, Amounts]
ACCOUNT = "account/"


class JournalError(ValueError):
    """An entry that does not follow from those before it."""


class Posting(NamedTuple):
    """What an entry does to one account, and the account's sums after it."""

    amount: Amounts
    settled: Amounts
    held: Amounts


class Entry(NamedTuple):
    """One line of the journal.

    Attributes:
        number: From 1 on, without a gap.
        charge: The charge that it begins or ends, or is about.
        rows: What each key that it names is after it.
        body: Further facts: who, why, which cost. Never data.
        at: A label; nothing is decided by it.
        hash: Of all this and the hash before.
        text: The rows in canonical form.
        amounts: What it posts, by account.
    """

    number: int
    kind: str
    charge: str | None
    rows: Mapping[str, Any]
    body: Mapping[str, Any]
    at: str
    writer: str
    hash: str
    text: str
    amounts: Sums

    @property
    def postings(self) -> dict[str, Posting]:
        """What it posts, by account."""
        return {
            key[len(ACCOUNT) :]: Posting(tuple(row[0]), tuple(row[1]), tuple(row[2]))
            for key, row in self.rows.items()
            if key.startswith(ACCOUNT)
        }

    @property
    def books(self) -> list[str]:
        """The datasets and populations that it names."""
        names = (
            key.partition("/")[2].partition("#")[0]
            for key in self.rows
            if key.startswith((ACCOUNT, "book/"))
        )
        return list(dict.fromkeys(names))


class Columns(NamedTuple):
    """An entry as a database keeps it.

    Attributes:
        rows: In canonical form.
        body: In canonical form.
    """

    number: int
    kind: str
    charge: str | None
    rows: str
    body: str
    at: str
    writer: str
    hash: str


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
    except (StopIteration, RecursionError):
        end = -1
    if end != len(text):
        what = f"{text[:80]!r} is no JSON, or goes on behind its end"
        raise ValueError(what)
    return found


def first_hash(
    ledger: str, version: int, created_at: str, environment: str | None
) -> str:
    """Return what the first entry's hash is chained to: which ledger this is."""
    facts = (ledger, str(version), created_at, environment or "")
    return sha256("\n".join(facts).encode()).hexdigest()


def entry_hash(previous: str, columns: Sequence[Any]) -> str:
    """Return the hash that chains an entry to the one before it.

    Args:
        previous: The hash of the entry before.
        columns: The entry's, those of `Columns`; the hash is not read.
    """
    number, kind, charge, rows, body, at, writer = columns[:7]
    short = f"{previous}\n{number:d}\n{kind}\n{charge or ''}\n{at}\n{writer}"
    return sha256(f"{short}\n{rows}\n{body}".encode()).hexdigest()


#: By its hash, an entry that was read or written, and the columns that proved it.
_known: dict[str, tuple[tuple[Any, ...], Entry]] = {}
#: More of them are forgotten.
_MOST = 512


def _remember(columns: tuple[Any, ...], entry: Entry) -> Entry:
    if len(_known) >= _MOST:
        _known.clear()
    _known[entry.hash] = columns, entry
    return entry


def _amounts_of(rows: Mapping[str, Any]) -> Sums:
    """Return what an entry posts.

    Raises:
        JournalError: If a row of an account has no amounts.
    """
    try:
        return {
            key[len(ACCOUNT) :]: tuple(row[0])
            for key, row in rows.items()
            if key.startswith(ACCOUNT)
        }
    except (LookupError, TypeError) as error:
        what = "its rows say nothing of an account's amounts"
        raise JournalError(what) from error


def entry_of(columns: tuple[Any, ...]) -> Entry:
    """Read an entry from a database's columns and the hash of the entry before.

    Raises:
        JournalError: If it is not what was hashed when it was written.
    """
    known = _known.get(columns[7])
    if known is not None and known[0] == columns:
        return known[1]
    number, kind, charge, text, body, at, writer, told, previous = columns
    if type(number) is not int or entry_hash(previous, columns) != told:
        what = "its content, or an entry before it, is not what was hashed"
        raise JournalError(what)
    try:
        rows, facts = parsed(text), parsed(body)
    except ValueError:
        rows = facts = None
    if type(rows) is not dict or type(facts) is not dict:
        what = "its rows or its body are no JSON objects"
        raise JournalError(what)
    place = number, kind, charge, rows, facts, at, writer, told, text
    found = Entry(*place, _amounts_of(rows))
    return _remember(columns, found)


def written(
    head: tuple[int, str],
    kind: str,
    charge: str | None,
    rows: Mapping[str, Any],
    body: Mapping[str, Any],
    *,
    at: str,
    writer: str,
) -> tuple[Entry, Columns]:
    """Return the entry that comes after a head, and its columns."""
    number, previous = head[0] + 1, head[1]
    text, facts = canonical(rows), canonical(body)
    columns = Columns(number, kind, charge, text, facts, at, writer, "")
    told = entry_hash(previous, columns)
    # As whoever reads it has it.
    read, said = parsed(text), parsed(facts)
    place = number, kind, charge, read, said, at, writer, told, text
    entry = Entry(*place, _amounts_of(read))
    columns = columns._replace(hash=told)
    _remember((*columns, previous), entry)
    return entry, columns
