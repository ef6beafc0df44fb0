"""The submitted DP steps of each flow run, so that the flow can wait for them.

A flow that submits and returns nothing is Completed for Prefect before its steps have
run; `dp_flow` waits for the DP steps and then asks the ledger.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

from prefect.context import FlowRunContext

F = TypeVar("F")

_lock = threading.Lock()
_futures: dict[str, list[Any]] = {}


def note_future(future: F) -> F:
    """Remember a submitted step of the current flow run."""
    context = FlowRunContext.get()
    if context is not None and context.flow_run is not None:
        with _lock:
            _futures.setdefault(str(context.flow_run.id), []).append(future)
    return future


def wait_for_steps(flow_run: str) -> None:
    """Wait until every submitted DP step of a flow run has ended."""
    with _lock:
        futures = _futures.pop(flow_run, [])
    for future in futures:
        future.wait()
