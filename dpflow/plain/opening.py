"""Making a ledger in plain tables, and opening one that exists."""

from __future__ import annotations

import secrets
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dpflow.exceptions import ConfigurationError, LedgerCorrupt
from dpflow.ledger.opening import sqlite_path
from dpflow.ledger.records import Conditions
from dpflow.ledger.storage.base import driver_needed, is_postgres
from dpflow.ledger.storage.memory import MEMORY
from dpflow.plain.ledger import Ledger
from dpflow.plain.tables.database import Identity
from dpflow.plain.tables.sqlite import MemoryDatabase, SqliteDatabase
from dpflow.plain.witness.comparison import Watch, witness_at
from dpflow.plain.witness.lines import Witnessed


def create_ledger(
    url: str, *, environment: str | None = None, witness: str | None = None
) -> Ledger:
    """Make a new, empty ledger, and begin its witness.

    Args:
        url: Where, as for `open_ledger`.
        environment: The only one that it will serve. Default: any.
        witness: As for `open_ledger`.

    Raises:
        ConfigurationError: If there is something at this place.
        LedgerUnavailable: If it cannot be written there, or its witness is out of
            reach; then there is no ledger either.
    """
    witness_of = witness_at(witness, url)
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    identity = Identity(uuid.uuid4().hex, environment, at)
    if witness_of is not None:
        # Before anything is made that would lack a witness.
        witness_of(identity.ledger).exists()
    kind, place = find_database(url)
    database = kind.create(place, identity, secrets.token_bytes(32))
    kept = None if witness_of is None else witness_of(identity.ledger)
    if kept is not None:
        kept.begin(Witnessed())
    return Ledger(database, database.owners(), Watch(database, kept))


def open_ledger(
    url: str,
    *,
    policies: Path | None = None,
    witness: str | None = None,
    environment: str | None = None,
    conditions: Conditions | None = None,
    read_only: bool = False,
) -> Ledger:
    """Open a ledger that exists; arguments as of `dpflow.ledger.open_ledger`."""
    witness_of = witness_at(witness, url)
    kind, place = find_database(url)
    database = kind(place, read_only=read_only)
    kept = None if witness_of is None else witness_of(database.identity.ledger)
    watch = Watch(database, kept)
    ledger = Ledger(database, database.owners(), watch, conditions=conditions)
    serves = ledger.environment
    if serves is not None and serves != environment:
        this = "says none" if environment is None else f"says {environment!r}"
        msg = (
            f"the ledger {ledger.place} serves the environment {serves!r}, and this "
            f"run {this}. Set DPFLOW_ENVIRONMENT={serves} if that is what it is, or "
            "DPFLOW_LEDGER_URL to the ledger of its own environment."
        )
        raise ConfigurationError(msg)
    if policies is not None:
        check_pin(ledger, policies)
    return ledger


def check_pin(ledger: Ledger, policies: Path) -> None:
    """Refuse another ledger than the one that a project pins.

    Raises:
        LedgerCorrupt: If it is another one.
    """
    from dpflow.ledger.opening import LOCK_NAME, pinned_id  # noqa: PLC0415

    pinned = pinned_id(policies, ledger.place)
    if pinned != ledger.id:
        msg = (
            f"{ledger.place} has id {ledger.id}, but {policies / LOCK_NAME} pins "
            f"{pinned}. A fresh or foreign ledger would forget what has been spent: "
            "restore the pinned one."
        )
        raise LedgerCorrupt(msg, ledger=ledger.place)


def find_database(url: str) -> tuple[Any, Path | str]:
    """Return the class of a ledger's database, and its place."""
    if is_postgres(url):
        with driver_needed("a ledger"):
            # The driver's import takes as long as all of dpflow's own.
            from dpflow.plain.tables.postgres import PostgresDatabase  # noqa: PLC0415
        return PostgresDatabase, url
    if url.startswith(MEMORY):
        return MemoryDatabase, url.removeprefix(MEMORY)
    return SqliteDatabase, sqlite_path(url)
