"""What every session of the hunts does alike: it keeps nothing and sends at once."""

from __future__ import annotations

from typing import Any

from dpflow.exceptions import LedgerCorrupt


class PlainTrips:
    """A session whose every statement is a trip of its own."""

    exclusive = False

    @property
    def kept(self) -> dict[str, Any]:
        """Nothing: each account is read again, and so checked again."""
        return {}

    def change(self, statement: str, **values: object) -> int:
        """Run a named statement and return how many rows it changed."""
        raise NotImplementedError

    def post(self, statement: str, **values: object) -> None:
        """Run a named statement that must change one row."""
        if self.change(statement, **values) != 1:
            msg = f"the ledger is inconsistent: {statement} found no row to change"
            raise LedgerCorrupt(msg)

    def soon(self, statement: str, **values: object) -> None:
        """Do nothing."""
