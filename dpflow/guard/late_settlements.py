"""Settlements that the ledger did not take, tried again while their process lives.

A charge whose body has ended is held until its settlement is posted, and with it its
release key: other processes would wait for that key until this one ends. So a thread
tries again, from the first settlement that failed until nothing is owed.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Mapping
from typing import Any
from weakref import WeakSet

from dpflow.exceptions import DpflowError, ReservationConflict
from dpflow.ledger import Ledger
from dpflow.ledger.views.entries import alert_text

logger = logging.getLogger("dpflow")

#: The pauses between two tries: the first, and the longest.
_PAUSE_SECONDS = (0.5, 10.0)
#: How long the end of the process waits for a last try.
_LAST_SECONDS = 5.0


class Unsettled:
    """The charges of this process whose settlement failed, by reservation.

    Nothing is given back: what was to be posted is posted, later.

    Args:
        ledger: Which they are charges of.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.begin_in_child()
        _all.add(self)

    def begin_in_child(self) -> None:
        """Begin empty: what a forked child inherits is its parent's to settle."""
        self._owed: dict[str, Mapping[str, Any]] = {}
        #: Reservations of steps that began and whose charges are not settled.
        self.running: set[str] = set()
        self._thread: threading.Thread | None = None
        self._now = threading.Event()
        self._is_last = False

    def add(self, reservation: str, **settlement: Any) -> None:
        """Owe a settlement with the arguments of the ledger's, and try it again."""
        self._owed.setdefault(reservation, settlement)
        self._start()

    def settle(self, reservation: str) -> bool:
        """Try one that is owed; return whether it was.

        Raises:
            DpflowError: If the ledger does not take it.
        """
        settlement = self._owed.get(reservation)
        if settlement is None:
            return False
        for alert in self._ledger.settle(reservation, **settlement).alerts:
            logger.warning("%s", alert_text(alert.account, alert.threshold))
        self._owed.pop(reservation, None)
        return True

    def soon(self) -> None:
        """Let the thread try without a further pause, if anything is owed."""
        if self._owed:
            self._start()
            self._now.set()

    def forget(self) -> None:
        """Owe nothing any more; the charges stay held."""
        self._owed.clear()
        self._now.set()

    def try_last(self) -> None:
        """Try once more before the process ends, for a few seconds."""
        self._is_last = True
        self.soon()
        if self._owed and self._thread is not None:
            self._thread.join(_LAST_SECONDS)

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=self._keep_trying, name="dpflow-unsettled", daemon=True
            )
            self._thread.start()

    def _keep_trying(self) -> None:
        pause, longest = _PAUSE_SECONDS
        is_last = False
        while self._owed and not is_last:
            self._now.wait(pause)
            self._now.clear()
            pause = min(2 * pause, longest)
            # The last try begins after the end of the process began.
            is_last = self._is_last
            self._try_all()
        self._thread = None
        if self._owed and not is_last:
            # It came between the last look and the line above.
            self._start()

    def _try_all(self) -> None:
        """Try each until the ledger does not answer."""
        for reservation in list(self._owed):
            try:
                if self.settle(reservation):
                    logger.info("the charge %s is settled, late", reservation)
            except ReservationConflict as error:
                # There is nothing to settle: it was never made, or somebody ended it.
                logger.info("the charge %s needs no settlement: %s", reservation, error)
                self._owed.pop(reservation, None)
            except DpflowError:
                return


#: Charges of all ledgers of this process.
_all: WeakSet[Unsettled] = WeakSet()


@atexit.register
def _try_last() -> None:
    for unsettled in list(_all):
        unsettled.try_last()


def _begin_in_child() -> None:
    for unsettled in list(_all):
        unsettled.begin_in_child()


os.register_at_fork(after_in_child=_begin_in_child)
