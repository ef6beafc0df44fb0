"""Reader of ledgers of version 4, which had one journal for all datasets."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from hashlib import sha256
from operator import add, sub
from pathlib import Path
from typing import Any, NamedTuple

from dpflow.exceptions import ConfigurationError, LedgerCorrupt
from dpflow.ledger.tables.transaction import Identity

Amounts = tuple[int, ...]
Sums = dict[str, Amounts]

OLD_VERSION = 4
_IDENTITY = "SELECT ledger_id, version, secret, created_at, environment FROM ledger"
_ENTRIES = (
    "SELECT number, kind, charge, rows, body, at, writer, hash FROM entry "
    "ORDER BY number"
)
_VALUES = "SELECT key, value FROM kept"


class OldEntry(NamedTuple):
    """An entry of the journal of version 4.

    Attributes:
        rows: What each key that the entry names is after it.
    """

    number: int
    kind: str
    charge: str | None
    rows: Mapping[str, Any]
    body: Mapping[str, Any]
    at: str
    writer: str

    @property
    def amounts(self) -> Sums:
        """What the entry posts, by account."""
        return {
            key.partition("/")[2]: tuple(row[0])
            for key, row in self.rows.items()
            if key.startswith("account/")
        }


class OldLedger(NamedTuple):
    """Everything that a ledger of version 4 holds."""

    identity: Identity
    secret: bytes
    entries: Sequence[OldEntry]
    values: Mapping[str, str]


def read_old(place: str) -> OldLedger:
    """Read a ledger of version 4 in one snapshot, and check its chain of hashes.

    Args:
        place: A path, `sqlite:///...` or `postgresql://...`.

    Raises:
        ConfigurationError: If no ledger of version 4 is there.
        LedgerCorrupt: If its journal is not what was hashed.
    """
    try:
        with closing(connect(place)) as connection:
            ((ledger, version, secret, created_at, environment),) = connection.execute(
                _IDENTITY
            ).fetchall()
            if version != OLD_VERSION:
                msg = (
                    f"the ledger has version {version}, and only {OLD_VERSION} is read"
                )
                raise ConfigurationError(msg)
            rows = connection.execute(_ENTRIES).fetchall()
            values = dict(connection.execute(_VALUES).fetchall())
    except connection_errors() as error:
        msg = f"no ledger of version {OLD_VERSION} is at the first place: {error}"
        raise ConfigurationError(msg) from None
    identity = Identity(ledger, environment, created_at)
    entries = [*check_chain(identity, rows)]
    return OldLedger(identity, bytes.fromhex(secret), entries, values)


def connect(place: str) -> Any:
    """Return a connection that reads one snapshot."""
    if place.startswith(("postgresql://", "postgres://")):
        import psycopg  # noqa: PLC0415 (not needed for a file)

        options = "-c search_path=dpflow -c default_transaction_read_only=on"
        session = psycopg.connect(place, options=options)
        session.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        return session
    path = Path(place.removeprefix("sqlite:///")).absolute()
    if not path.exists():
        msg = f"there is no file {path}"
        raise ConfigurationError(msg)
    file = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None)
    file.execute("BEGIN")
    return file


def connection_errors() -> tuple[type[Exception], ...]:
    """Return the errors of a database that holds no such ledger."""
    kinds: list[type[Exception]] = [sqlite3.Error, ValueError]
    if "psycopg" in sys.modules:
        kinds.append(sys.modules["psycopg"].Error)
    return tuple(kinds)


def check_chain(
    identity: Identity, rows: Sequence[tuple[Any, ...]]
) -> Iterator[OldEntry]:
    """Yield the entries of a journal, each of which has its hash.

    Raises:
        LedgerCorrupt: If one was edited, removed or added.
    """
    ledger, environment, created_at = identity
    first = (ledger, str(OLD_VERSION), created_at, environment or "")
    previous = sha256("\n".join(first).encode()).hexdigest()
    for place, columns in enumerate(rows, 1):
        number, kind, charge, keys, body, at, writer, hashed = columns
        short = f"{previous}\n{number:d}\n{kind}\n{charge or ''}\n{at}\n{writer}"
        previous = sha256(f"{short}\n{keys}\n{body}".encode()).hexdigest()
        if (number, previous) != (place, hashed):
            msg = (
                f"entry {place} of the old ledger is not what was hashed. Nothing was "
                "written. Restore a backup of it first."
            )
            raise LedgerCorrupt(msg)
        yield OldEntry(
            number, kind, charge, json.loads(keys), json.loads(body), at, writer
        )


def used_before(entry: OldEntry, account: str) -> Amounts:
    """Return what was used of an account before a reserve."""
    amount, settled, held = entry.rows[f"account/{account}"][:3]
    return tuple(map(sub, map(add, settled, held), amount))


def dataset_of(account: str) -> str:
    """Return the dataset of an account."""
    return account.partition("#")[0]


def term_of(account: str) -> int:
    """Return the term of an account; 0 of a part of windows."""
    return int(account.partition("#")[2].partition("/")[0] or 0)


def by_dataset(amounts: Mapping[str, Amounts]) -> dict[str, Sums]:
    """Return amounts by dataset."""
    parts: dict[str, Sums] = {}
    for account, amount in amounts.items():
        parts.setdefault(dataset_of(account), {})[account] = amount
    return parts
