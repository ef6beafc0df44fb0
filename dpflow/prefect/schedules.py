"""Schedules of deployments: when flows run, and how those that were paused go on."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import IntervalSchedule
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL

from dpflow.exceptions import ConfigurationError
from dpflow.forecast.cadence import Schedule
from dpflow.forecast.deployment import schedule_from

#: Deployments that the server lists at once.
_PAGE = 200


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
    except Exception as error:
        msg = (
            f"the schedule of {name!r} could not be resumed ({type(error).__name__}: "
            f"{error}). Check PREFECT_API_URL, or run `prefect deployment schedule "
            f"resume {name}`."
        )
        raise ConfigurationError(msg) from error


def served_schedules(since: date) -> dict[str, Schedule]:
    """Return when the deployments of Prefect's server run next, by flow.

    A flow with more than one active schedule, or with one that tells no days, is left
    out.

    Args:
        since: The next run is on this day or later.

    Raises:
        ConfigurationError: If no server is set, or it cannot be reached.
    """
    if not PREFECT_API_URL.value():
        msg = (
            "no Prefect server is set, so it serves no schedules: set PREFECT_API_URL, "
            "or leave out --served"
        )
        raise ConfigurationError(msg)
    active: dict[UUID, list[dict[str, Any]]] = {}
    try:
        with get_client(sync_client=True) as client:
            for deployment in _deployments(client):
                active.setdefault(deployment.flow_id, []).extend(_active(deployment))
            one = {flow: known[0] for flow, known in active.items() if len(known) == 1}
            names = {flow: client.read_flow(flow).name for flow in one}
    except Exception as error:
        msg = (
            f"Prefect's schedules could not be read ({type(error).__name__}: {error}). "
            "Check PREFECT_API_URL, or leave out --served."
        )
        raise ConfigurationError(msg) from error
    told = {names[flow]: schedule_from(known, since) for flow, known in one.items()}
    return {name: schedule for name, schedule in told.items() if schedule is not None}


def _deployments(client: SyncPrefectClient) -> Iterator[DeploymentResponse]:
    offset = 0
    while page := client.read_deployments(limit=_PAGE, offset=offset):
        yield from page
        offset += len(page)


def _active(deployment: DeploymentResponse) -> Iterator[dict[str, Any]]:
    """Yield the schedules of a deployment as prefect.yaml writes them."""
    for each in () if deployment.paused else deployment.schedules:
        if not each.active:
            continue
        known = dict(each.schedule)
        if isinstance(each.schedule, IntervalSchedule):
            known["interval"] = each.schedule.interval.total_seconds()
        yield known
