"""The submitted DP steps of each flow run, so that the flow can wait for them.

A flow that submits and returns nothing is Completed for Prefect before its steps have
run (PrefectHQ/prefect#14470, #16373); `dp_flow` waits for the DP steps
and then asks the ledger.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any, TypeVar

from dpflow.interrupts import contextmanager, without_interrupts
from dpflow.prefect.api import current_run

F = TypeVar("F")

logger = logging.getLogger("dpflow")

_lock = threading.Lock()
_futures: dict[str, list[Any]] = {}


@contextmanager
def note_steps(flow_run: str) -> Iterator[None]:
    """Note the steps that a flow run submits within this block."""
    with _lock:
        _futures[flow_run] = []
    try:
        yield
    finally:
        with _lock:
            _futures.pop(flow_run, None)


def note_future(future: F) -> F:
    """Remember a submitted step, if the current flow run waits for its steps."""
    if (run := current_run()) is not None:
        with _lock:
            noted = _futures.get(str(run.id))
            if noted is not None:
                noted.append(future)
    return future


def wait_for_steps(flow_run: str) -> None:
    """Wait until every submitted DP step of a flow run has ended."""
    while True:
        with _lock:
            noted = _futures.get(flow_run)
            if not noted:
                return
            future = noted.pop()
        try:
            future.wait()
        except without_interrupts(Exception):
            # Process pools raise here if the step waited for one that was refused.
            logger.debug("a submitted step ended without a state", exc_info=True)
