"""Delivery of notices to Prefect by a thread of its own.

An event takes longer than the rest of a step, and Prefect's own thread then takes
Python's lock while the step runs. So a step only puts its notices in a queue. One
thread of each process delivers them in order after a short pause, several in one turn.

A notice is delivered after the ledger's commit. It is lost only if the process is
killed within the pause, or if the queue is full because Prefect accepts no events;
the log says so.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from datetime import UTC, datetime
from functools import cache
from typing import Any

from dpflow.guard.request import Notice
from dpflow.interrupts import suppress, without_interrupts
from dpflow.prefect.api import events_worker, has_test_client
from dpflow.prefect.events import announce

logger = logging.getLogger("dpflow")

#: How long notices gather before they are delivered together.
PAUSE_SECONDS = 0.05
#: How many may wait. Each keeps the context of its step until it is delivered.
MOST_WAITING = 1000
#: How long a step waits for room in a full queue, before its notice is dropped.
PATIENCE_SECONDS = 1.0
#: How long the end of a flow or of the process waits for the delivery.
FLUSH_SECONDS = 10.0


#: The contexts of a notice, the notice and its time.
_Parcel = tuple[Context, Notice, datetime]


class Delivery:
    """A queue of notices and the thread that delivers them.

    Args:
        deliver: Called with each notice and its time, in the contexts of the
            step. What it raises is logged.
    """

    def __init__(self, deliver: Callable[[Notice, datetime], None]) -> None:
        self._deliver = deliver
        self.forget()

    def forget(self) -> None:
        """Begin anew: in a forked child, thread and notices are the parent's."""
        # Another thread may have held the lock at the fork.
        self._changed = threading.Condition()
        self._waiting: deque[_Parcel] = deque()
        self._thread: threading.Thread | None = None
        #: How many were taken, delivered, wanted delivered without a pause, dropped.
        self._taken = self._done = self._wanted = self._dropped = 0

    def put(self, notice: Notice) -> None:
        """Take a notice; a full queue is waited for once, and then drops it."""
        parcel = copy_context(), notice, datetime.now(UTC)
        with self._changed:
            if self._has_room():
                self._waiting.append(parcel)
                self._taken += 1
                self._wake()
                return
            self._dropped += 1
            first = self._dropped == 1
        if first:
            logger.warning(
                "Prefect takes no events: those of DP steps are dropped until it does, "
                "first of step %r. The ledger has their facts.",
                notice.request.step,
            )

    def flush(self, seconds: float = FLUSH_SECONDS) -> bool:
        """Wait until all that was put before is delivered; return whether it is."""
        if threading.current_thread() is self._thread:
            return False
        with self._changed:
            taken = self._taken
            return self._hurry(lambda: self._done >= taken, seconds)

    def _has_room(self) -> bool:
        if len(self._waiting) < MOST_WAITING:
            return True
        # Once it was waited for in vain, the next steps do not wait as well.
        return not self._dropped and self._hurry(
            lambda: len(self._waiting) < MOST_WAITING, PATIENCE_SECONDS
        )

    def _hurry(self, reached: Callable[[], bool], seconds: float) -> bool:
        self._wanted = self._taken
        self._changed.notify_all()
        return self._changed.wait_for(reached, seconds)

    def _wake(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=self._run, name="dpflow-events", daemon=True
            )
            self._thread.start()
        elif len(self._waiting) == 1:
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                self._changed.wait_for(lambda: self._wanted > self._done, PAUSE_SECONDS)
            while self._deliver_next():
                pass

    def _deliver_next(self) -> bool:
        with self._changed:
            if not self._waiting:
                return False
            context, notice, occurred = self._waiting.popleft()
        try:
            context.run(self._try, notice, occurred)
        finally:
            with self._changed:
                self._done += 1
                dropped, self._dropped = self._dropped, 0
                self._changed.notify_all()
        if dropped:
            logger.warning("%d events of DP steps were dropped", dropped)
        return True

    def _try(self, notice: Notice, occurred: datetime) -> None:
        """Deliver in the step's contexts, to which the log belongs as well."""
        try:
            self._deliver(notice, occurred)
        except without_interrupts(Exception):
            step = notice.request.step
            logger.exception("a notice of step %r was not delivered", step)


@cache
def _flush_at_exit(worker: object) -> None:  # noqa: ARG001 (once for each)
    """Flush at exit, before a worker of Prefect takes its last event.

    The first worker runs already at the first step, for each task sends events.
    """
    # What is registered last runs first. The hooks of `atexit` run too late: the
    # worker has ended then, and no thread can be started.
    register: Any = getattr(threading, "_register_atexit", None)
    if register is not None:
        with suppress(RuntimeError):  # at exit already
            register(flush)


def _deliver(notice: Notice, occurred: datetime) -> None:
    announce(notice, occurred)
    # It may have been started since.
    _flush_at_exit(events_worker())


_delivery = Delivery(_deliver)


def send(notice: Notice) -> None:
    """Send a notice to Prefect soon.

    A process of a task runner's pool hands its events to its parent after each task,
    and may end after any: there it is sent without delay.
    """
    if has_test_client():
        announce(notice, datetime.now(UTC))
        return
    _flush_at_exit(None)
    _delivery.put(notice)


def flush(seconds: float = FLUSH_SECONDS) -> bool:
    """Wait until what was sent has reached Prefect's own queue.

    Args:
        seconds: How long to wait at most.

    Returns:
        Whether all of it has.
    """
    return _delivery.flush(seconds)


def _after_fork_in_child() -> None:
    _delivery.forget()
    _flush_at_exit.cache_clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
