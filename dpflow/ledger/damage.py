"""What cannot be read in a ledger is damage, and told in dpflow's words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dpflow.exceptions import DpflowError, LedgerCorrupt

#: What reading garbage raises.
_UNREADABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


@contextmanager
def readable(place: str) -> Iterator[None]:
    """Run a block that reads a ledger; a step's value survives its damage.

    Args:
        place: The ledger, for messages.

    Raises:
        LedgerCorrupt: If something in the ledger is not what it should be.
    """
    try:
        yield
    except DpflowError:
        raise
    except _UNREADABLE as error:
        msg = (
            f"the ledger {place} holds something that cannot be read: it is damaged, "
            f"or dpflow erred ({error!r:.80}). Nothing was changed."
        )
        raise LedgerCorrupt(msg, ledger=place) from error
