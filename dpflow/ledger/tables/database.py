"""Turns of threads at the database of a ledger."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager

from dpflow.exceptions import LedgerUnavailable
from dpflow.interrupts import contextmanager, without_interrupts
from dpflow.ledger.tables.errors import busy, unavailable
from dpflow.ledger.tables.owners import Liveness
from dpflow.ledger.tables.transaction import VERSION, Identity, Transaction
from dpflow.locks import LOCK_SECONDS, Turn, TurnQueue


class Database(ABC):
    """A database that holds a ledger, used by one thread of a process at a time.

    Args:
        address: The ledger, for messages; without any secret.
        read_only: Refuse every write, whatever this process may do.
    """

    #: True if it is opened to fill or to check a copy.
    is_copy = False
    #: True if a server keeps it, to which each further question costs a trip.
    has_server = False
    #: The version that its transactions need.
    version = VERSION
    #: How long to wait for other writers.
    lock_seconds = LOCK_SECONDS
    #: Errors of the driver and the system, which `_translate_error` replaces.
    _errors: tuple[type[Exception], ...]

    def __init__(self, address: str, *, read_only: bool) -> None:
        self.address = address
        self._read_only = read_only
        self.opened: Identity | None = None
        self._pid = os.getpid()
        self._line = TurnQueue()

    @property
    def identity(self) -> Identity:
        """Which ledger it is; read when it is opened.

        Raises:
            LedgerMissing: If there is no ledger.
            LedgerUnavailable: If it cannot be read, or is of another version.
        """
        if self.opened is None:
            with self.snapshot() as transaction:
                transaction.begin(lock=False)
                self.opened = transaction.identity
        return self.opened

    @property
    def writer(self) -> str | None:
        """Under which name entries are written; None: any will do."""
        return None

    @property
    def unwritable(self) -> LedgerUnavailable | None:
        """Why this process may only read the ledger; None if it may write it."""
        if not self._read_only:
            return None
        return unavailable(
            self.address, "was opened for reading only; nothing is charged"
        )

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Transaction]:
        """Run a block in one transaction that writes; COMMIT at its end.

        Raises:
            LedgerUnavailable: If it cannot be had now, or its outcome is unknown.
        """

    @abstractmethod
    def snapshot(self) -> AbstractContextManager[Transaction]:
        """Run a block that reads one consistent state; the right to read will do."""

    @property
    def is_space_low(self) -> bool:
        """True if the disk of the ledger is nearly full."""
        return False

    @abstractmethod
    def owners(self) -> Liveness:
        """Return an owner of charges, which knows the others of the ledger."""

    @abstractmethod
    def close(self) -> None:
        """Close it; a later call opens it again."""

    @abstractmethod
    def _translate_error(self, error: Exception, waited: float) -> Exception:
        """Return the error of dpflow for one of `_errors`.

        Args:
            error: The error.
            waited: Seconds since the transaction was requested.
        """

    @contextmanager
    def _alone(self) -> Iterator[Turn]:
        """Keep the other threads of this process away, and translate errors."""
        if self._pid != os.getpid():
            # A fork that Python did not make, and so did not tell of.
            self._after_fork_in_child()
        line, turn, since = self._line, Turn(), time.monotonic()
        try:
            try:
                if not line.take(turn, self.lock_seconds):
                    holder = f"thread of this process, {line.first_name()},"
                    raise busy(self.address, holder, self.lock_seconds)
                yield turn
            finally:
                self._leave(line, turn)
        except without_interrupts(*self._errors) as error:
            # The driver's message may hold a password.
            raise self._translate_error(error, time.monotonic() - since) from None
        finally:
            # An interrupt may have come before the line above.
            self._leave(line, turn)

    def _leave(self, line: TurnQueue, turn: Turn) -> None:
        """End a turn, and what it holds; a second time, nothing more."""
        line.leave(turn)

    def _after_fork_in_child(self) -> None:
        """Leave what it holds to the parent.

        The line stays: inherited turns are over, and two threads that come here at
        the same time must not have a line each.
        """
        self._pid = os.getpid()
