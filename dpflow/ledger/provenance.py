"""Who writes to the ledger, with which code: recorded, not proved."""

from __future__ import annotations

import getpass
import socket
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from dpflow.exceptions import ConfigurationError
from dpflow.interrupts import suppress, without_interrupts
from dpflow.policy.revisions import git

_SECONDS = 5


@cache
def system_user() -> str:
    """Return the operating system's name for the user."""
    try:
        return getpass.getuser()
    except without_interrupts(KeyError, OSError):
        return "unknown"


@cache
def writer() -> str:
    """Return who writes: the operating-system user and the host."""
    return f"{system_user()}@{socket.gethostname()}"


@cache
def provenance(root: Path | None = None) -> Mapping[str, Any]:
    """Return what each journal entry of this process says about its origin.

    Read once per process: a later commit is not what it runs.

    Args:
        root: The project's root; its git commit is recorded, and whether tracked files
            differed from it (`dirty`).
    """
    fields: dict[str, Any] = {
        "who": system_user(),
        "dpflow": str(getattr(sys.modules["dpflow"], "__version__", "unknown")),
    }
    commit = None if root is None else _git(root, "rev-parse", "HEAD")
    if root is not None and commit:
        changed = _git(root, "status", "--porcelain", "--untracked-files=no")
        # If git does not say, the code may be any.
        fields["code"] = {"commit": commit, "dirty": changed != ""}
    return fields


def _git(folder: Path, *arguments: str) -> str | None:
    """Return git's answer about a folder; None without git, repository or answer."""
    with suppress(ConfigurationError):
        answer = git(folder, *arguments, seconds=_SECONDS)
        return None if answer is None else answer.decode("utf-8", "replace").strip()
    return None
