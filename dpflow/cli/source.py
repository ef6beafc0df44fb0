"""The project's ledger, as a command opens it."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dpflow.cli.output import warn

if TYPE_CHECKING:
    from dpflow.config import Settings
    from dpflow.ledger import Ledger


@contextmanager
def project_ledger(
    *, quiet: bool = False, writes: bool = False
) -> Iterator[tuple[Settings, Ledger]]:
    """Open the project's ledger for one command, which only shows it.

    Args:
        writes: The command writes.
        quiet: Leave a ledger that forgot charges to the command; else it is warned of.

    Raises:
        LedgerError: If it is missing, out of reach or not the pinned one.
        ConfigurationError: If the settings cannot be read.
    """
    from dpflow.config import settings
    from dpflow.guard.inspection import inspect_ledger

    setup = settings()
    with inspect_ledger(setup, writes=writes, tell=None if quiet else warn) as ledger:
        yield setup, ledger


def ledger_facts(ledger: Ledger) -> dict[str, str]:
    """Return which ledger this is, for JSON."""
    return {"ledger": ledger.id, "place": ledger.address}


def check_known(setup: Settings, ledger: Ledger, dataset: str) -> None:
    """Refuse a name that neither the ledger nor a policy knows.

    Raises:
        ConfigurationError: If it is one; it says which names are near.
    """
    from dpflow.ledger.views.accounts import check_dataset
    from dpflow.policy.files import readable_policies

    check_dataset(ledger, readable_policies(setup.policies), dataset)
