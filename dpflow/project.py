"""The ledger and the policies of the current project, opened once per process."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dpflow.config import Settings, file_stamp, settings
from dpflow.exceptions import LedgerUnavailable
from dpflow.ledger import (
    Ledger,
    create_ledger,
    is_postgres,
    open_ledger,
    pin_ledger,
)
from dpflow.ledger.provenance import provenance
from dpflow.ledger.records import Conditions
from dpflow.locks import Lock
from dpflow.policy import PolicySet, is_policy_file, load_policies
from dpflow.unsettled import Unsettled

_Signature = tuple[tuple[object, ...], ...]


@dataclass(frozen=True, slots=True)
class Project:
    """What the guard needs of a project.

    Attributes:
        settings: Where things are.
        ledger: Opened, and checked against the pinned id.
        policies: As the files say now.
        unsettled: Charges of this process whose settlement failed.
    """

    settings: Settings
    ledger: Ledger
    policies: PolicySet
    unsettled: Unsettled


@dataclass(frozen=True, slots=True)
class _Opened:
    """A ledger that stays open, and what this process owes it."""

    ledger: Ledger
    unsettled: Unsettled


_lock = Lock()
#: How long a thread waits for another that opens the ledger.
_THREAD_SECONDS = 120.0
_ledgers: dict[Settings, _Opened] = {}
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

    def opened() -> tuple[_Opened, PolicySet]:
        policies = _load(found.policies)
        known = _ledgers.get(found)
        if known is None:
            ledger = project_ledger(found)
            known = _ledgers[found] = _Opened(ledger, Unsettled(ledger))
        return known, policies

    try:
        known, policies = _lock.run(opened, _THREAD_SECONDS)
    except TimeoutError as error:
        msg = f"the ledger is not open yet: {error.strerror}. Try again."
        raise LedgerUnavailable(msg, waited=_THREAD_SECONDS) from None
    return Project(found, known.ledger, policies, known.unsettled)


def project_ledger(found: Settings, *, read_only: bool = False) -> Ledger:
    """Open the ledger of a project, checked and with who acts.

    Args:
        found: Where it is.
        read_only: Only show it: the database refuses every write.

    Raises:
        LedgerError: If the ledger is missing, out of reach or not the pinned one.
        ConfigurationError: If it serves another environment.
    """
    return open_ledger(
        found.ledger_url,
        policies=found.policies,
        witness=found.witness,
        environment=found.environment,
        conditions=project_conditions(found),
        read_only=read_only,
    )


def project_conditions(found: Settings) -> Conditions:
    """Return who acts in a project, with which code, for the journal."""
    return Conditions(
        facts=provenance(found.root, found.principal),
        # A shared ledger's policies are an officer's to apply.
        applies_policies=not is_postgres(found.ledger_url),
    )


def make_project_ledger(found: Settings) -> Ledger:
    """Make the ledger of a project, pin its id, and close it.

    Raises:
        LedgerError: If one is there already, or its place cannot be written.
    """
    ledger = create_ledger(
        found.ledger_url, environment=found.environment, witness=found.witness
    )
    try:
        pin_ledger(ledger, found.policies)
    finally:
        ledger.close()
    return ledger


def forget_projects() -> None:
    """Close what is open; tests use it, and programs that delete a ledger."""

    def forget() -> None:
        for opened in _ledgers.values():
            opened.unsettled.forget()
            opened.ledger.close()
        _ledgers.clear()
        _policies.clear()

    _lock.run(forget, _THREAD_SECONDS)


def _load(directory: Path) -> PolicySet:
    signature = _signature(directory)
    known = _policies.get(directory)
    if known is None or known[0] != signature:
        known = _policies[directory] = (signature, load_policies(directory))
    return known[1]


def _signature(directory: Path) -> _Signature:
    folder = str(directory)
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 (texts are quicker)
    except OSError:
        # `load_policies` says what is wrong, in dpflow's words.
        return ()
    chosen = filter(is_policy_file, names)
    return tuple((name, *file_stamp(f"{folder}/{name}")) for name in chosen)
