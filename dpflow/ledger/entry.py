"""An entry of the journal: its columns, its canonical text and its hash.

Entries are numbered from 1 and chained by hashes. `rows` says what each key that the
entry names is after it, so that the newest entry with a key says what the key is now.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
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


class Entry(NamedTuple):
    """One line of the journal; a draft has neither rows nor hash nor columns yet.

    Attributes:
        number: From 1 on, without a gap.
        charge: The charge that it begins or ends, or is about.
        body: Further facts: who, why, which cost. Never data.
        at: A label; nothing is decided by it.
        amounts: What it posts, by account.
        rows: What each key that it names is after it.
        hash: Of all this and the hash before.
        columns: The entry as a database keeps it.
    """

    number: int
    kind: str
    charge: str | None
    body: Mapping[str, Any]
    at: str
    writer: str
    amounts: Sums
    rows: Mapping[str, Any] = {}
    hash: str = ""
    columns: Columns = Columns(0, "", None, "", "", "", "", "")

    @property
    def postings(self) -> dict[str, Posting]:
        """What it posts, by account."""
        return {
            name: Posting(amount, *map(tuple, self.rows[ACCOUNT + name][1:3]))
            for name, amount in self.amounts.items()
        }

    @property
    def books(self) -> list[str]:
        """The datasets and populations that it names."""
        names = (
            key.partition("/")[2].partition("#")[0]
            for key in self.rows
            if key.startswith((ACCOUNT, "book/", "people/"))
        )
        return list(dict.fromkeys(names))


_json: Any = json.encoder
#: Sorts keys; knows neither spaces, nor letters beyond ASCII, nor infinite numbers.
_encode = _json.c_make_encoder(
    None, None, _json.encode_basestring_ascii, None, ":", ",", True, False, False
)


def canonical(data: object) -> str:
    """Write JSON-able data in one form: sorted, without spaces, in ASCII.

    Raises:
        TypeError: If it is nothing that JSON knows.
        ValueError: If it contains itself, or a number is not finite.
    """
    try:
        return "".join(_encode(data, 0))
    except RecursionError as error:
        what = "it is too deep"
        raise ValueError(what) from error


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


#: Where the rows of an entry say what it posts: the key of an account, and its amounts.
_POSTED = re.compile(r'("account/[^"\\]*(?:\\.[^"\\]*)*"):\[(\[[^\]]*\])')
#: Reads the value that begins at a place of a text; returns it with its end.
_scan: Any = vars(json.JSONDecoder())["scan_once"]


def _read(kind: type, text: str) -> Any:
    """Read a JSON value of a kind, which is the whole of a text."""
    try:
        value, end = _scan(str(text), 0)
    except (RecursionError, StopIteration, json.JSONDecodeError):
        value = end = None
    if type(value) is not kind or end != len(text):
        what = "its rows or its body are not as an entry has them"
        raise JournalError(what)
    return value


@lru_cache(maxsize=1024)
def _sums_of(*posted: tuple[str, str]) -> Sums:
    return {_read(str, k)[len(ACCOUNT) :]: (*_read(list, v),) for k, v in posted}


def draft_of(columns: tuple[Any, ...]) -> Entry:
    """Read an entry but for its rows, which following it computes again.

    Args:
        columns: Those of a database, and the hash of the entry before.

    Raises:
        JournalError: If it is not what was hashed when it was written.
    """
    number, _, _, text, facts, at, writer, digest, previous = columns
    if type(number) is not int or entry_hash(previous, columns) != digest:
        what = "its content, or an entry before it, is not what was hashed"
        raise JournalError(what)
    body, amounts = _read(dict, facts), _sums_of(*_POSTED.findall(text))
    row = tuple.__new__(Columns, columns[:8])
    draft: Any = (*columns[:3], body, at, writer, amounts, {}, digest, row)
    return tuple.__new__(Entry, draft)


#: By its hash, an entry that was read or written, and the columns that proved it.
_proved: dict[str, tuple[tuple[Any, ...], Entry]] = {}
#: Entries in this memory; it is cleared when it is full.
_MOST = 512


def entry_of(columns: tuple[Any, ...]) -> Entry:
    """Read an entry with its rows; the newest are remembered. Raises as `draft_of`."""
    proved = _proved.get(columns[7])
    if proved is not None and proved[0] == columns:
        return proved[1]
    entry = draft_of(columns)._replace(rows=_read(dict, columns[3]))
    return _remembered(columns, entry)


def _remembered(columns: tuple[Any, ...], entry: Entry) -> Entry:
    if len(_proved) >= _MOST:
        _proved.clear()
    _proved[entry.hash] = columns, entry
    return entry


def written(previous: str, draft: Entry, rows: Mapping[str, Any]) -> Entry:
    """Return a drafted entry with its rows, as a reader of the journal has it.

    Args:
        previous: The hash of the entry before.
        draft: The entry without its rows.
        rows: What each key that it names is after it.
    """
    number, kind, charge, body, at, writer = draft[:6]
    place = number, kind, charge, canonical(rows), canonical(body), at, writer
    columns = Columns(*place, entry_hash(previous, place))
    entry = draft._replace(rows=rows, hash=columns.hash, columns=columns)
    return _remembered((*columns, previous), entry)
