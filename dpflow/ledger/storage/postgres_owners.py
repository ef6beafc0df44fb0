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
import threading
import uuid
from typing import Any

import psycopg

from dpflow.ledger.storage.postgres_connection import Connection, Server, Session
from dpflow.ledger.storage.row_texts import statements

_PATTERN = re.compile(r"[0-9a-f]{32}")
#: The names that this process holds, over all its objects, and the process: a forked
#: child has none of its parent's. They keep the objects: a name lives until it is given
#: up, whatever becomes of the ledger that took it.
_here: dict[str, tuple[int, SessionOwners]] = {}


class SessionOwners:
    """The owners of one ledger, as locks in its database.

    Args:
        server: Where the ledger is.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._session = Session(server)
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self._name: str | None = None
        #: The connection in which the name's lock was taken.
        self._holder: Connection | None = None
        self._pid = os.getpid()

    def mine(self) -> str:
        """Return this process's owner name, with its lock taken.

        Raises:
            LedgerUnavailable: If the server does not answer; nothing may be reserved.
        """
        with self._held():
            if self._name is None:
                name = uuid.uuid4().hex
                self._ask("take_owner", key=_key(name))
                self._name = name
                _here[name] = (self._pid, self)
            else:
                # Its session may have ended meanwhile.
                self._ask(None)
            return self._name

    def alive(self, owner: str) -> bool:
        """Say whether the session behind an owner name still stands.

        Raises:
            LedgerUnavailable: If the server does not answer.
        """
        if owner in _here and _here[owner][0] == os.getpid():
            return True
        if not _PATTERN.fullmatch(owner):
            return False
        key = _key(owner) & (2**64 - 1)
        with self._held():
            found = self._ask("owner_alive", high=key >> 32, low=key & (2**32 - 1))
            return found != []

    def close(self) -> None:
        """Give up this process's name; its open reservations become forfeited."""
        with self._held():
            name, self._name = self._name, None
            _here.pop(name or "", None)
            self._session.drop()

    def _held(self) -> threading.RLock:
        if self._pid != os.getpid():
            self._begin()
        return self._lock

    def _ask(self, statement: str | None, **values: Any) -> list[Any]:
        """Run a statement, in a session that has the name's lock."""
        try:
            connection = self._session.open()
            if connection is not self._holder:
                _run(connection, "owner_connection")
                if self._name is not None:
                    # Shared, so that a session that the server has not given up is no
                    # obstacle.
                    _run(connection, "take_owner", key=_key(self._name))
                self._holder = connection
            return [] if statement is None else _run(connection, statement, **values)
        except psycopg.errors.LockNotAvailable:
            self._session.drop()
            raise self._server.name_taken() from None
        except psycopg.Error as error:
            self._session.drop()
            raise self._server.translated(error) from None


def _run(connection: Connection, statement: str, **values: Any) -> list[Any]:
    sql = statements("postgres")[statement].encode()
    return connection.execute(sql, values).fetchall()


def _key(owner: str) -> int:
    """Return the number of an owner's lock."""
    return int.from_bytes(bytes.fromhex(owner)[:8], signed=True)
