"""Budget events in Prefect: what automations, alerts and dashboards listen to.

They are sent after the ledger has committed, and only tell: Prefect being out of reach
blocks no settlement. docs/events.md documents names and payloads.
"""

from __future__ import annotations

from typing import Any

from prefect.context import FlowRunContext
from prefect.events import emit_event

from dpflow.asking import Notice


def announce(notice: Notice) -> None:
    """Send `dpflow.budget.<kind>` for each dataset that the step reads."""
    request = notice.request
    payload = {
        "step": request.step,
        "flow": request.flow,
        "reservation": request.reservation,
        "cost": request.described_cost(),
        "release_key": request.key_text or None,
        "partitions": list(request.partitions),
        **notice.details,
    }
    refused = notice.details.get("dataset")
    for dataset in [refused] if refused else request.datasets:
        emit(notice.kind, dataset, payload)


def emit(kind: str, dataset: str, payload: dict[str, Any]) -> None:
    """Send one event about a dataset's budget."""
    emit_event(
        event=f"dpflow.budget.{kind}",
        resource={
            "prefect.resource.id": f"dpflow.dataset.{dataset}",
            "prefect.resource.name": dataset,
        },
        related=_deployment(),
        payload={"dataset": dataset, **payload},
    )


def _deployment() -> list[dict[str, str]]:
    """Name the deployment, which an automation can then pause as `inferred`."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return []
    deployment = context.flow_run.deployment_id
    if deployment is None:
        return []
    role = {"prefect.resource.role": "deployment"}
    return [{"prefect.resource.id": f"prefect.deployment.{deployment}", **role}]
