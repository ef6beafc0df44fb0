"""Calls of Prefect's client: brief where they only report, patient with a new server.

Prefect's client asks a server that has stopped again and again, for over a minute
(PrefectHQ/prefect#20276). A step or the end of a flow does not wait for that: the
ledger has committed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextvars import copy_context
from typing import Any, TypeVar
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound
from prefect.settings import (
    PREFECT_CLIENT_MAX_RETRIES,
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
    get_current_settings,
)

from dpflow.exceptions import ConfigurationError
from dpflow.interrupts import contextmanager, without_interrupts
from dpflow.prefect.api import use_settings

R = TypeVar("R")

#: How long Prefect may take to answer.
PATIENCE_SECONDS = 10.0
#: How often its client asks again, after about two seconds.
_RETRIES = 1
#: How long progress is not sent after Prefect has not taken it.
_QUIET_SECONDS = 60.0
#: Prefect waits 20 s. A fresh home is migrated first; on a busy machine that is longer.
_SERVER_SECONDS = 180

#: When Prefect has last not taken it, if ever.
_refused_at: list[float] = []


def ask_briefly(call: Callable[..., R], **fields: Any) -> R:
    """Call Prefect in a thread of its own, and wait for a few seconds only.

    Args:
        call: Whatever it does may still happen after it was given up.
        **fields: Arguments of the call.

    Returns:
        What the call returns.

    Raises:
        TimeoutError: If it takes longer.
        Exception: Whatever it raises.
    """
    answer: Future[R] = Future()

    def ask() -> None:
        try:
            with use_settings({PREFECT_CLIENT_MAX_RETRIES: _RETRIES}):
                answer.set_result(call(**fields))
        except BaseException as error:  # noqa: BLE001 (raised where it is waited for)
            answer.set_exception(error)

    # The context tells Prefect which run this is of. A daemon: the process may end.
    context = copy_context()
    threading.Thread(
        target=context.run, args=(ask,), name="dpflow-asks-prefect", daemon=True
    ).start()
    return answer.result(timeout=PATIENCE_SECONDS)


def tell_progress(call: Callable[..., object], **fields: Any) -> None:
    """Call Prefect as `ask_briefly` does, but not soon after that has failed.

    A body tells its progress every second, and would wait each time.

    Raises:
        Exception: Whatever `ask_briefly` raises.
    """
    if _refused_at and time.monotonic() - _refused_at[-1] < _QUIET_SECONDS:
        return
    try:
        ask_briefly(call, **fields)
    except without_interrupts(Exception):
        _refused_at[:] = [time.monotonic()]
        raise


@contextmanager
def patience() -> Iterator[None]:
    """Wait longer for a temporary server within a block, unless someone said how long.

    Prefect would end a project's first flow before it began.
    """
    result = get_current_settings()
    is_set = "startup_timeout_seconds" in result.server.ephemeral.model_fields_set
    if is_set or result.api.url is not None:
        yield
        return
    with use_settings(
        {PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS: _SERVER_SECONDS}
    ):
        yield


async def patiently(run: Awaitable[R]) -> R:
    """Await a flow's run with `patience`."""
    with patience():
        return await run


def resume_deployment(name: str) -> None:
    """Let the schedule of a deployment run again.

    Args:
        name: "FLOW/DEPLOYMENT".

    Raises:
        ConfigurationError: If Prefect does not know it, or cannot be reached.
    """
    try:
        with get_client(sync_client=True) as client:
            client.resume_deployment(client.read_deployment_by_name(name).id)
    except ObjectNotFound as error:
        msg = (
            f"Prefect knows no deployment {name!r}; `prefect deployment ls` lists them"
        )
        raise ConfigurationError(msg) from error
    except without_interrupts(Exception) as error:
        msg = (
            f"the schedule of {name!r} could not be resumed ({type(error).__name__}: "
            f"{error}). Check PREFECT_API_URL, or run `prefect deployment schedule "
            f"resume {name}`."
        )
        raise ConfigurationError(msg) from error


def pause_deployment(deployment: UUID) -> None:
    """Pause the schedule of a deployment."""
    with get_client(sync_client=True) as client:
        client.pause_deployment(deployment)
