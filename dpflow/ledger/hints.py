"""What a process expects to read next, from what it was answered before.

Where the database is far, all that a decision reads is asked for in one trip; which
accounts that will be is known only from the answers. A hint decides nothing: a wrong
one costs a question, or a lock that was not needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dpflow.ledger.account import announce_account
from dpflow.ledger.database import Session
from dpflow.ledger.records import Granted, Request

_MOST = 10_000

_Names = tuple[str, ...]


class Hints:
    """Which accounts requests were charged to, and what their settlement will lock."""

    def __init__(self) -> None:
        self._accounts: dict[tuple[object, ...], _Names] = {}
        self._granted: dict[str, tuple[_Names, _Names]] = {}

    def note(self, requests: Sequence[Request], answers: Iterable[object]) -> None:
        """Remember what was granted."""
        for request, answer in zip(requests, answers, strict=True):
            if isinstance(answer, Granted):
                self._accounts[_shape(request)] = answer.accounts
                locked = tuple(request.locked)
                self._granted[answer.reservation] = locked, answer.accounts
        for known in (self._accounts, self._granted):
            if len(known) > _MOST:
                known.clear()

    def announce(self, session: Session, request: Request) -> None:
        """Say which accounts a request like this was charged to."""
        for account in self._accounts.get(_shape(request), ()):
            announce_account(session, account)
            session.soon("read_granted", account=account, step=request.step)

    def announce_end(self, session: Session, reservation: str) -> list[str]:
        """Lock and announce what the end of a charge needs; return what is locked."""
        datasets, accounts = self._granted.pop(reservation, ((), ()))
        session.lock(datasets)
        for account in accounts:
            announce_account(session, account)
            session.soon("reserved_amount", account=account, reservation=reservation)
        return list(datasets)


def _shape(request: Request) -> tuple[object, ...]:
    return tuple(request.locked), request.flow, request.partitions
