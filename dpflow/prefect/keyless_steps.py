"""Steps of a deployed flow that name no release key: each run charges them anew.

Without a key a release is replayed within its flow run only. A schedule makes a run at
each tick, and a late or repeated one then draws and pays a second time.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

from prefect.exceptions import MissingContextError
from prefect.logging import get_run_logger

from dpflow.guard.request import Notice

WHAT_TO_DO = (
    'Name what is released once, as release_key="count/{week}"; or say fresh=True, '
    "where every run should draw and pay. A spend() block has no key: make a "
    "@guarded function of it."
)


def warn_if_unnamed(notice: Notice) -> None:
    """Warn of a charged step of a deployed run that names no release key.

    It appears in the run's log in Prefect, once for each step and process.
    """
    request = notice.request
    deployment = request.body.get("deployment")
    is_kept = request.key_text or request.fresh
    if notice.kind == "reserved" and deployment is not None and not is_kept:
        _warn(deployment, request.step)


@cache
def _warn(deployment: str, step: str) -> None:  # noqa: ARG001 (once for each)
    _logger().warning(
        "DP step %r names no release_key, and this flow run is of a deployment: every "
        "run charges the step again, a late or repeated one too. %s",
        step,
        WHAT_TO_DO,
    )


def _logger() -> Any:
    """Return the run's logger, which the UI shows."""
    try:
        return get_run_logger()
    except MissingContextError:
        return logging.getLogger("dpflow")
