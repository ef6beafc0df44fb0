"""What dpflow only tells Prefect: it is given up after a few seconds.

Prefect's client asks a server that has gone away again and again, for over a minute
(PrefectHQ/prefect#20276). A step or the end of a flow is not kept waiting for that: the
ledger has committed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import TypeVar

from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

R = TypeVar("R")

#: How long Prefect may take to answer.
PATIENCE_SECONDS = 10.0
#: How often its client asks again, after about two seconds.
_RETRIES = 1
#: How long progress is not told after Prefect has not taken it.
_QUIET_SECONDS = 60.0

#: When Prefect has last not taken it, if ever.
_refused_at: list[float] = []


def ask_briefly(call: Callable[[], R]) -> R:
    """Call Prefect in a thread of its own, and wait for a few seconds only.

    Args:
        call: Whatever it does may still happen after it was given up.

    Returns:
        What the call returns.

    Raises:
        TimeoutError: If it takes longer.
        Exception: Whatever it raises.
    """
    answer: Future[R] = Future()

    def ask() -> None:
        try:
            with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: _RETRIES}):
                answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 (raised where it is waited for)
            answer.set_exception(error)

    # The context tells Prefect which run this is of. A daemon: the process may end.
    context = copy_context()
    threading.Thread(
        target=context.run, args=(ask,), name="dpflow-asks-prefect", daemon=True
    ).start()
    return answer.result(timeout=PATIENCE_SECONDS)


def tell_progress(call: Callable[[], object]) -> None:
    """Call Prefect as `ask_briefly` does, but not soon after that has failed.

    A body tells its progress every second, and would wait each time.

    Raises:
        Exception: Whatever `ask_briefly` raises.
    """
    if _refused_at and time.monotonic() - _refused_at[-1] < _QUIET_SECONDS:
        return
    try:
        ask_briefly(call)
    except Exception:
        _refused_at[:] = [time.monotonic()]
        raise
