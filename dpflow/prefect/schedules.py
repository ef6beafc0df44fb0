"""Schedules of deployments: how a paused schedule goes on."""

from __future__ import annotations

from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound

from dpflow.exceptions import ConfigurationError


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
