"""Budget artifacts in Prefect's UI; they tell, and never decide."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from prefect.artifacts import create_markdown_artifact, create_progress_artifact
from prefect.context import FlowRunContext

from dpflow.exceptions import BudgetExhausted, BudgetRefused
from dpflow.forecast import outlooks
from dpflow.guard.project import Project
from dpflow.guard.request import Notice
from dpflow.ledger.records import AccountView
from dpflow.ledger.views import accounts, alerts, terms
from dpflow.ledger.views.accounts import newest_term
from dpflow.ledger.views.words import (
    account_lines,
    alert_text,
    in_markdown,
    telling,
)
from dpflow.prefect.client_calls import ask_briefly, tell_progress
from dpflow.show.guarantees import term_guarantee

logger = logging.getLogger("dpflow")

_HUNDRED = 100.0
#: Each is a column of the table.
_MOST_ACCOUNTS = 8


def publish_budget(project: Project, refusal: BudgetRefused | None = None) -> None:
    """Publish what is spent and left of each dataset that this flow uses.

    Prefect being out of reach never touches a settlement: a failure is logged.
    """
    try:
        views = _of_this_flow(accounts(project.ledger), refusal)
        for dataset in sorted({view.dataset for view in views}):
            _publish(
                project, dataset, [v for v in views if v.dataset == dataset], refusal
            )
    except Exception:
        logger.exception("the budget artifact could not be published")


def _of_this_flow(
    views: list[AccountView], refusal: BudgetRefused | None
) -> list[AccountView]:
    """Keep the datasets on which this flow has an account, or was refused."""
    context = FlowRunContext.get()
    name = context.flow.name if context and context.flow else None
    datasets = {view.dataset for view in views if view.name == name}
    if refusal is not None and refusal.dataset:
        datasets.add(refusal.dataset)
    chosen = datasets or {view.dataset for view in views}
    return [view for view in views if view.dataset in chosen]


def _publish(
    project: Project,
    dataset: str,
    views: list[AccountView],
    refusal: BudgetRefused | None,
) -> None:
    key = artifact_key(dataset)
    lines = [f"# Privacy budget of `{dataset}`, term {views[0].term}", ""]
    lines += [_guarantee(project, dataset), ""]
    if refusal is not None:
        lines += [f"**{type(refusal).__name__}.** {in_markdown(refusal.message)}", ""]
    lines += account_lines(telling(views, _MOST_ACCOUNTS))
    lines += _alerts(project, dataset)
    lines += _runs_left(project, dataset)
    if isinstance(refusal, BudgetExhausted):
        lines += ["", _next_step(dataset)]
    text, about = "\n".join(lines), f"Budget of {dataset}"
    ask_briefly(
        _making(create_markdown_artifact, key=key, markdown=text, description=about)
    )
    for view in views:
        if view.kind == "dataset" and view.used_fraction is not None:
            about = f"Share of the budget of {dataset} that is used"
            _publish_progress(ask_briefly, f"{key}-used", view.used_fraction, about)


def _guarantee(project: Project, dataset: str) -> str:
    """Return what the ledger defends; the file may promise more."""
    term = newest_term(project.ledger, dataset)
    if term is None:
        return ""
    return term_guarantee(term.facts["pinned"], terms(project.ledger, dataset))


def _making(make: Callable[..., object], **facts: Any) -> Callable[[], object]:
    # Without `_sync`, a thread of an async flow gets a coroutine back.
    return partial(make, **facts, _sync=True)


def _alerts(project: Project, dataset: str) -> list[str]:
    """Name the thresholds that the accounts of this term have reached, newest first."""
    said = [
        f"- {in_markdown(alert_text(each.account, each.threshold))}, since "
        f"{each.at[:19].replace('T', ' ')}"
        for each in alerts(project.ledger, dataset)
    ]
    return ["", "## Alerts", "", *said] if said else []


def _runs_left(project: Project, dataset: str) -> list[str]:
    """Say how many more runs each flow has; nothing if that cannot be told."""
    try:
        found = outlooks(project.ledger, dataset)
    except Exception:
        # The numbers above are worth publishing without it.
        logger.exception("the runs left on %s could not be counted", dataset)
        return []
    said = [f"- {in_markdown(each.sentence)}" for each in found]
    return ["", "## Runs left", "", *said] if said else []


def _next_step(dataset: str) -> str:
    """Say what a reader of an exhausted budget can do."""
    return (
        f"`dpflow why {dataset}` says who spent it. Whoever answers for the data may "
        f"open a new term, `dpflow policy apply {dataset} --new-term --reason TEXT`; "
        "`dpflow resume FLOW/DEPLOYMENT` then starts a paused schedule, and Retry lets "
        "this run end: what it released is replayed."
    )


def publish_progress(notice: Notice) -> None:
    """Publish how many sub-steps of an iterative step have run."""
    done, most = notice.details["done"], notice.details["most"]
    key, about = f"dpflow-step-{_dashes(notice.request.step)}", f"{done} of at most"
    _publish_progress(tell_progress, key, done / most, f"{about} {most} sub-steps")


def _publish_progress(
    call: Callable[[Callable[[], object]], object], key: str, share: float, about: str
) -> None:
    progress = min(share, 1.0) * _HUNDRED
    facts = {"progress": progress, "key": key, "description": about}
    call(_making(create_progress_artifact, **facts))


def artifact_key(dataset: str) -> str:
    """Return the key of a dataset's budget artifact."""
    return f"dpflow-budget-{_dashes(dataset)}"


def _dashes(name: str) -> str:
    """Prefect's artifact keys take lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
