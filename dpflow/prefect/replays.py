"""Replays that surprise: a scheduled run answers with another run's release."""

from __future__ import annotations

from collections import defaultdict

from dpflow.guard.project import current_project
from dpflow.guard.request import Notice
from dpflow.ledger.views import open_reading
from dpflow.prefect.keyless_steps import run_logger

#: Sentences about replays, by flow run; its artifact shows them.
_by_run: defaultdict[str, list[str]] = defaultdict(list)


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
    _by_run[str(request.flow_run)].append(text)


def take_surprises(run: str) -> list[str]:
    """Return the sentences about a flow run, once."""
    return _by_run.pop(run, [])
