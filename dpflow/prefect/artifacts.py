"""Budget artifacts in Prefect's UI; they tell, and never decide."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Sequence

from prefect.artifacts import create_markdown_artifact, create_progress_artifact

from dpflow.exceptions import BudgetExhausted, BudgetRefused
from dpflow.guard.project import Project
from dpflow.guard.request import Notice
from dpflow.interrupts import without_interrupts
from dpflow.ledger.views import accounts, alerts
from dpflow.ledger.views.accounts import AccountView
from dpflow.ledger.views.entries import alert_text
from dpflow.notebook import Sheet, plain
from dpflow.prefect.api import current_flow
from dpflow.prefect.client_calls import ask_briefly, tell_progress
from dpflow.show.sheets import details
from dpflow.show.status import DatasetStatus, status_of

logger = logging.getLogger("dpflow")

_HUNDRED = 100.0
#: Otherwise a thread of an async flow gets a coroutine back.
_SYNC = {"_sync": True}


def publish_budget(
    project: Project,
    refusal: BudgetRefused | None = None,
    surprises: Sequence[str] = (),
) -> None:
    """Publish the status of each dataset that this flow uses.

    Prefect being out of reach never touches a settlement: a failure is logged.

    Args:
        project: The project of the flow.
        refusal: The refusal that the flow met, if any.
        surprises: Sentences about replays of other scheduled runs' releases.
    """
    try:
        for dataset in _of_this_flow(accounts(project.ledger), refusal):
            (status,) = status_of(project.settings, project.ledger, dataset).datasets
            _publish(project, status, refusal, surprises)
    except without_interrupts(Exception):
        logger.exception("the budget artifact could not be published")


def _of_this_flow(
    views: list[AccountView], refusal: BudgetRefused | None
) -> Iterable[str]:
    """Return the datasets on which this flow has an account, or was refused."""
    name = getattr(current_flow(), "name", None)
    datasets = {view.dataset for view in views if view.name == name}
    if refusal is not None and refusal.dataset:
        datasets.add(refusal.dataset)
    names = {view.dataset for view in views}
    return sorted(datasets & names or names)


def _publish(
    project: Project,
    status: DatasetStatus,
    refusal: BudgetRefused | None,
    surprises: Sequence[str],
) -> None:
    dataset = status.standing.dataset
    key = artifact_key(project.settings.label(project.ledger.id), dataset)
    texts, sheets, _ = details(status)
    flows = [f"{f.flow or '(no flow)'}: {f.text}" for f in status.overview.flows]
    # The thresholds that the accounts of this term have reached, newest first.
    reached = [
        f"{alert_text(e.account, e.threshold)}, since {e.at[:19].replace('T', ' ')}"
        for e in alerts(project.ledger, dataset)
    ]
    blocks = [f"# Privacy budget of `{dataset}`, term {status.standing.term}"]
    if refusal is not None:
        blocks.append(f"**{type(refusal).__name__}.** {in_markdown(refusal.message)}")
    lists = {"Flows": flows, "Alerts": reached, "Replays": surprises}
    for title, items in lists.items():
        if items:
            lines = [f"- {in_markdown(item)}" for item in items]
            blocks += [f"## {title}", "\n".join(lines)]
    blocks += ["## Guarantee", *map(in_markdown, texts)]
    blocks += ["\n".join(markdown_table(sheet)) for sheet in sheets.values()]
    if isinstance(refusal, BudgetExhausted):
        blocks.append(
            f"`dpflow why {dataset}` says who spent it. Whoever answers for the data "
            f"may open a new term, `dpflow policy apply {dataset} --new-term --reason "
            "TEXT`; `dpflow resume FLOW/DEPLOYMENT` then starts a paused schedule, and "
            "Retry lets this run end: what it released is replayed."
        )
    text, about = "\n\n".join(blocks), f"Budget of {dataset}"
    fields = {"key": key, "markdown": text, "description": about}
    ask_briefly(create_markdown_artifact, **fields, **_SYNC)
    if status.used is not None:
        about = f"Share of the budget of {dataset} that is used"
        _publish_progress(ask_briefly, f"{key}-used", status.used, about)


def markdown_table(sheet: Sheet) -> list[str]:
    """Return the lines of a table in Markdown."""
    rows = [sheet.heads, ["---"] * len(sheet.heads), *sheet.rows]
    return [f"| {' | '.join(map(in_markdown, cells))} |" for cells in rows]


def in_markdown(text: str) -> str:
    """Keep a name from being a link, a picture, a tag, a line or a cell of a table."""
    line = plain(text).replace("\n", " ")
    return "".join(f"\\{c}" if c in "\\<[]|" else c for c in line)


def publish_progress(notice: Notice) -> None:
    """Publish how many sub-steps of an iterative step have run."""
    done, most = notice.details["done"], notice.details["most"]
    key = f"dpflow-step-{_dashes(notice.project)}-{_dashes(notice.request.step)}"
    about = f"{done} of at most {most} sub-steps"
    _publish_progress(tell_progress, key, done / most, about)


def _publish_progress(
    call: Callable[..., object], key: str, share: float, about: str
) -> None:
    progress = min(share, 1.0) * _HUNDRED
    fields = {"progress": progress, "key": key, "description": about}
    call(create_progress_artifact, **fields, **_SYNC)


def artifact_key(project: str, dataset: str) -> str:
    """Return the key of a dataset's budget artifact.

    Args:
        project: Label of the project.
        dataset: Name of the dataset.
    """
    return f"dpflow-budget-{_dashes(project)}-{_dashes(dataset)}"


def _dashes(name: str) -> str:
    """Prefect's artifact keys take lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
