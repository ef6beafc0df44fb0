"""Releases as Prefect assets: one materialisation each, with what it guarantees."""

from __future__ import annotations

from prefect.context import AssetContext

from dpflow.guard.request import Notice


def describe_assets(notice: Notice) -> None:
    """Tell the assets of the running task what the ledger committed.

    A settled release is one materialisation; a replay of it is none.
    """
    context = AssetContext.get()
    if context is None or not context.downstream_assets:
        return
    if notice.kind == "replayed":
        context.downstream_assets.clear()
    if notice.kind != "settled":
        return
    request = notice.request
    for policy in request.policies:
        facts = {
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
            context.add_asset_metadata(asset.key, facts)
