"""Owners of reservations on PostgreSQL, and whether their processes live.

A process that reserves holds an advisory lock under its name in a session of its own.
The server drops the lock when the session ends: with the process, or with the network.
In the second case the process still works while it looks dead. That gives nothing
back: its charges stay held in full, a run that takes over its release key is charged
anew, and its late settlement posts its own charge and leaves the release to the other.
At its next reservation it takes the same name's lock again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from dpflow.ledger.storage.base import busy
from dpflow.ledger.storage.owners import Liveness, names_here
from dpflow.ledger.storage.postgres_connection import Connection, Server, sql_of
from dpflow.locks import TurnQueue

#: dpflow itself never takes such a lock.
_ADVICE = " once pg_terminate_backend has ended it (mode 'ExclusiveLock' in pg_locks)"


class SessionOwners(Liveness):
    """The owners of one ledger, as locks in its database.

    Args:
        server: Of the ledger, in a session of its own.
    """

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._server = server
        # A server that does not answer holds up no other ledger's owners.
        self._lock = TurnQueue()
        #: The connection in which the lock of the name was taken.
        self._holder: Connection | None = None

    def _mine(self) -> str:
        name = super()._mine()
        with self._session():
            return name

    def _is_held(self, owner: str) -> bool:
        with self._session() as connection:
            answer = connection.execute(sql_of()["owner_alive"], _key(owner))
            return answer.fetchone() is not None

    def _give_up(self) -> None:
        super()._give_up()
        self._server.drop()

    @contextmanager
    def _session(self) -> Iterator[Connection]:
        """Give a session that has the lock of this process's name, if it has one."""
        with self._server.session() as connection:
            if connection is not self._holder and self._name in names_here:
                # Shared, so that a session that the server has not given up is no
                # obstacle.
                try:
                    connection.execute(sql_of()["take_owner"], _key(self._name))
                except psycopg.errors.LockNotAvailable:
                    holder = "session, under the name of this process,"
                    place, waited = self._server.place, self._server.lock_seconds
                    raise busy(place, holder, waited, _ADVICE) from None
                self._holder = connection
            yield connection


def _key(owner: str) -> dict[str, int]:
    """Return the number of an owner's lock."""
    return {"key": int.from_bytes(bytes.fromhex(owner)[:8], signed=True)}
