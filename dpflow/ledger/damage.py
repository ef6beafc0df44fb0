"""What cannot be read in a ledger is damage, and told in dpflow's words."""

from __future__ import annotations

from dpflow.exceptions import DpflowError, LedgerCorrupt

#: What reading garbage raises.
UNREADABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class Readable:
    """Runs a block that reads a ledger; a step's value survives its damage.

    Args:
        place: The ledger, for messages.

    Raises:
        LedgerCorrupt: If something in the ledger is not what it should be.
    """

    def __init__(self, place: str) -> None:
        self._place = place

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        """Tell of damage, if that is what ended the block."""
        if isinstance(error, DpflowError) or not isinstance(error, UNREADABLE):
            return
        msg = (
            f"the ledger {self._place} holds something that cannot be read: it is "
            f"damaged, or dpflow erred ({error!r:.80}). Nothing was changed."
        )
        raise LedgerCorrupt(msg, ledger=self._place) from error
