"""Budget events and asset metadata in Prefect, for automations, alerts, dashboards.

They are sent after the ledger has committed, and only tell: Prefect being out of reach
blocks no settlement. docs/monitoring.md documents names and payloads.
"""

from __future__ import annotations

from datetime import datetime

from prefect.events import emit_event

from dpflow.guard.request import Notice
from dpflow.ledger.requests import Request
from dpflow.prefect.api import current_assets


def announce(notice: Notice, occurred: datetime) -> None:
    """Send `dpflow.budget.<kind>` for each dataset that the step reads.

    Args:
        notice: What became of the step.
        occurred: When it did; events may be sent later.
    """
    request = notice.request
    payload = {
        "step": request.step,
        "flow": request.flow,
        "reservation": request.reservation,
        "cost": request.cost.describe(),
        "release_key": request.key_text or None,
        "partitions": list(request.partitions),
        **notice.details,
    }
    about = notice.details.get("dataset")
    for dataset in [about] if about else request.datasets:
        emit_event(
            event=f"dpflow.budget.{notice.kind}",
            occurred=occurred,
            resource=_resource(notice, dataset),
            related=_deployment(request),
            payload={"dataset": dataset, **payload},
        )


def _resource(notice: Notice, dataset: str) -> dict[str, str]:
    resource = {
        "prefect.resource.id": f"dpflow.dataset.{notice.project}.{dataset}",
        "prefect.resource.name": dataset,
        "dpflow.project": notice.project,
    }
    if notice.kind == "alert":
        # Automations match labels of the resource, and nothing of the payload.
        resource["dpflow.threshold"] = notice.details["threshold"]
    return resource


def _deployment(request: Request) -> list[dict[str, str]]:
    """Name the deployment, which an automation can then pause as `inferred`."""
    deployment = request.body.get("deployment")
    if deployment is None:
        return []
    role = {"prefect.resource.role": "deployment"}
    return [{"prefect.resource.id": f"prefect.deployment.{deployment}", **role}]


def describe_assets(notice: Notice) -> None:
    """Tell the assets of the running task what the ledger committed.

    A settled release is one materialisation; a replay of it is not.
    """
    context = current_assets()
    if context is None:
        return
    if notice.kind == "replayed":
        context.downstream_assets.clear()
    if notice.kind != "settled":
        return
    request = notice.request
    for policy in request.policies:
        metadata = {
            "dataset": policy.dataset,
            "unit": policy.unit,
            "epsilon": str(policy.budget.epsilon),
            "delta": str(policy.budget.delta),
            "filter": policy.filter.theorem,
            "cost": request.cost.describe(),
            "reservation": request.reservation,
            "digest": notice.details["digest"],
        }
        for asset in context.downstream_assets:
            context.add_asset_metadata(asset.key, metadata)
