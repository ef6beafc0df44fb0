"""One request's part of a transaction that decides several."""

from __future__ import annotations

from typing import Any

from dpflow.ledger.database import Session

#: What a request may write and then still fail; all else is written once it cannot.
_EARLY = ("open_term", "open_account", "adopt_preflight", "close_reservation")


class Part:
    """A session for one request, whose writes can be undone by themselves.

    Most requests write nothing before they are decided, so there is a savepoint only
    where one opens a term or an account, or takes over or ends its run's preflight.

    Args:
        session: Of the whole transaction.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.rows, self.soon, self.lock = session.rows, session.soon, session.lock
        self.exclusive = session.exclusive
        self._marked = self._written = False

    @property
    def kept(self) -> dict[str, Any]:
        """What the transaction has checked."""
        return self._session.kept

    def change(self, statement: str, **values: object) -> int:
        """Run a named statement and return how many rows it changed."""
        self._before(statement)
        return self._session.change(statement, **values)

    def post(self, statement: str, **values: object) -> None:
        """Run a named statement that must change one row."""
        self._before(statement)
        self._session.post(statement, **values)

    def _before(self, statement: str) -> None:
        if statement in _EARLY and not self._written:
            self._session.change("savepoint")
            self._marked = True
        self._written = True

    def undo(self) -> bool:
        """Undo what was written; False if only the whole transaction can be undone."""
        if self._marked:
            self._session.change("rollback_to_savepoint")
            self.keep()
        return self._marked or not self._written

    def keep(self) -> None:
        """Keep what was written."""
        if self._marked:
            self._session.change("release_savepoint")
