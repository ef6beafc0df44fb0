"""Who holds a reservation on PostgreSQL, and whether that process still lives.

A process that reserves holds an advisory lock under its name in a session of its own.
The server drops the lock when the session ends: with the process, or with the network.
In the second case the process still works while it looks dead. That gives nothing
back: its charges stay held in full, a run that takes over its release key is charged
anew, and what it settles late posts its own charge and leaves the release to the other.
At its next reservation it takes the same name's lock again.
"""

from __future__ import annotations

import os
import re
import uuid
from typing import Any

import psycopg

from dpflow.exceptions import LedgerUnavailable
from dpflow.ledger.storage.postgres_connection import (
    Connection,
    Server,
    Session,
    sql_of,
)
from dpflow.locks import Lock

#: How long a thread waits for the others of its process.
_THREAD_SECONDS = 60.0
_PATTERN = re.compile(r"[0-9a-f]{32}")
#: The names that this process holds, over all its objects; a forked child has none of
#: its parent's. They keep the objects: a name lives until it is given up, whatever
#: becomes of the ledger that took it.
_here: dict[str, SessionOwners] = {}
os.register_at_fork(after_in_child=_here.clear)


class SessionOwners:
    """The owners of one ledger, as locks in its database.

    Args:
        server: Where the ledger is.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._session = Session(server)
        self._lock = Lock()
        self._name = ""
        #: The connection in which the name's lock was taken.
        self._holder: Connection | None = None

    def mine(self) -> str:
        """Return this process's owner name, with its lock taken.

        Raises:
            LedgerUnavailable: If the server does not answer; nothing may be reserved.
        """

        def take() -> str:
            if self._name not in _here:
                self._name, self._holder = uuid.uuid4().hex, None
                _here[self._name] = self
            self._ask()
            return self._name

        return self._lock.run(take, _THREAD_SECONDS)

    def alive(self, owner: str) -> bool:
        """Say whether the session behind an owner name still stands.

        Raises:
            LedgerUnavailable: If the server does not answer.
        """
        if owner in _here or not _PATTERN.fullmatch(owner):
            return owner in _here
        key = _key(owner) & (2**64 - 1)
        asked = {"high": key >> 32, "low": key & (2**32 - 1)}
        ask = lambda: self._ask("owner_alive", **asked)  # noqa: E731
        return self._lock.run(ask, _THREAD_SECONDS) != []

    def close(self) -> None:
        """Give up this process's name; its open reservations become forfeited."""
        _here.pop(self._name, None)
        self._lock.run(self._session.drop, _THREAD_SECONDS)

    def _ask(self, name: str | None = None, **values: Any) -> list[Any]:
        """Ask in a session that has the lock of this process's name, if it has one."""
        try:
            connection = self._session.open()
            if connection is not self._holder and self._name in _here:
                # Shared, so that a session that the server has not given up is no
                # obstacle.
                key = {"key": _key(self._name)}
                connection.execute(sql_of()["take_owner"], key)
                self._holder = connection
            return connection.execute(sql_of()[name], values).fetchall() if name else []
        except psycopg.errors.LockNotAvailable:
            self._session.drop()
            raise self._name_taken() from None
        except psycopg.Error as error:
            self._session.drop()
            raise self._server.translated(error) from None

    def _name_taken(self) -> LedgerUnavailable:
        place, waited = self._server.place, self._server.lock_seconds
        msg = (
            f"another session has locked the name of this process in {place}; waited "
            f"{waited:g} s. The step did not run and nothing was charged. Find the "
            "session in pg_locks (locktype 'advisory', mode 'ExclusiveLock') and end "
            "it with pg_terminate_backend: dpflow never takes such a lock."
        )
        return LedgerUnavailable(msg, ledger=place, waited=waited)


def _key(owner: str) -> int:
    """Return the number of an owner's lock."""
    return int.from_bytes(bytes.fromhex(owner)[:8], signed=True)
