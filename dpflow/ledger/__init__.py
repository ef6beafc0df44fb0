"""The durable ledger: an append-only journal and the tallies that it implies."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpflow.exceptions import (
    ConfigurationError,
    LedgerCorrupt,
    LedgerUnavailable,
    how_to_install,
)
from dpflow.ledger.account import now
from dpflow.ledger.database import (
    MIN_WRITER,
    SCHEMA_VERSION,
    Database,
    Session,
    migrations,
)
from dpflow.ledger.fence import check_fence
from dpflow.ledger.identity import identity_row
from dpflow.ledger.kernel import Ledger
from dpflow.ledger.memory import MEMORY, MemoryDatabase, MemoryOwners
from dpflow.ledger.owner import Liveness, Owners
from dpflow.ledger.readonly import ReadOnlyDatabase
from dpflow.ledger.records import Conditions
from dpflow.ledger.sqlite import SqliteDatabase
from dpflow.ledger.witness_places import witness_at

if TYPE_CHECKING:
    from dpflow.ledger.postgres import PostgresDatabase

__all__ = [
    "Ledger",
    "accept_server",
    "create_ledger",
    "database_at",
    "is_postgres",
    "migrate_ledger",
    "open_ledger",
    "pin_ledger",
    "pinned_id",
    "roles_script",
]

LOCK_NAME = "ledger.lock"


def open_ledger(
    url: str,
    *,
    policies: Path | None = None,
    witness: str | None = None,
    environment: str | None = None,
    conditions: Conditions | None = None,
    read_only: bool = False,
) -> Ledger:
    """Open a ledger that exists.

    Args:
        url: `sqlite:///path/to/ledger.db` (four slashes for an absolute path), or
            `postgresql://user:password@host/database`. In tests also `memory://NAME`,
            which ends with the process.
        policies: Folder whose `ledger.lock` pins the ledger's id. A ledger with
            another id is refused: a fresh one would forget what has been spent.
        witness: Place of its witness, which every decision asks: a folder,
            `postgresql://...` of another database, or `prefect:`; "none" waives it.
            Default: a folder in the user's state directory.
        environment: What this process runs in, such as "production". A ledger that was
            made for one serves no other.
        conditions: How it decides, and who is recorded. Default: this user.
        read_only: Only show it: the database refuses every write.

    Raises:
        LedgerMissing: If there is none; it is never made by itself.
        LedgerUnavailable: If it cannot be read and written now.
        LedgerCorrupt: If it is not the ledger that was pinned.
        ConfigurationError: If the URL or the pin cannot be read, or the ledger serves
            another environment.
    """
    database = database_at(url)
    ledger = Ledger(
        ReadOnlyDatabase(database) if read_only else database,
        _owners(database),
        witness_at(witness, url),
        environment=environment,
        conditions=conditions,
    )
    if policies is not None:
        _check_pin(ledger, policies)
    return ledger


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
    place = witness_at(witness, url)
    identity: dict[str, Any] = {
        "ledger_id": uuid.uuid4().hex,
        "schema_version": SCHEMA_VERSION,
        "min_writer": MIN_WRITER,
        "release_secret": secrets.token_hex(32),
        "at": now(),
        "environment": environment,
    }

    def fill(session: Session) -> None:
        # In the tables' transaction: a ledger never exists without its identity.
        session.post("create_ledger", **identity)

    if place is not None:
        # Before anything is made that would lack a witness.
        place(identity["ledger_id"]).exists()
    database = _created(url, fill)
    ledger = Ledger(database, _owners(database), place, environment=environment)
    if ledger.watch.witness is not None:
        ledger.watch.witness.enrol(0, [])
    return ledger


def migrate_ledger(url: str) -> tuple[int, int]:
    """Bring a ledger to this version's schema; nothing in its journal changes.

    Returns:
        The schema before and after.

    Raises:
        LedgerUnavailable: If it cannot be written, or was made by a newer dpflow.
        LedgerCorrupt: If it would not be consistent afterwards; it stays as it was.
    """
    database = database_at(url)
    try:
        with database.read() as session:
            before = int(identity_row(session, database.place)["schema_version"])
        scripts = migrations(database.dialect)
        database.migrate([text for step, text in scripts.items() if step > before])
    finally:
        database.close()
    return before, SCHEMA_VERSION


def pin_ledger(ledger: Ledger, policies: Path) -> Path:
    """Write the ledger's id beside the policies; commit that file.

    Raises:
        ConfigurationError: If another ledger is pinned there.
    """
    lock = policies / LOCK_NAME
    try:
        policies.mkdir(parents=True, exist_ok=True)
        with lock.open("x", encoding="utf-8") as file:
            file.write(f"{ledger.id}\n")
    except FileExistsError:
        msg = (
            f"{lock} pins another ledger. Restore that one, or remove the file if its "
            "budget is really to be forgotten."
        )
        raise ConfigurationError(msg) from None
    except OSError as error:
        msg = f"cannot write {lock}: {error.strerror}"
        raise LedgerUnavailable(msg, ledger=ledger.place) from error
    return lock


def accept_server(url: str, *, because: str) -> None:
    """Let a ledger go on after its PostgreSQL server was replaced.

    Args:
        url: `postgresql://...`.
        because: Why nothing that was charged is missing on the new server.

    Raises:
        ConfigurationError: If the ledger is a file; it has no server.
        LedgerUnavailable: If the server is out of reach or not durable.
    """
    if not is_postgres(url):
        msg = "the ledger is a SQLite file, which has no server to accept"
        raise ConfigurationError(msg)
    check_fence(url)
    database = _postgres()(url)
    try:
        database.accept_server(because=because)
    finally:
        database.close()


def roles_script() -> str:
    """Return the SQL that makes the roles of a ledger on PostgreSQL."""
    return files("dpflow.ledger").joinpath("postgres_roles.sql").read_text("utf-8")


def database_at(url: str) -> Database:
    """Return the database that a ledger URL names; nothing is opened yet.

    Raises:
        ConfigurationError: If the URL names none, its driver is not installed, or a
            test keeps it closed.
    """
    check_fence(url)
    if is_postgres(url):
        return _postgres()(url)
    if url.startswith(MEMORY):
        return MemoryDatabase(url.removeprefix(MEMORY))
    return SqliteDatabase(sqlite_path(url))


def is_postgres(url: str) -> bool:
    """Say whether a ledger URL names a PostgreSQL database."""
    return url.startswith(("postgresql://", "postgres://"))


def _created(url: str, fill: Callable[[Session], None]) -> Database:
    check_fence(url)
    if is_postgres(url):
        return _postgres().create(url, fill)
    if url.startswith(MEMORY):
        return MemoryDatabase.create(url.removeprefix(MEMORY), fill)
    return SqliteDatabase.create(sqlite_path(url), fill)


def _postgres() -> type[PostgresDatabase]:
    try:
        # The driver's import takes as long as all of dpflow's own.
        from dpflow.ledger.postgres import PostgresDatabase  # noqa: PLC0415
    except ImportError as error:
        msg = (
            "a ledger on PostgreSQL needs the driver psycopg 3; "
            f"{how_to_install('postgres')} ({error})"
        )
        raise ConfigurationError(msg) from error
    return PostgresDatabase


def sqlite_path(url: str) -> Path:
    """Return the file that a ledger URL names.

    Raises:
        ConfigurationError: If the URL names no SQLite file.
    """
    prefix = "sqlite:///"
    # Cut by hand: in a path, # and ? are letters like any other.
    path = url.removeprefix(prefix)
    if path == url or not path:
        shown = f"{url.partition('://')[0]}://..." if "://" in url else url
        msg = (
            f"{shown} is no ledger URL that this version can open; "
            "write sqlite:///relative/ledger.db, sqlite:////absolute/ledger.db or "
            "postgresql://user:password@host/database"
        )
        raise ConfigurationError(msg)
    return Path(path)


def _owners(database: Database) -> Liveness:
    if isinstance(database, SqliteDatabase):
        # All names of one ledger file must share its owners.
        path = database.path.resolve()
        return Owners(path.with_name(f"{path.name}.owners"))
    if isinstance(database, MemoryDatabase):
        return MemoryOwners()
    from dpflow.ledger.postgres import PostgresDatabase  # noqa: PLC0415
    from dpflow.ledger.postgres_owner import SessionOwners  # noqa: PLC0415

    assert isinstance(database, PostgresDatabase)
    return SessionOwners(database.server)


def pinned_id(policies: Path, place: str) -> str:
    """Return the id of the ledger that a project pins.

    Args:
        policies: Folder with `ledger.lock`.
        place: The ledger, for messages.

    Raises:
        ConfigurationError: If the pin cannot be read.
    """
    lock = policies / LOCK_NAME
    try:
        return lock.read_text("utf-8").strip()
    except FileNotFoundError:
        msg = (
            f"there is no {lock}, so nothing says that {place} is the right "
            "ledger. Restore it from version control; for a new project run "
            "`dpflow ledger init`."
        )
        raise ConfigurationError(msg) from None
    except OSError as error:
        msg = f"cannot read {lock}: {error.strerror}"
        raise ConfigurationError(msg) from error


def _check_pin(ledger: Ledger, policies: Path) -> None:
    pinned, lock = pinned_id(policies, ledger.place), policies / LOCK_NAME
    if pinned != ledger.id:
        msg = (
            f"{ledger.place} has id {ledger.id}, but {lock} pins {pinned}. A fresh or "
            "foreign ledger would forget what has been spent: restore the pinned one."
        )
        raise LedgerCorrupt(msg, ledger=ledger.place)
