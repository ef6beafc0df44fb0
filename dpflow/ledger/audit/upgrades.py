"""Upgrading the tables of a ledger to this version, while no step runs."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpflow.exceptions import LedgerRolledBack, LedgerUnavailable, require
from dpflow.ledger.audit.copies import backup, read_rows
from dpflow.ledger.audit.moves import witness_heads, write_upgrades
from dpflow.ledger.audit.verify import check_whole, open_snapshot
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import find_database, watch_ledger, witness_at
from dpflow.ledger.tables.columns import tables
from dpflow.ledger.tables.errors import readable
from dpflow.ledger.tables.migrations import MIGRATIONS, REWRITES, Rewrite
from dpflow.ledger.tables.rows import Charge, name_columns
from dpflow.ledger.tables.transaction import VERSION

Migrations = Mapping[int, Mapping[str, Sequence[str]]]

#: How long it waits for steps that run.
_SECONDS = 60.0


def upgrade(
    url: str,
    *,
    saved: Path | None = None,
    witness: str | None = None,
    version: int = VERSION,
    migrations: Migrations = MIGRATIONS,
    rewrites: Mapping[int, Rewrite] = REWRITES,
) -> int:
    """Upgrade a ledger to this version, in one transaction.

    Args:
        url: The ledger.
        saved: File of the backup that is made before; None for one next to the file of
            the ledger.
        witness: As for `open_ledger`.
        version: The version to reach.
        migrations: The migrations.
        rewrites: What the migrations do to the requests of charges.

    Returns:
        The version before.

    Raises:
        LedgerUnavailable: If it is of a newer version, or of one that no migration
            begins with; or if steps ran on for a minute, or there is no space.
        LedgerCorrupt: If it is damaged, or no step would run for its witness; then
            nothing was changed.
        ConfigurationError: If something is at the place of the backup, or the ledger
            is on a server and no place is named.
    """
    kind, address = find_database(url)
    database = kind(address)
    database.version = before = read_version(database)
    steps = [migrations.get(n, {}) for n in range(before + 1, version + 1)]
    if before > version or not all(steps):
        how = "a newer dpflow" if before > version else "the dpflow that made it"
        msg = (
            f"the ledger {database.address} has version {before}, and this dpflow "
            f"upgrades to version {version} only. Nothing was changed. Use {how}."
        )
        raise LedgerUnavailable(msg, ledger=database.address)
    ledger = watch_ledger(database, witness_at(witness, url))
    problem = ledger.watch.problem()
    if before < version:
        if problem is not None:
            raise LedgerRolledBack(problem, ledger=ledger.address)
        saved = saved or default_backup(database, before)
        check_space(ledger, saved)
        backup(ledger, saved)
        dialect = "postgres" if database.has_server else "sqlite"
        texts = [text for step in steps for text in step[dialect]]
        forms = [rewrites[n] for n in sorted(rewrites) if before < n <= version]
        migrate(ledger, texts, forms, version)
        database.version = version
    # An upgrade that ended before its lines were witnessed comes here again.
    if problem is None:
        witness_heads(ledger)
    ledger.close()
    return before


def read_version(database: Any) -> int:
    """Return the version of a ledger's tables."""
    with readable(database.address), database.snapshot() as transaction:
        ((_, version, *_),) = transaction.ask("read_ledger")
        return int(version)


def default_backup(database: Any, version: int) -> Path:
    """Return the place of a backup next to the file of a ledger.

    Raises:
        ConfigurationError: If a server keeps the ledger.
    """
    require(
        not database.has_server,
        f"an upgrade of the ledger {database.address} makes a backup first, and a "
        "server has no place for it. Nothing was changed. Name a file with --backup.",
    )
    path: Path = database.path
    return path.with_name(f"{path.name}.version-{version}")


def check_space(ledger: Ledger, saved: Path) -> None:
    """Check that a backup fits, and so does a ledger file that is written anew.

    Raises:
        LedgerUnavailable: If one of them does not. The disk of a server is not seen.
    """
    with open_snapshot(ledger) as transaction:
        ((size,),) = transaction.ask("read_size")
    database: Any = ledger.database
    folders = [saved.absolute().parent]
    if not database.has_server:
        folders.append(database.path.parent)
    needed = Counter[int]()
    for folder in folders:
        device = os.stat(folder).st_dev  # noqa: PTH116 (an answer of one call)
        needed[device] += size
        free = shutil.disk_usage(folder).free
        if free < needed[device]:
            msg = (
                f"an upgrade of the ledger {ledger.address} needs {needed[device]:,} "
                f"bytes in {folder}, and {free:,} are free. Nothing was changed. Make "
                "space, or name another place for the backup."
            )
            raise LedgerUnavailable(msg, ledger=ledger.address)


def migrate(
    ledger: Ledger, texts: Sequence[str], forms: Sequence[Rewrite], version: int
) -> None:
    """Migrate, verify, and write an entry into each journal, in one transaction.

    It begins as soon as no step runs, for a minute.
    """
    until = time.monotonic() + _SECONDS
    # The secret is read before the tables are locked.
    ledger.digests.is_readable()
    while True:
        try:
            with ledger.writing() as transaction:
                if ledger.database.has_server:
                    transaction.send([("wait_shortly", {}), ("stop_steps", {})])
                transaction.begin(lock=False)
                body = {"from": str(transaction.version), "to": str(version)}
                transaction.send([(text, {}) for text in texts])
                transaction.send([("set_version", {"version": version})])
                transaction.version = version
                # The tables are those that this version reads; no migration drops
                # anything.
                check_whole(ledger, "Nothing was changed.", transaction)
                for form in forms:
                    rewrite_requests(transaction, form)
                return write_upgrades(ledger, transaction, body, rewrites=len(forms))
        except LedgerUnavailable as error:
            if "waited" not in error.details or time.monotonic() > until:
                raise


def rewrite_requests(transaction: Any, form: Rewrite) -> None:
    """Write the request of each charge in a newer form."""
    for row in read_rows(transaction, tables()["charge"]):
        charge = Charge.from_columns(tuple(row.values()))
        after = charge._replace(request=form(dict(charge.request)))
        transaction.send([("rewrite_request", name_columns(after))])
