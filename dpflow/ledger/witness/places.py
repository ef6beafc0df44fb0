"""Place of a witness: a folder, or another PostgreSQL database."""

from __future__ import annotations

import os
from pathlib import Path

from dpflow.config import NO_WITNESS, WITNESS_VARIABLE
from dpflow.exceptions import ConfigurationError, how_to_install
from dpflow.ledger.storage.memory import MEMORY
from dpflow.ledger.witness.base import Witness, WitnessAt
from dpflow.ledger.witness.file import FileLog
from dpflow.ledger.witness.lines import Log

_POSTGRES = ("postgresql://", "postgres://")


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
    if ledger_url.startswith(MEMORY):
        # It ends with its process, and no older copy of it can come back.
        return None
    setting = setting or os.environ.get(WITNESS_VARIABLE, "").strip() or None
    shared = ledger_url.startswith(_POSTGRES)
    if setting == NO_WITNESS:
        return None
    if setting is not None and setting.startswith(_POSTGRES):
        its = ledger_url if shared else None
        log = _postgres_log(setting, its)
        return lambda ledger: Witness(log, ledger)
    if setting is not None and "://" not in setting:
        return _in_folder(Path(setting).absolute())
    if setting is None and not shared:
        return _in_folder(_state_folder() / "dpflow")
    what = "is not set" if setting is None else f"names {setting.partition(':')[0]}"
    msg = (
        f"the place of the witness {what}. Set `witness` in [tool.dpflow] of "
        "pyproject.toml, or DPFLOW_WITNESS, to a folder that all workers share and "
        "that is not restored together with the ledger, to postgresql://... of another "
        f"database, or to the word {NO_WITNESS!r} to do without one."
    )
    raise ConfigurationError(msg)


def witness_folder(setting: str | None) -> Path:
    """Return a folder for witnesses of files that lie beside the ledger.

    It is the folder of the ledger's witness, if that is in one, else the default.

    Raises:
        ConfigurationError: If there is no home folder.
    """
    setting = setting or os.environ.get(WITNESS_VARIABLE, "").strip() or None
    if setting in (None, NO_WITNESS) or "://" in str(setting):
        return _state_folder() / "dpflow"
    return Path(str(setting)).absolute()


def _in_folder(folder: Path) -> WitnessAt:
    return lambda ledger: Witness(FileLog(folder / f"{ledger}.witness"), ledger)


def _postgres_log(url: str, ledger_url: str | None) -> Log:
    try:
        # The driver's import takes as long as all of dpflow's own.
        from dpflow.ledger.witness.postgres import PostgresLog  # noqa: PLC0415
    except ImportError as error:
        msg = (
            "a witness on PostgreSQL needs the driver psycopg 3; "
            f"{how_to_install('postgres')} ({error})"
        )
        raise ConfigurationError(msg) from error
    return PostgresLog(url, ledger_url)


def _state_folder() -> Path:
    state = os.environ.get("XDG_STATE_HOME", "")
    # The specification tells to ignore relative ones.
    if Path(state).is_absolute():
        return Path(state)
    try:
        return Path.home() / ".local" / "state"
    except RuntimeError as error:
        msg = "there is no home folder for the witness; set DPFLOW_WITNESS to a folder"
        raise ConfigurationError(msg) from error
