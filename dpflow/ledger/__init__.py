"""The durable ledger: an append-only journal and the tallies that it implies."""

from __future__ import annotations

import secrets
import uuid
from pathlib import Path

from dpflow.exceptions import ConfigurationError, LedgerCorrupt, LedgerUnavailable
from dpflow.ledger.account import now
from dpflow.ledger.database import MIN_WRITER, SCHEMA_VERSION, migrations
from dpflow.ledger.kernel import Ledger, identity_row
from dpflow.ledger.owner import Owners
from dpflow.ledger.sqlite import SqliteDatabase

__all__ = [
    "Ledger",
    "create_ledger",
    "migrate_ledger",
    "open_ledger",
    "pin_ledger",
]

LOCK_NAME = "ledger.lock"


def open_ledger(url: str, *, policies: Path | None = None) -> Ledger:
    """Open a ledger that exists.

    Args:
        url: `sqlite:///path/to/ledger.db` (four slashes for an absolute path).
        policies: Folder whose `ledger.lock` pins the ledger's id. A ledger with
            another id is refused: a fresh one would forget what has been spent.

    Raises:
        LedgerMissing: If there is none; it is never made by itself.
        LedgerUnavailable: If it cannot be read and written now.
        LedgerCorrupt: If it is not the ledger that was pinned.
        ConfigurationError: If the URL or the pin cannot be read.
    """
    path = sqlite_path(url)
    ledger = Ledger(SqliteDatabase(path), _owners(path))
    if policies is not None:
        _check_pin(ledger, policies / LOCK_NAME)
    return ledger


def create_ledger(url: str) -> Ledger:
    """Make a new, empty ledger.

    Raises:
        ConfigurationError: If there is a file at this place.
        LedgerUnavailable: If the file cannot be written.
    """
    path = sqlite_path(url)
    identity = {
        "ledger_id": uuid.uuid4().hex,
        "schema_version": SCHEMA_VERSION,
        "min_writer": MIN_WRITER,
        "release_secret": secrets.token_hex(32),
        "at": now(),
    }
    # One transaction: a ledger never exists without its identity.
    database = SqliteDatabase.create(
        path, lambda session: session.change("create_ledger", **identity)
    )
    return Ledger(database, _owners(path))


def migrate_ledger(url: str) -> tuple[int, int]:
    """Bring a ledger to this version's schema; nothing in its journal changes.

    Returns:
        The schema before and after.

    Raises:
        LedgerUnavailable: If it cannot be written, or was made by a newer dpflow.
        LedgerCorrupt: If it would not be consistent afterwards; it stays as it was.
    """
    database = SqliteDatabase(sqlite_path(url))
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
            "write sqlite:///relative/ledger.db or sqlite:////absolute/ledger.db"
        )
        raise ConfigurationError(msg)
    return Path(path)


def _owners(path: Path) -> Owners:
    # All names of one ledger file must share its owners.
    path = path.resolve()
    return Owners(path.with_name(f"{path.name}.owners"))


def _check_pin(ledger: Ledger, lock: Path) -> None:
    try:
        pinned = lock.read_text("utf-8").strip()
    except FileNotFoundError:
        msg = (
            f"there is no {lock}, so nothing says that {ledger.place} is the right "
            "ledger. Restore it from version control; for a new project run "
            "`dpflow ledger init`."
        )
        raise ConfigurationError(msg) from None
    except OSError as error:
        msg = f"cannot read {lock}: {error.strerror}"
        raise ConfigurationError(msg) from error
    if pinned != ledger.id:
        msg = (
            f"{ledger.place} has id {ledger.id}, but {lock} pins {pinned}. A fresh or "
            "foreign ledger would forget what has been spent: restore the pinned one."
        )
        raise LedgerCorrupt(msg, ledger=ledger.place)
