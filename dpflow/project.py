"""The ledger and the policies of the current project, opened once per process."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from dpflow.config import Settings, settings
from dpflow.ledger import Ledger, open_ledger
from dpflow.policy import PolicySet, load_policies

_Signature = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class Project:
    """What the guard needs of a project.

    Attributes:
        settings: Where things are.
        ledger: Opened, and checked against the pinned id.
        policies: As the files say now.
    """

    settings: Settings
    ledger: Ledger
    policies: PolicySet


_lock = threading.Lock()
_ledgers: dict[tuple[str, Path], Ledger] = {}
_policies: dict[Path, tuple[_Signature, PolicySet]] = {}


def current_project() -> Project:
    """Return the project of the working directory and the environment.

    The ledger stays open; policy files are read again only when one has changed.

    Raises:
        LedgerError: If the ledger is missing, out of reach or not the pinned one.
        PolicyError: If a policy file cannot be used.
        ConfigurationError: If the settings cannot be read.
    """
    found = settings()
    with _lock:
        policies = _load(found.policies)
        key = (found.ledger_url, found.policies)
        ledger = _ledgers.get(key)
        if ledger is None:
            ledger = open_ledger(found.ledger_url, policies=found.policies)
            _ledgers[key] = ledger
    return Project(found, ledger, policies)


def forget_projects() -> None:
    """Close what is open; tests use it, and programs that delete a ledger."""
    with _lock:
        for ledger in _ledgers.values():
            ledger.close()
        _ledgers.clear()
        _policies.clear()


def _load(directory: Path) -> PolicySet:
    signature = _signature(directory)
    known = _policies.get(directory)
    if known is None or known[0] != signature:
        known = _policies[directory] = (signature, load_policies(directory))
    return known[1]


def _signature(directory: Path) -> _Signature:
    if not directory.is_dir():
        return ()
    stats = [(path.name, path.stat()) for path in sorted(directory.iterdir())]
    return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)
