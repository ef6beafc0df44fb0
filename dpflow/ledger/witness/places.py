"""Where a witness is: a folder, another PostgreSQL database, or Prefect's server."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

from dpflow.config import NO_WITNESS, PREFECT_WITNESS, WITNESS_VARIABLE
from dpflow.exceptions import ConfigurationError, how_to_install
from dpflow.ledger.storage.base import FSYNC, PLATFORM
from dpflow.ledger.storage.memory import MEMORY
from dpflow.ledger.witness.base import Witness, WitnessAt
from dpflow.ledger.witness.file import FileLog
from dpflow.ledger.witness.log import Log

_POSTGRES = ("postgresql://", "postgres://")


def witness_at(
    setting: str | None, ledger_url: str, durability: str = FSYNC
) -> WitnessAt | None:
    """Return what makes the witness of a ledger from its id; None if it is waived.

    Nothing is opened yet.

    Args:
        setting: A folder, `postgresql://...` of another database than the ledger's,
            `prefect:` or "none"; None for DPFLOW_WITNESS, else the default of the kind
            of database.
        ledger_url: Where the ledger is.
        durability: Of the ledger. With `PLATFORM` only a database on another server
            will do, for of any other place nobody sees what storage is below it.

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
    if durability == PLATFORM and not (setting or "").startswith(_POSTGRES):
        raise _may_be_lost_with_it(setting)
    if setting == NO_WITNESS:
        return None
    if setting == PREFECT_WITNESS:
        return _in_log(_prefect_log())
    if setting is not None and setting.startswith(_POSTGRES):
        its = ledger_url if shared else None
        return _in_log(_postgres_log(setting, its, durability))
    if setting is not None and "://" not in setting:
        return _in_folder(Path(setting).absolute())
    if setting is None and not shared:
        return _in_folder(_state_folder() / "dpflow")
    what = "is not set" if setting is None else f"names {setting.partition(':')[0]}"
    msg = (
        f"the place of the witness {what}. Set `witness` in [tool.dpflow] of "
        "pyproject.toml, or DPFLOW_WITNESS, to a folder that all workers share and "
        "that is not restored together with the ledger, to postgresql://... of another "
        f"database, to {PREFECT_WITNESS} for Prefect's server, or to the word "
        f"{NO_WITNESS!r} to do without one."
    )
    raise ConfigurationError(msg)


def _may_be_lost_with_it(setting: str | None) -> ConfigurationError:
    what = {
        None: "the place of the witness is not set",
        NO_WITNESS: "the witness is waived",
        PREFECT_WITNESS: "the witness is in Prefect's server",
    }.get(setting, "the witness is in a folder")
    msg = (
        f"{what}, and the durability of the ledger is {PLATFORM!r}: its server does "
        "not say that it keeps what it acknowledges, so each charge needs a witness "
        "that is certainly elsewhere. Set DPFLOW_WITNESS, or `witness` in "
        "[tool.dpflow], to postgresql://... of a database on another server whose own "
        "fsync is on."
    )
    return ConfigurationError(msg)


def witness_folder(setting: str | None) -> Path:
    """Return a folder for witnesses of files that lie beside the ledger.

    It is the folder of the ledger's witness, if that is in one, else the default.

    Raises:
        ConfigurationError: If there is no home folder.
    """
    setting = setting or os.environ.get(WITNESS_VARIABLE, "").strip() or None
    if setting in (None, NO_WITNESS, PREFECT_WITNESS) or "://" in str(setting):
        return _state_folder() / "dpflow"
    return Path(str(setting)).absolute()


def _in_folder(folder: Path) -> WitnessAt:
    return lambda ledger: Witness(FileLog(folder / f"{ledger}.witness"), ledger)


def _in_log(log: Log) -> WitnessAt:
    return lambda ledger: Witness(log, ledger)


def _postgres_log(url: str, ledger_url: str | None, durability: str) -> Log:
    try:
        # The driver's import takes as long as all of dpflow's own.
        from dpflow.ledger.witness.postgres import PostgresLog  # noqa: PLC0415
    except ImportError as error:
        msg = (
            "a witness on PostgreSQL needs the driver psycopg 3; "
            f"{how_to_install('postgres')} ({error})"
        )
        raise ConfigurationError(msg) from error
    return PostgresLog(url, ledger_url, durability=durability)


def _prefect_log() -> Log:
    try:
        # By name: Prefect is imported for this only.
        log: Log = import_module("dpflow.contrib.prefect_witness").PrefectLog()
    except ImportError as error:
        msg = f"a witness in Prefect needs Prefect: pip install prefect ({error})"
        raise ConfigurationError(msg) from error
    return log


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
