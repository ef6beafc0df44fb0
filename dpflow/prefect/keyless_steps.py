"""Steps that are charged several times: each run of a schedule, each retry of a flow.

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
from dpflow.prefect.api import current_flow, current_run

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
    run_logger().warning(
        "DP step %r names no release_key, and this flow run is of a deployment: every "
        "run charges the step again, a late or repeated one too. %s",
        step,
        WHAT_TO_DO,
    )


def announce_retries() -> None:
    """Say of a flow that retries, once for each run, that each body is a charge."""
    flow = current_flow()
    if flow is not None and flow.retries:
        _announce(flow.name, flow.retries, getattr(current_run(), "id", None))


@cache
def _announce(flow: str, retries: int, run: object) -> None:  # noqa: ARG001 (once for each)
    run_logger().warning(
        "flow %r runs up to %s times more if it fails, by retries= or Prefect's "
        "setting PREFECT_FLOWS_DEFAULT_RETRIES. Each run of a step's body is a charge; "
        "steps whose release was stored are replayed.",
        *(flow, retries),
    )


def run_logger() -> Any:
    """Return the run's logger, which the UI shows."""
    try:
        return get_run_logger()
    except MissingContextError:
        return logging.getLogger("dpflow")
