"""Which ledger this is, and whether this code and this run may use it."""

from __future__ import annotations

from dpflow.exceptions import ConfigurationError, LedgerCorrupt, LedgerUnavailable
from dpflow.ledger.database import SCHEMA_VERSION, Database, Row, Session


def check_environment(place: str, serves: str | None, runs: str | None) -> None:
    """Refuse a ledger that was made for another environment than this one."""
    if serves is not None and serves != runs:
        this = "says none" if runs is None else f"says {runs!r}"
        msg = (
            f"the ledger {place} serves the environment {serves!r}, and this run "
            f"{this}. Set DPFLOW_ENVIRONMENT={serves} if that is what it is, or "
            "DPFLOW_LEDGER_URL to the ledger of its own environment."
        )
        raise ConfigurationError(msg)


def identity_row(session: Session, place: str) -> Row:
    """Return the row that says which ledger this is, whatever its schema.

    Raises:
        LedgerCorrupt: If there is none.
        LedgerUnavailable: If only a newer dpflow may write to it.
    """
    rows = session.rows("read_ledger")
    if len(rows) != 1:
        msg = f"{place} is no ledger: its identity row is missing"
        raise LedgerCorrupt(msg, ledger=place)
    row = rows[0]
    if row["min_writer"] > SCHEMA_VERSION:
        msg = (
            f"the ledger {place} needs a dpflow that writes schema "
            f"{row['min_writer']}; this one writes {SCHEMA_VERSION}. Upgrade dpflow."
        )
        raise LedgerUnavailable(msg, ledger=place)
    return row


def current_identity(session: Session, place: str) -> Row:
    """Return the row of a ledger that this code may write to.

    Raises:
        LedgerCorrupt: If there is none.
        LedgerUnavailable: If another dpflow is needed, or a migration.
    """
    row = identity_row(session, place)
    if row["schema_version"] < SCHEMA_VERSION:
        msg = (
            f"the ledger {place} has schema {row['schema_version']}, this dpflow needs "
            f"{SCHEMA_VERSION}. Back it up and run `dpflow ledger migrate`."
        )
        raise LedgerUnavailable(msg, ledger=place)
    return row


def check_same(session: Session, place: str, ledger_id: str) -> int:
    """Check that this is still the ledger that was opened; return its epoch.

    Raises:
        LedgerCorrupt: If another one is in its place.
    """
    row = current_identity(session, place)
    found = row["ledger_id"]
    if found != ledger_id:
        msg = (
            f"the ledger {place} had id {ledger_id} when it was opened and has {found} "
            "now: another ledger was put in its place. Restore the first."
        )
        raise LedgerCorrupt(msg, ledger=place)
    return int(row["epoch"])


def epoch_of(database: Database) -> int:
    """Return how many repairs a ledger had."""
    with database.read() as session:
        return int(session.rows("read_ledger")[0]["epoch"])


def check_epoch(session: Session, place: str, before: int) -> int:
    """Return how many repairs a ledger had: as many as before the witness was read.

    Raises:
        LedgerUnavailable: If it was repaired since. What is missing by the witness of
            before would be charged twice.
    """
    epoch = int(session.rows("read_ledger")[0]["epoch"])
    if epoch != before:
        msg = (
            f"somebody else repaired the ledger {place} meanwhile, and this changed "
            "nothing. Compare again with `dpflow ledger reconcile`."
        )
        raise LedgerUnavailable(msg, ledger=place)
    return epoch
