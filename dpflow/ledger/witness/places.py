"""Place of a witness: a folder, or another PostgreSQL database."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from dpflow.config import NO_WITNESS, WITNESS_VARIABLE
from dpflow.exceptions import ConfigurationError
from dpflow.ledger.storage.base import driver_needed, is_postgres
from dpflow.ledger.storage.memory import MEMORY
from dpflow.ledger.witness.base import WitnessAt
from dpflow.ledger.witness.file import FileWitness


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
        except RuntimeError as error:
            msg = "the user has no home folder for the witness; set DPFLOW_WITNESS"
            raise ConfigurationError(msg) from error
    return state / "dpflow"
