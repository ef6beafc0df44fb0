"""Making a ledger, opening one that exists, and the pin of its id."""

from __future__ import annotations

import os
import re
import secrets
import uuid
from datetime import UTC, datetime
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from dpflow.config import ENVIRONMENT_VARIABLE, NO_WITNESS, WITNESS_VARIABLE, expand
from dpflow.exceptions import ConfigurationError, LedgerCorrupt
from dpflow.interrupts import without_interrupts
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.provenance import provenance
from dpflow.ledger.requests import Conditions
from dpflow.ledger.tables.errors import MEMORY, driver_needed, is_postgres
from dpflow.ledger.tables.sqlite import MemoryDatabase, SqliteDatabase
from dpflow.ledger.tables.transaction import Identity
from dpflow.ledger.witness.base import WitnessAt
from dpflow.ledger.witness.comparison import Watch
from dpflow.ledger.witness.file import FileWitness
from dpflow.ledger.witness.lines import Witnessed

LOCK_NAME = "ledger.lock"
_ID = re.compile("[0-9a-f]{32}", re.ASCII)
_NAME_LENGTH = 200
#: The only URL that may be opened while a test keeps the others closed; child processes
#: inherit it.
FENCE_VARIABLE = "DPFLOW_TEST_LEDGER_ONLY"


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
    if not (environment or "").isprintable() or len(environment or "") > _NAME_LENGTH:
        msg = (
            f"a ledger cannot be created for the environment {environment!r:.60}. "
            f"Nothing was written. Set {ENVIRONMENT_VARIABLE}, or `environment` in "
            f"[tool.dpflow], to at most {_NAME_LENGTH} printable characters."
        )
        raise ConfigurationError(msg)
    witness_of = witness_at(witness, url)
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    identity = Identity(uuid.uuid4().hex, environment, at)
    if witness_of is not None:
        # Before anything is made that would lack a witness.
        witness_of(identity.ledger).exists()
    kind, address = find_database(url)
    database = kind.create(address, identity, secrets.token_bytes(32))
    ledger = watch_ledger(database, witness_of)
    if ledger.watch.witness is not None:
        ledger.watch.witness.begin(Witnessed())
    return ledger


def open_ledger(
    url: str,
    *,
    policies: Path | None = None,
    witness: str | None = None,
    environment: str | None = None,
    conditions: Conditions | None = None,
    read_only: bool = False,
    in_move: bool = False,
) -> Ledger:
    """Open a ledger that exists.

    Args:
        url: `sqlite:///path/to/ledger.db` (four slashes for an absolute path), or
            `postgresql://user:password@host/database`. In tests also `memory://NAME`,
            which ends with the process.
        policies: Folder whose `ledger.lock` pins the ledger's id. A ledger with
            another id is refused: a fresh one would forget what has been spent.
        witness: Place of its witness, which every decision asks: a folder,
            `postgresql://...` of another database; "none" waives it. Default: a folder
            in the user's state directory.
        environment: What this process runs in, such as "production". A ledger for
            one environment serves no other.
        conditions: How it decides, and who is recorded. Default: this user.
        read_only: Only show it: the database refuses every write.
        in_move: Open it although a move of it was begun, to continue the move.

    Raises:
        LedgerMissing: If there is no ledger; opening creates no new one.
        LedgerUnavailable: If it cannot be read and written now.
        LedgerCorrupt: If it is not the ledger that was pinned.
        ConfigurationError: If the URL or the pin cannot be read, or the ledger serves
            another environment.
    """
    witness_of = witness_at(witness, url)
    kind, address = find_database(url)
    database = kind(address, read_only=read_only)
    database.is_copy = in_move
    ledger = watch_ledger(database, witness_of, conditions=conditions)
    serves = ledger.environment
    if serves is not None and serves != environment:
        this = "says none" if environment is None else f"says {environment!r}"
        msg = (
            f"the ledger {ledger.address} serves the environment {serves!r}, and this "
            f"run {this}. Set DPFLOW_ENVIRONMENT={serves} if that is what it is, or "
            "DPFLOW_LEDGER_URL to the ledger of its own environment."
        )
        raise ConfigurationError(msg)
    if policies is not None:
        check_pin(ledger, policies)
    return ledger


def watch_ledger(
    database: Any, witness_of: WitnessAt | None, *, conditions: Conditions | None = None
) -> Ledger:
    """Return the ledger of a database with its witness, which is not read yet."""
    witness = None if witness_of is None else witness_of(database.identity.ledger)
    watch = Watch(database, witness)
    return Ledger(database, database.owners(), watch, conditions=conditions)


def conditions_at(root: Path, *, applies_policies: bool) -> Conditions:
    """Return who acts in a project, with which code, for the journal.

    Args:
        root: Folder of the project.
        applies_policies: Whether the first step applies its policy.
    """
    return Conditions(provenance=provenance(root), applies_policies=applies_policies)


def check_pin(ledger: Ledger, policies: Path) -> None:
    """Refuse another ledger than the one that a project pins.

    Raises:
        LedgerCorrupt: If it is another one.
    """
    pinned = read_pin(policies, ledger.address)
    if pinned != ledger.id:
        msg = (
            f"{ledger.address} has id {ledger.id}, but {policies / LOCK_NAME} pins "
            f"{pinned}. A fresh or foreign ledger would forget what has been spent: "
            "restore the pinned one."
        )
        raise LedgerCorrupt(msg, ledger=ledger.address)


