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
from weakref import WeakSet

import psycopg

from dpflow.ledger.storage.postgres_connection import (
    Connection,
    Server,
    abandon,
    is_stale,
)
from dpflow.ledger.storage.row_texts import statements

_PATTERN = re.compile(r"[0-9a-f]{32}")
#: The names that this process holds, over all its objects. They keep the objects: a
#: name lives until it is given up, whatever becomes of the ledger that took it.
_here: dict[str, SessionOwners] = {}


class SessionOwners:
    """The owners of one ledger, as locks in its database.

    Args:
        server: Where the ledger is.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._forget()
        _registers.add(self)

    def _forget(self) -> None:
        self._lock = threading.RLock()
        self._connection: Connection | None = None
        self._name: str | None = None
        self._pid = os.getpid()

    def mine(self) -> str:
        """Return this process's owner name, with its lock taken.

        Raises:
            LedgerUnavailable: If the server does not answer; nothing may be reserved.
        """
        with self._held():
            self._connect_if_needed()
            if self._name is None:
                name = uuid.uuid4().hex
                self._ask("take_owner", key=_key(name))
                self._name = name
                _here[name] = self
            return self._name

    def alive(self, owner: str) -> bool:
        """Say whether the session behind an owner name still stands.

        Raises:
            LedgerUnavailable: If the server does not answer.
        """
        if owner in _here:
            return True
        if not _PATTERN.fullmatch(owner):
            return False
        key = _key(owner) & (2**64 - 1)
        with self._held():
            self._connect_if_needed()
            found = self._ask("owner_alive", high=key >> 32, low=key & (2**32 - 1))
            return found != []

    def close(self) -> None:
        """Give up this process's name; its open reservations become forfeited."""
        with self._held():
            name, self._name = self._name, None
            _here.pop(name or "", None)
            self._drop()

    def _held(self) -> threading.RLock:
        if self._pid != os.getpid():
            # A fork that Python did not make, and so did not tell of.
            _after_fork_in_child()
        return self._lock

    def _connect_if_needed(self) -> None:
        """Open the session, or open it again and take the same name's lock."""
        if self._connection is not None and not is_stale(self._connection):
            return
        self._drop()
        self._connection = self._server.connect()
        self._ask("owner_connection")
        if self._name is not None:
            # Shared, so that a session that the server has not given up is no obstacle.
            self._ask("take_owner", key=_key(self._name))

    def _ask(self, statement: str, **values: Any) -> list[Any]:
        connection = self._connection
        try:
            assert connection is not None
            return connection.execute(
                statements("postgres")[statement].encode(), values
            ).fetchall()
        except psycopg.errors.LockNotAvailable:
            self._drop()
            raise self._server.name_taken() from None
        except psycopg.Error as error:
            self._drop()
            raise self._server.translated(error) from None

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def after_fork_in_child(self) -> None:
        """Leave the parent's name and session to the parent."""
        connection = self._connection
        self._forget()
        if connection is not None:
            abandon(connection)


def _key(owner: str) -> int:
    """Return the number of an owner's lock."""
    return int.from_bytes(bytes.fromhex(owner)[:8], signed=True)


_registers: WeakSet[SessionOwners] = WeakSet()


def _after_fork_in_child() -> None:
    _here.clear()
    for register in list(_registers):
        register.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
