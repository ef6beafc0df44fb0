"""The project's ledger, as a command opens it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dpflow.cli.output import warn
from dpflow.config import Settings, settings
from dpflow.guard.inspection import inspected
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
    found = settings()
    with inspected(found, writes=writes, tell=None if quiet else warn) as ledger:
        yield found, ledger


def ledger_facts(ledger: Ledger) -> dict[str, str]:
    """Return which ledger this is, for JSON."""
    return {"id": ledger.id, "place": ledger.place}
