"""Where the ledger and the policies are: environment, pyproject.toml, defaults."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from dpflow.exceptions import ConfigurationError

LEDGER_VARIABLE = "DPFLOW_LEDGER_URL"
POLICIES_VARIABLE = "DPFLOW_POLICIES"
WITNESS_VARIABLE = "DPFLOW_WITNESS"
KEY_VARIABLE = "DPFLOW_LEDGER_KEY"
PRINCIPAL_VARIABLE = "DPFLOW_PRINCIPAL"
ENVIRONMENT_VARIABLE = "DPFLOW_ENVIRONMENT"
#: The word that does without a witness.
NO_WITNESS = "none"
#: The word for a witness in Prefect's server.
PREFECT_WITNESS = "prefect:"
#: What stands before the name of a Prefect block that holds the URL.
BLOCK_PREFIX = "prefect-block:"
_NAME_LENGTH = 200
_KEYS = ("ledger_url", "policies", "witness", "principal", "environment")
_KEY_LEAST = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where things are.

    Attributes:
        root: The project's root: the folder of the nearest pyproject.toml above the
            working directory, else the working directory.
        ledger_url: `sqlite:////absolute/path` or `postgresql://...`, also where a
            Prefect block named it; may hold a password, so that it is never shown.
        policies: Folder of the policy files and of `ledger.lock`.
        witness: Place of the ledger's witness: a folder, `postgresql://...` of another
            database or `prefect:`; "none" waives it, None is the default of the
            ledger's kind. May hold a password, so that it is never shown.
        principal: Who acts, for the journal. None: the operating system's user.
        environment: What this process runs in, such as "production"; None if nobody
            said. A ledger that was made for one serves no other.
    """

    root: Path
    ledger_url: str = field(repr=False)
    policies: Path
    witness: str | None = field(default=None, repr=False)
    principal: str | None = None
    environment: str | None = None


def settings(directory: Path | None = None) -> Settings:
    """Read the settings for a directory.

    Environment variables come first, then `[tool.dpflow]` in the project's
    pyproject.toml, then the defaults `.dpflow/ledger.db` and `policies/`.

    Args:
        directory: Default: the working directory.

    Raises:
        ConfigurationError: If pyproject.toml cannot be read or has unknown keys.
    """
    here = Path.cwd() if directory is None else Path(directory).absolute()
    root = project_root(here)
    table = _table(root / "pyproject.toml")
    ledger = os.environ.get(LEDGER_VARIABLE) or table.get("ledger_url")
    policies = os.environ.get(POLICIES_VARIABLE) or table.get("policies")
    witness = os.environ.get(WITNESS_VARIABLE) or table.get("witness")
    return Settings(
        root=root,
        ledger_url=_absolute(ledger or "sqlite:///.dpflow/ledger.db", root),
        policies=root / (policies or "policies"),
        witness=None if witness is None else _witness(witness, root),
        principal=_name(PRINCIPAL_VARIABLE, table.get("principal")),
        environment=_name(ENVIRONMENT_VARIABLE, table.get("environment")),
    )


def project_root(directory: Path) -> Path:
    """Return the nearest folder upwards that has a pyproject.toml, else itself."""
    for folder in (directory, *directory.parents):
        if (folder / "pyproject.toml").is_file():
            return folder
    return directory


def ledger_key() -> bytes | None:
    """Return the key that signs checkpoints, or None if there is none.

    Raises:
        ConfigurationError: If it is too short to keep anyone from guessing it.
    """
    key = os.environ.get(KEY_VARIABLE)
    if not key:
        return None
    if len(key) < _KEY_LEAST:
        msg = (
            f"{KEY_VARIABLE} has {len(key)} characters, at least {_KEY_LEAST} are "
            "needed. Make one with `openssl rand -hex 32`."
        )
        raise ConfigurationError(msg)
    return key.encode()


def _witness(place: str, root: Path) -> str:
    if place in (NO_WITNESS, PREFECT_WITNESS) or "://" in place:
        return place
    return str(root / place)


def _name(variable: str, given: str | None) -> str | None:
    """Return a setting that is a name; the environment variable comes first."""
    name = os.environ.get(variable) or given
    if not name:
        return None
    if not name.isprintable() or name != name.strip() or len(name) > _NAME_LENGTH:
        msg = (
            f"{variable}, or its entry in [tool.dpflow], must be 1 to {_NAME_LENGTH} "
            f"printable characters without spaces around them, got {name[:60]!r}"
        )
        raise ConfigurationError(msg)
    return name


@cache
def _block_url(name: str) -> str:
    """Ask Prefect for the URL that a block holds; once per process."""
    try:
        # By name: Prefect is imported for this only.
        url = import_module("dpflow.prefect.blocks").ledger_url(name)
    except Exception as error:
        msg = (
            f"the ledger's URL is in the Prefect block dpflow-ledger/{name}, which "
            f"cannot be loaded ({type(error).__name__}: {error}). Save it with "
            f'DpflowLedger(url=...).save("{name}"), or check PREFECT_API_URL.'
        )
        raise ConfigurationError(msg) from error
    return str(url)


def _absolute(url: str, root: Path) -> str:
    if url.startswith(BLOCK_PREFIX):
        url = _block_url(url.removeprefix(BLOCK_PREFIX))
    prefix = "sqlite:///"
    if not url.startswith(prefix):
        return url
    # Joining with an absolute path leaves that one as it is.
    return f"{prefix}{root / url.removeprefix(prefix)}"


def _table(pyproject: Path) -> dict[str, str]:
    try:
        text = pyproject.read_text("utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        msg = f"cannot read {pyproject}: {error}"
        raise ConfigurationError(msg) from error
    return _table_in(pyproject, text)


@lru_cache(maxsize=16)
def _table_in(pyproject: Path, text: str) -> dict[str, str]:
    """Read the table in a file's text, which each step would parse again."""
    try:
        data = tomllib.loads(text)
    except ValueError as error:
        msg = f"cannot read {pyproject}: {error}"
        raise ConfigurationError(msg) from error
    tool = data.get("tool", {})
    table: Any = tool.get("dpflow", {}) if isinstance(tool, dict) else {}
    if not isinstance(table, dict):
        msg = f"tool.dpflow in {pyproject} must be a table, got {table!r}"
        raise ConfigurationError(msg)
    for key, value in table.items():
        if key not in _KEYS or not isinstance(value, str):
            msg = (
                f"[tool.dpflow] in {pyproject} takes the texts {', '.join(_KEYS)}, "
                f"got {key} = {value!r}"
            )
            raise ConfigurationError(msg)
    return table
