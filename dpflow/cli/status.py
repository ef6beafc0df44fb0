"""`dpflow status`: does it run, how much is used, and how many runs remain."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from dpflow.cli.output import Answer, Part, style_of, warn
from dpflow.cli.source import project_ledger
from dpflow.config import short_path
from dpflow.notebook import Sheet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dpflow.config import Settings
    from dpflow.forecast.outlook import ComingRuns
    from dpflow.show.status import DatasetStatus, Status

_MEANING = (
    "Epsilon: the least budget, at that delta, that would have admitted what was "
    "charged so far. Guaranteed is the whole budget. Lost at most: the least bound "
    "that holds for a flow."
)
_MORE = "`dpflow status --details` shows epsilon, every account and the guarantee."


def status(
    dataset: str | None = None,
    *,
    upcoming: int | None = None,
    details: bool = False,
    part: str | None = None,
    written: str | None = None,
) -> Answer:
    """Show the state of each dataset and flow, and the number of runs that remain.

    A run counts as the most expensive of the flow's last five completed runs, or as its
    plan before the first run. Every gate must admit the runs.

    Example: `dpflow status sales`
    """
    from dpflow.show.gauges import prometheus
    from dpflow.show.status import status_of

    if written not in (None, "prometheus"):
        msg = f"it takes prometheus, got {written!r}"
        raise typer.BadParameter(msg, param_hint="--format")
    with project_ledger(quiet=True) as (result, ledger):
        record = status_of(result, ledger, dataset, part, tell=warn)
    if upcoming is not None:
        coming = _coming(result, record, upcoming)
        data = {"ledger": record.ledger, "datasets": coming}
        for text in record.warnings:
            warn(text)
        none = [] if record.warnings else _no_policies(result)
        return data, _coming_parts(coming) or none
    if written is not None:
        return record, prometheus(record).splitlines()
    return record, _parts(result, record, details=details)


def _parts(setup: Settings, record: Status, *, details: bool) -> Iterator[Part]:
    url = short_path(record.place)
    yield [("Ledger ", "bold"), url, f"  id {record.ledger}"]
    statuses = record.datasets
    for status in statuses:
        yield from _dataset_parts(status)
        if details:
            yield from _detail_parts(status)
    if record.flows:
        yield ""
        yield "Flows that charge several datasets end with the first that refuses:"
    yield from (f"  {status.sentence}" for status in record.flows)
    yield ""
    if not statuses:
        # Where a file cannot be read, a warning says so.
        yield from [] if record.warnings else _no_policies(setup)
    elif not any(term.charged for status in statuses for term in status.terms):
        pins = " The first step, or `dpflow policy apply`, pins a policy."
        none = "Nothing was charged yet. Run a flow whose steps are under @dp_task."
        yield none + (pins if any(e.standing.term is None for e in statuses) else "")
    if statuses:
        yield _MEANING if details else _MORE
    for text in record.warnings:
        warn(text)


def _dataset_parts(status: DatasetStatus) -> Iterator[Part]:
    """Return the lines of a dataset: its state, use, and flows."""
    from dpflow.ledger.views.entries import people_lines, percent_text
    from dpflow.show.sheets import is_whole_union, union_text

    standing, result = status.standing, status.overview
    state = result.state
    since = f" since {state.since[:16].replace('T', ' ')}" if state.since else ""
    term = "not pinned yet" if standing.term is None else f"term {standing.term}"
    spent = "".join(
        f", {percent_text(spent.fraction)} of the budget is used{spent.scope}"
        for spent in result.spent
        if spent.fraction is not None
    )
    yield ""
    title = (standing.dataset, "bold cyan")
    yield [title, "  ", (state.text, style_of(state.word)), f"{since}{spent}  ({term})"]
    width = max((len(flow.flow or "(no flow)") for flow in result.flows), default=0)
    for flow in result.flows:
        name = f"  {flow.flow or '(no flow)':{width}}  "
        yield [name, (flow.text, style_of(flow.state.word))]
    yield from people_lines(standing.accounts)
    yield from (f"  {union_text(v)}" for v in standing.accounts if is_whole_union(v))
    if standing.parts > 1:
        yield f"{standing.parts:,} parts; `--part NAME` reads one"
    if status.frozen:
        unfreeze = f"`dpflow unfreeze {standing.dataset}` ends it."
        text = f"{status.frozen.capitalize()}. Every step is refused; {unfreeze}"
        yield text, "bold cyan"


def _detail_parts(status: DatasetStatus) -> Iterator[Part]:
    from dpflow.ledger.views.runs import RECENT
    from dpflow.show.sheets import details

    texts, sheets, hidden = details(status)
    yield from texts
    for sheet in sheets.values():
        yield ""
        yield sheet
    if hidden:
        more = f"{hidden:,} more accounts of its parts"
        yield f"{more}: --part NAME shows one, --json all; these are the fullest."
    if any(outlook.older for outlook in status.outlooks):
        yield f"Only runs among the newest {RECENT:,} entries of the journal count."


def _coming(setup: Settings, record: Status, count: int) -> dict[str, ComingRuns]:
    """Return the next runs of each dataset."""
    from dpflow.forecast.outlook import coming_runs

    return {
        status.standing.dataset: coming_runs(
            status.outlooks, status.standing.pinned["flows"], count, root=setup.root
        )
        for status in record.datasets
    }


def _coming_parts(coming: dict[str, ComingRuns]) -> list[Part]:
    """List the next runs of each dataset, and in one line what is refused."""
    lines: list[Part] = []
    for name, runs in coming.items():
        lines.append((name, "bold cyan"))
        if runs.runs:
            rows = [tuple(map(str, run)) for run in runs.runs]
            lines += ["", Sheet(("date", "flow", "run"), rows, ("date", "run")), ""]
        if runs.refused:
            lines.append(f"Refused: {'; '.join(runs.refused)}.")
        if runs.undated:
            lines.append(f"No schedule in prefect.yaml: {', '.join(runs.undated)}.")
    return lines


def _no_policies(setup: Settings) -> list[Part]:
    folder = short_path(setup.policies)
    return [
        f"No policies yet, so nothing may run. Write one, such as {folder}/sales.yaml:",
        "",
        "    dataset: sales",
        "    unit: customer",
        "    relation: add-or-remove",
        "    budget: {epsilon: 3, delta: 1e-6}",
        "    filter: gdp",
        "",
        "Then run `dpflow policy check`. Or let `dpflow init` ask and write it.",
    ]
