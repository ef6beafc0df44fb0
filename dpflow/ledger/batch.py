"""A transaction that decides several requests writes each account's row once.

Every entry is journaled as it is decided; the row only repeats the newest one. So of
the moves within a batch the last is written, and it must find the row where the first
did. Meanwhile the account is known to the session, or else the row is written first.
"""

from __future__ import annotations

from typing import Any

from dpflow.ledger.database import Row, Session

#: Statements that neither read nor write what a move of an account writes.
_ASIDE = frozenset(
    {
        "read_reservation",
        "read_release",
        "read_granted",
        "newest_term",
        "halting_accounts",
        "refusals_of_run",
        "open_reservation",
        "append_entry",
        "note_granted",
        "note_refused",
        "claim_release",
    }
)


class Batch:
    """A session that holds back moves of accounts until somebody could see them.

    Args:
        session: Of the transaction; `flush` must come before its end.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._moves: dict[str, dict[str, Any]] = {}
        self.soon = session.soon
        self.exclusive = session.exclusive

    @property
    def kept(self) -> dict[str, Any]:
        """What the transaction has checked."""
        return self._session.kept

    def lock(self, datasets: Any) -> None:
        """Keep other writers from these datasets until the transaction ends."""
        self.flush()
        self._session.lock(datasets)

    def rows(self, statement: str, **values: object) -> list[Row]:
        """Run a named statement and return its rows."""
        self._before(statement)
        return self._session.rows(statement, **values)

    def change(self, statement: str, **values: object) -> int:
        """Run a named statement and return how many rows it changed."""
        self._before(statement)
        return self._session.change(statement, **values)

    def post(self, statement: str, **values: object) -> None:
        """Run a named statement that must change one row."""
        if statement != "move_account":
            self._before(statement)
            self._session.post(statement, **values)
            return
        account = str(values["id"])
        earlier = self._moves.get(account, values)
        self._moves[account] = {**values, "before": earlier["before"]}

    def _before(self, statement: str) -> None:
        if self._moves and statement not in _ASIDE:
            self.flush()

    def flush(self) -> None:
        """Write where each account has come to."""
        moves, self._moves = self._moves, {}
        for account, values in moves.items():
            known = self.kept.get(account)
            self._session.post("move_account", **values)
            if known is not None:
                # As it is known, so it was written.
                self.kept[account] = known
