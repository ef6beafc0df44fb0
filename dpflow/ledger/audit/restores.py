"""Restoring a backup: the same copy back, repaired before any step may use it."""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from dpflow.durable import sync_path
from dpflow.exceptions import DpflowError, LedgerUnavailable, require
from dpflow.interrupts import suppress, without_interrupts
from dpflow.ledger.account_ids import split
from dpflow.ledger.audit.copies import fill_copy
from dpflow.ledger.audit.reconcile import Repaired, end_in_full, reconcile
from dpflow.ledger.audit.verify import check_whole, open_snapshot
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import find_database, witness_at
from dpflow.ledger.tables.owners import Liveness
from dpflow.ledger.tables.sqlite import SqliteDatabase
from dpflow.ledger.tables.sqlite_files import (
    open_for_reading,
    real_path,
    translate_error,
)
from dpflow.ledger.witness.comparison import state_of_ledger
from dpflow.ledger.witness.lines import Witnessed
from dpflow.locks import LOCK_SECONDS, FileLock

_ENDS = ("", "-wal", "-shm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a restore did.

    Attributes:
        repaired: The datasets that the backup lacked something of.
        aside: The file that was replaced; None if none was.
    """

    repaired: tuple[Repaired, ...]
    aside: Path | None


def restore(
    backup: Path,
    url: str,
    *,
    reason: str,
    witness: str | None = None,
    ledger_id: str | None = None,
    accept_loss: bool = False,
) -> Restored:
    """Put a backup in the place of a ledger, and charge again what it lacks.

    A replaced file stays next to the new one. PostgreSQL needs an empty schema.

    Args:
        backup: A file that `backup` made.
        url: The ledger's place.
        reason: Why, for the journal.
        witness: As for `open_ledger`.
        ledger_id: The pinned id; a backup of another ledger is refused.
        accept_loss: Restore although nothing says what was charged since.

    Raises:
        ConfigurationError: If nothing says what was charged since, or another ledger
            is at the place.
        LedgerCorrupt: If the backup is damaged.
    """
    require(backup.is_file(), f"there is no file {backup}. Nothing was restored.")
    kind, address = find_database(url)
    witness_of = witness_at(witness, url)
    database: Any = SqliteDatabase(backup, read_only=True)
    database.is_at_rest = True
    source = Ledger(database, Liveness())
    require(
        ledger_id in (None, source.id),
        f"the backup {backup} is of the ledger {source.id}, and the project pins "
        f"{ledger_id}. Nothing was restored.",
    )
    own_witness = None if witness_of is None else witness_of(source.id)
    is_known = own_witness is not None and own_witness.exists()
    state = own_witness.read_all() if own_witness is not None and is_known else None
    file = address if isinstance(address, Path) else None
    replaced = read_replaced(file, source.id) if file else None
    state = replaced if state is None else state
    check_whole(source, "It is the backup. Nothing was restored.")
    unknown = find_unknown(source, state)
    require(
        accept_loss or not unknown,
        f"{unknown} what was charged since {backup} was made. Nothing was restored. "
        "Set DPFLOW_WITNESS to the witness of that time, or write --accept-loss: what "
        "was charged since is forgotten.",
    )
    where = file.with_name(f"{file.name}.{os.getpid()}.new") if file else address
    repaired = []
    with fill_copy(source, kind, where, own_witness) as there:
        if state is not None:
            repaired = reconcile(there, reason=reason, witnessed=state)
        else:
            end_in_full(there, reason)
        if own_witness is not None and (unknown or not is_known):
            begun = state_of_ledger(there.database, is_trusted=bool(unknown))
            own_witness.begin(begun, anew=is_known)
    aside = replace_file(Path(where), file, replaced) if file else None
    return Restored(repaired=tuple(repaired), aside=aside)


def find_unknown(source: Ledger, state: Witnessed | None) -> str:
    """Return what does not say what a backup lacks; "" if the state says it.

    Args:
        source: The backup.
        state: What the witness, or the replaced ledger, holds.
    """
    if state is None:
        return "neither a witness nor the replaced ledger says"
    for account in state_of_ledger(source.database).uses:
        if (name := split(account)[0]) not in state.heads:
            return f"nothing of dataset {name!r} was witnessed, so nothing says"
    with open_snapshot(source) as transaction:
        for name, head in state.heads.items():
            own_hash = transaction.hash_of(name, head.trusted_number)
            if head.trusted_number and own_hash != head.trusted_hash:
                return (
                    f"`ledger trust` began the witness of dataset {name!r} after a "
                    "loss, so it does not say"
                )
    return ""


def read_replaced(path: Path, ledger: str) -> Witnessed | None:
    """Return what the ledger at a place holds; None if it cannot be read.

    Raises:
        ConfigurationError: If it is another ledger.
    """
    if (left := find_left(path)) is None:
        return None
    database: Any = SqliteDatabase(left, read_only=True)
    state, ledger_id = None, ledger
    with suppress(DpflowError):
        ledger_id = database.identity.ledger
        state = state_of_ledger(database)
    require(
        ledger_id == ledger,
        f"the ledger at {path} is another one, with id {ledger_id}. Nothing was "
        "restored. Move it away first.",
    )
    return state


def find_left(path: Path) -> Path | None:
    """Return the path of the replaced ledger; None without one.

    A restore that ended between its renames left it under another name.
    """
    leaving = path.with_name(f"{path.name}.replaced")
    if path.exists() or not leaving.exists():
        return path if path.exists() else None
    rename_files(path, leaving)
    return leaving


def replace_file(fresh: Path, path: Path, replaced: Witnessed | None) -> Path | None:
    """Put a file in the place of another, and return where that one stays.

    Args:
        fresh: The new file.
        path: Path of the replaced file.
        replaced: What the file at the place held when it was read.

    Raises:
        LedgerUnavailable: If it was charged since, or is in use for too long.
    """
    names = (path.with_name(f"{path.name}.replaced-{n}") for n in count(1))
    aside = next(name for name in names if not name.exists())
    leaving = path.with_name(f"{path.name}.replaced")

    def replace(_: int) -> None:
        check_unchanged(path, replaced)
        if path.exists():
            if leaving.exists():
                rename_files(leaving, path.with_name(f"{aside.name}-older"))
            rename_files(path, leaving)
        fresh.rename(path)
        sync_path(path.parent)

    try:
        FileLock(real_path(path, ".lock")).run(replace, LOCK_SECONDS)
    except without_interrupts(sqlite3.Error, OSError) as error:
        raise translate_error(error, path, 0) from None
    finally:
        for end in _ENDS:
            fresh.with_name(f"{fresh.name}{end}").unlink(missing_ok=True)
    if not leaving.exists():
        return None
    rename_files(leaving, aside)
    return aside


def check_unchanged(path: Path, replaced: Witnessed | None) -> None:
    """Refuse to replace a ledger that was charged after it was read.

    Raises:
        LedgerUnavailable: If it was.
    """
    if replaced is None or not path.exists():
        return
    with open_for_reading(path) as connection:
        rows = connection.execute("SELECT name, number, hash FROM dataset").fetchall()
    heads = [(name, head.number, head.hash) for name, head in replaced.heads.items()]
    if sorted(rows) != sorted(heads):
        msg = (
            f"the ledger {path} was charged while its backup was restored. It was not "
            "replaced. End all runs, and restore the backup again."
        )
        raise LedgerUnavailable(msg, ledger=str(path))


def rename_files(path: Path, to: Path) -> None:
    """Rename what there is of a file and its companions, the file first."""
    for end in _ENDS:
        old = path.with_name(f"{path.name}{end}")
        if old.exists():
            old.rename(to.with_name(f"{to.name}{end}"))
