"""Errors for what cannot be right in a ledger."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dpflow.exceptions import DpflowError, LedgerCorrupt

#: What reading garbage raises.
UNREADABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def damaged(what: str, place: str) -> LedgerCorrupt:
    """Return the error for what is not what it should be."""
    msg = (
        f"the ledger {place} is damaged, or someone edited it. {what[:1].upper()}"
        f"{what[1:]}. The step did not run. `dpflow ledger verify` shows all of it; "
        "restore a backup before any further step (a file: `dpflow ledger restore`)."
    )
    return LedgerCorrupt(msg, ledger=place)


@contextmanager
def readable(place: str) -> Iterator[None]:
    """Run a block that reads a ledger; a step's value survives the ledger's damage.

    Args:
        place: The ledger, for messages.

    Raises:
        LedgerCorrupt: If something in the ledger is not what it should be.
    """
    try:
        yield
    except DpflowError:
        raise
    except UNREADABLE as error:
        what = f"something in it cannot be read, or dpflow erred ({error!r:.80})"
        raise damaged(what, place) from error
