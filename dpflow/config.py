"""Where the ledger and the policies are: environment, pyproject.toml, defaults."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpflow.exceptions import ConfigurationError

LEDGER_VARIABLE = "DPFLOW_LEDGER_URL"
POLICIES_VARIABLE = "DPFLOW_POLICIES"
_KEYS = ("ledger_url", "policies")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where things are.

    Attributes:
        root: The project's root: the folder of the nearest pyproject.toml above the
            working directory, else the working directory.
        ledger_url: `sqlite:////absolute/path` or `postgresql://...`; may hold a
            password, so that it is never shown.
        policies: Folder of the policy files and of `ledger.lock`.
    """

    root: Path
    ledger_url: str = field(repr=False)
    policies: Path


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
    return Settings(
        root=root,
        ledger_url=_absolute(ledger or "sqlite:///.dpflow/ledger.db", root),
        policies=root / (policies or "policies"),
    )


def project_root(directory: Path) -> Path:
    """Return the nearest folder upwards that has a pyproject.toml, else itself."""
    for folder in (directory, *directory.parents):
        if (folder / "pyproject.toml").is_file():
            return folder
    return directory


def _absolute(url: str, root: Path) -> str:
    prefix = "sqlite:///"
    if not url.startswith(prefix):
        return url
    # Joining with an absolute path leaves that one as it is.
    return f"{prefix}{root / url.removeprefix(prefix)}"


def _table(pyproject: Path) -> dict[str, str]:
    try:
        data = tomllib.loads(pyproject.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
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
