"""Patience with the temporary server that Prefect starts where none is named."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from prefect.settings import (
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
    get_current_settings,
    temporary_settings,
)

R = TypeVar("R")

#: Prefect waits 20 s. A fresh home is migrated first; on a busy machine that is longer.
_SECONDS = 180


@contextmanager
def patience() -> Iterator[None]:
    """Wait longer for a temporary server within a block, unless someone said how long.

    Prefect would end a project's first flow before it began.
    """
    found = get_current_settings()
    said = "startup_timeout_seconds" in found.server.ephemeral.model_fields_set
    if said or found.api.url is not None:
        yield
        return
    with temporary_settings(
        {PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS: _SECONDS}
    ):
        yield


async def patiently(run: Awaitable[R]) -> R:
    """Await a flow's run with `patience`."""
    with patience():
        return await run