def find_database(url: str) -> tuple[Any, Path | str]:
    """Return the class of a ledger's database, and its address.

    While a test has a ledger to itself, every other one is refused.

    Raises:
        ConfigurationError: If the URL names none, its driver is not installed, or a
            test keeps it closed.
    """
    only = os.environ.get(FENCE_VARIABLE)
    if only and url != only:
        # The URL may hold a password.
        kind = url.partition(":")[0][:20]
        msg = (
            f"a {kind} ledger was opened inside a test that uses dpflow_ledger, "
            "which keeps every ledger but its own closed. Remove what names the other "
            "one (DPFLOW_LEDGER_URL, a Prefect block, open_ledger) from the test, or "
            "do without the fixture."
        )
        raise ConfigurationError(msg)
    if is_postgres(url):
        with driver_needed("a ledger"):
            # The driver's import takes as long as all of dpflow's own.
            from dpflow.ledger.tables.postgres import PostgresDatabase  # noqa: PLC0415
        return PostgresDatabase, url
    if url.startswith(MEMORY):
        return MemoryDatabase, url.removeprefix(MEMORY)
    return SqliteDatabase, sqlite_path(url)


def witness_at(setting: str | None, ledger_url: str) -> WitnessAt | None:
    """Return what makes the witness of a ledger from its id; None if it is waived.

    Nothing is opened yet.

    Args:
        setting: A folder, `postgresql://...` of another database than the ledger's,
            or "none"; None for DPFLOW_WITNESS, else the default of the kind of
            database.
        ledger_url: Where the ledger is.

    Raises:
        ConfigurationError: If no default would protect the ledger, or the setting
            names no place, one that will not do, or one whose library is not
            installed.
    """
    setting = setting or os.environ.get(WITNESS_VARIABLE, "").strip() or None
    shared = is_postgres(ledger_url)
    # A ledger in memory ends with its process, and no older copy of it can come back.
    if setting == NO_WITNESS or ledger_url.startswith(MEMORY):
        return None
    if setting is not None and is_postgres(setting):
        with driver_needed("a witness"):
            # The driver's import takes as long as all of dpflow's own.
            from dpflow.ledger.witness.postgres import PostgresWitness  # noqa: PLC0415
        return partial(PostgresWitness, setting, ledger_url if shared else None)
    if "://" in (setting or "") or (setting is None and shared):
        what = "is not set" if setting is None else f"names {setting.split(':')[0]}"
        msg = (
            f"the place of the witness {what}. Set `witness` in [tool.dpflow] of "
            "pyproject.toml, or DPFLOW_WITNESS, to a folder that all workers share and "
            "that is not restored together with the ledger, to postgresql://... of "
            f"another database, or to the word {NO_WITNESS!r} to do without one."
        )
        raise ConfigurationError(msg)
    if setting is not None and not setting.startswith("/"):
        setting = expand(setting, "the witness")
    folder = _state_folder() if setting is None else Path(setting).absolute()
    return lambda ledger: FileWitness(folder / f"{ledger}.witness", ledger)


def _state_folder() -> Path:
    """Return the folder of witnesses in the user's state folder.

    Raises:
        ConfigurationError: If there is no home folder.
    """
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    # The specification says to ignore relative ones.
    if not state.is_absolute():
        try:
            state = Path.home() / ".local" / "state"
        except without_interrupts(RuntimeError) as error:
            msg = "the user has no home folder for the witness; set DPFLOW_WITNESS"
            raise ConfigurationError(msg) from error
    return state / "dpflow"


def place_of(url: str) -> str:
    """Return the place that a ledger URL names, without any secret, for messages.

    Raises:
        ConfigurationError: If the URL names none.
    """
    kind, address = find_database(url)
    return str(kind(address).address)


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
    return Path(path if path.startswith("/") else expand(path, "the ledger's file"))


def roles_script() -> str:
    """Return the SQL that makes the roles of a ledger on PostgreSQL."""
    return files("dpflow.ledger.tables").joinpath("roles.sql").read_text("utf-8")


def pin_ledger(ledger: Ledger, policies: Path) -> Path:
    """Write the ledger's id next to the policies; commit that file.

    Raises:
        ConfigurationError: If a ledger is pinned there, or it cannot be written.
    """
    lock = policies / LOCK_NAME
    try:
        policies.mkdir(parents=True, exist_ok=True)
        with lock.open("x", encoding="utf-8") as file:
            file.write(f"{ledger.id}\n")
    except without_interrupts(OSError) as error:
        msg = (
            f"cannot write {lock}: {error.strerror}. If it pins another ledger, "
            "restore that one; remove the file only if that budget is to be forgotten."
        )
        raise ConfigurationError(msg) from error
    return lock


def read_pin(policies: Path, address: str) -> str:
    """Return the id of the ledger that a project pins.

    Args:
        policies: Folder with `ledger.lock`.
        address: The ledger, for messages.

    Raises:
        ConfigurationError: If the pin cannot be read.
    """
    lock, new = policies / LOCK_NAME, ""
    try:
        text = lock.read_text("utf-8", "replace").strip()
        if _ID.fullmatch(text):
            return text
        problem = "holds no id of a ledger, which is 32 digits and letters a to f"
    except without_interrupts(OSError) as error:
        problem = f"holds no id, because it cannot be read ({error.strerror})"
        new = "; for a new project run `dpflow ledger init`"
    msg = (
        f"{lock} {problem}. So nothing says that {address} is the right ledger. "
        f"Restore the file from version control{new}."
    )
    raise ConfigurationError(msg)
