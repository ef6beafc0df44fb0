"""Looking at a project's ledger: what commands, pages and notebooks only show."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import closing

from dpflow.config import Settings
from dpflow.exceptions import DpflowError, LedgerCorrupt
from dpflow.guard.project import project_ledger
from dpflow.interrupts import contextmanager, without_interrupts
from dpflow.ledger import UNREADABLE, Ledger
from dpflow.ledger.views import Reading, open_reading

#: Hears what is wrong with numbers that are shown all the same.
Tell = Callable[[str], object]


def as_warning(text: str) -> None:
    """Tell as Python warns, for programs and notebooks."""
    warnings.warn(text, stacklevel=3)


@contextmanager
def inspect_ledger(
    setup: Settings, *, writes: bool = False, tell: Tell | None = as_warning
) -> Iterator[Ledger]:
    """Open the ledger of a project to show it.

    Args:
        setup: Where it is.
        writes: Whether it is written all the same, as an officer's commands do.
        tell: Called if the ledger forgot charges, so that what it says is too small;
            None if the caller asks for that itself.

    Raises:
        LedgerError: If it is missing, out of reach or not the pinned one.
        LedgerCorrupt: If it is damaged, and something in it cannot be read.
    """
    with closing(project_ledger(setup, read_only=not writes)) as ledger:
        if tell is not None and (problem := ledger.watch.problem()):
            tell(problem)
        try:
            yield ledger
        except without_interrupts(*UNREADABLE) as error:
            # Only where something is wrong.
            from dpflow.ledger.audit.verify import verify  # noqa: PLC0415

            bad = [] if isinstance(error, DpflowError) else verify(ledger).bad
            if not bad:
                raise
            msg = (
                f"the ledger {ledger.address} is damaged: {bad[0]}. `dpflow ledger "
                "verify` shows all of it; let no step run before a good backup is "
                "back: `dpflow ledger restore`."
            )
            raise LedgerCorrupt(msg, ledger=ledger.address) from error


@contextmanager
def inspect_reading(setup: Settings, *, tell: Tell) -> Iterator[Reading]:
    """Open one snapshot of the ledger of a project to show it; as `inspect_ledger`."""
    with (
        inspect_ledger(setup, tell=None) as ledger,
        open_reading(ledger, watched=True) as reading,
    ):
        if (problem := reading.problem) is not None:
            tell(problem)
        yield reading
