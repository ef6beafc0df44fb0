"""Steps that are charged several times: each run of a schedule, each retry of a flow.

Without a key a release is replayed within its flow run only. A schedule makes a run at
each tick, and a late or repeated one then draws and pays a second time. With a key
without its period, a scheduled run answers with another run's release.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

from prefect.exceptions import MissingContextError
from prefect.logging import get_run_logger

from dpflow.guard.project import current_project
from dpflow.guard.request import Notice
from dpflow.ledger.views import open_reading
from dpflow.prefect.api import current_flow, current_run
from dpflow.prefect.flow_attempts import attempt_of

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
        _warn_once(
            deployment,
            "DP step %r names no release_key, and this flow run is of a deployment: "
            "every run charges the step again, a late or repeated one too. %s",
            *(request.step, WHAT_TO_DO),
        )


@cache
def _warn_once(_: object, text: str, *values: object) -> None:
    """Warn of a deployment or a flow run, once for each text."""
    run_logger().warning(text, *values)


def warn_if_surprising(notice: Notice) -> None:
    """Warn of a scheduled run that replays a release of another scheduled run.

    A key without the period, a week in the wrong zone, or two deployments under one key
    do so. Runs by hand, retries and repeated runs of one time replay quietly.
    """
    request, own = notice.request, notice.request.body.get("scheduled")
    if notice.kind != "replayed" or own is None:
        return
    charge = notice.details["reservation"]
    with open_reading(current_project().ledger) as reading:
        drawn = reading.requests([charge]).get(charge, {})
    then, deployment = drawn.get("scheduled"), drawn.get("deployment")
    same_flow = deployment in (None, request.body.get("deployment"))
    if then in (None, own) and same_flow:
        return
    whose = "" if same_flow else f" of another deployment, {deployment}"
    text = (
        f"DP step {request.step!r} of the run scheduled for {own} replayed release "
        f"{request.key_text!r}, which a run{whose} scheduled for {then or 'no time'} "
        "drew. If it should draw anew, name the period in its release_key, and look at "
        "the zone of the policy."
    )
    run_logger().warning("%s", text)
    if (attempt := attempt_of(request)) is not None:
        attempt.surprises.append(text)


def announce_retries() -> None:
    """Say of a flow that retries, once for each run, that each body is a charge."""
    flow = current_flow()
    if flow is not None and flow.retries:
        _warn_once(
            getattr(current_run(), "id", None),
            "flow %r runs up to %s times more if it fails, by retries= or Prefect's "
            "setting PREFECT_FLOWS_DEFAULT_RETRIES. Each run of a step's body is a "
            "charge; steps whose release was stored are replayed.",
            *(flow.name, flow.retries),
        )


def run_logger() -> Any:
    """Return the run's logger, which the UI shows."""
    try:
        return get_run_logger()
    except MissingContextError:
        return logging.getLogger("dpflow")
