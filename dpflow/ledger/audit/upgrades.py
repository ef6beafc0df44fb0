"""Upgrading the tables of a ledger to this version, while no step runs."""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from dpflow.exceptions import ConfigurationError, LedgerCorrupt, LedgerUnavailable
from dpflow.ledger.audit.moves import write_upgrade
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.decisions.decision import Decision
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import find_database
from dpflow.ledger.tables.loaded import Rows
from dpflow.ledger.tables.migrations import MIGRATIONS
from dpflow.ledger.tables.transaction import VERSION
from dpflow.ledger.witness.comparison import Watch, witness_at

Migrations = Mapping[int, Mapping[str, Sequence[str]]]

#: How long it waits for steps that run.
_SECONDS = 60.0


def upgrade(
    url: str,
    *,
    saved: Path | None,
    witness: str | None = None,
    version: int = VERSION,
    migrations: Migrations = MIGRATIONS,
) -> int:
    """Upgrade a ledger to this version, in one transaction.

    Args:
        url: The ledger.
        saved: Where a ledger file is saved before; None on PostgreSQL, whose own
            tools save it.
        witness: As for `open_ledger`.
        version: The version to reach.
        migrations: The migrations.

    Returns:
        The version before.

    Raises:
        LedgerUnavailable: If it is of a newer version, or of one that no migration
            begins with; or if steps ran on for a minute.
        LedgerCorrupt: If it is damaged; then nothing was changed.
        ConfigurationError: If something is at the place of the saved file.
    """
    kind, place = find_database(url)
    database = kind(place)
    database.version = before = read_version(database)
    if before == version:
        return before
    steps = [migrations.get(n, {}) for n in range(before + 1, version + 1)]
    if before > version or not all(steps):
        how = "a newer dpflow" if before > version else "the dpflow that made it"
        msg = (
            f"the ledger {database.place} has version {before}, and this dpflow "
            f"upgrades to version {version} only. Nothing was changed. Use {how}."
        )
        raise LedgerUnavailable(msg, ledger=database.place)
    if saved is not None and saved.exists():
        msg = f"{saved} is there already, and a backup never replaces a file."
        raise ConfigurationError(msg)
    witness_of = witness_at(witness, url)
    kept = None if witness_of is None else witness_of(database.identity.ledger)
    ledger = Ledger(database, database.owners(), Watch(database, kept))
    if bad := verify(ledger).bad:
        msg = f"the ledger {ledger.place} is damaged: {bad[0]}. Nothing was changed."
        raise LedgerCorrupt(msg, ledger=ledger.place)
    statements = [text for step in steps for text in step[dialect_of(database)]]
    decisions = migrate_stopped(ledger, saved, statements, (before, version))
    database.version = version
    for decision in decisions:
        ledger.watch.saw(decision)
        ledger.watch.record(decision, Rows())
    ledger.close()
    return before


def read_version(database: Any) -> int:
    """Return the version of a ledger's tables."""
    with database.snapshot() as transaction:
        ((_, version, *_),) = transaction.ask("read_ledger")
    return int(version)


def dialect_of(database: Any) -> str:
    """Return the name of a database's kind."""
    return "postgres" if hasattr(database, "server") else "sqlite"


def migrate_stopped(
    ledger: Ledger,
    saved: Path | None,
    statements: Sequence[str],
    versions: tuple[int, int],
) -> list[Decision]:
    """Migrate as soon as no step runs, for a minute; return what was written."""
    until = time.monotonic() + _SECONDS
    while True:
        try:
            with ledger.readable(), ledger.database.transaction() as transaction:
                return migrate(ledger, transaction, saved, statements, versions)
        except LedgerUnavailable as error:
            if "waited" not in error.details or time.monotonic() > until:
                raise


def migrate(
    ledger: Ledger,
    transaction: Any,
    saved: Path | None,
    statements: Sequence[str],
    versions: tuple[int, int],
) -> list[Decision]:
    """Save, migrate, and write an entry into each journal, in one transaction."""
    before, version = versions
    transaction.send([("wait_shortly", {}), ("stop_steps", {})])
    transaction.begin(lock=False)
    if saved is not None:
        # A connection that writes cannot be copied from; none else writes now.
        source = f"{ledger.database.path.absolute().as_uri()}?mode=ro"  # type: ignore[attr-defined]
        with (
            closing(sqlite3.connect(source, uri=True)) as reader,
            closing(sqlite3.connect(saved)) as file,
        ):
            reader.backup(file)
    names = [name for (name,) in transaction.ask("read_dataset_names")]
    for text in statements:
        transaction.send_text(text, {})
    transaction.send([("set_version", {"version": version})])
    transaction.version = version
    body = {"from": str(before), "to": str(version)}
    command, author = uuid.uuid4().hex, ledger.author()
    return [write_upgrade(transaction, n, author, command, body) for n in names]
