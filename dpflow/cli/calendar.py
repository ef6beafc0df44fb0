"""`dpflow calendar`: the runs to come, what is kept for them, when the rest ends."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dpflow.cli.options import AnyDataset
from dpflow.cli.output import AsJson, say, say_json
from dpflow.cli.source import ledger_facts, project_ledger, readable_policies
from dpflow.notebook import plain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dpflow.forecast.cadence import Schedule
    from dpflow.forecast.calendar import DatasetCalendar, FlowCalendar

_STYLES = {"kept": "green", "from the rest": "", "refused": "bold red"}

_Runs = Annotated[
    int,
    typer.Option("--runs", "-n", metavar="N", min=1, max=1000, help="Show so many."),
]


_Served = Annotated[
    bool,
    typer.Option("--served", help="Ask Prefect's server for schedules, too."),
]


def calendar(
    dataset: AnyDataset = None,
    *,
    runs: _Runs = 12,
    served: _Served = False,
    as_json: AsJson = False,
) -> None:
    """Show the runs to come with their days, what is kept for them, and the rest's end.

    A flow runs when its deployment in prefect.yaml says, or else as the dates in its
    release keys have told so far. Nothing is charged.

    Example: `dpflow calendar sales --runs 52`
    """
    from dpflow.forecast.calendar import calendars

    with project_ledger() as (found, ledger):
        policies = readable_policies(found, tell=True)
        asked = _asked_of_prefect() if served else None
        known = calendars(found, ledger, policies, dataset, served=asked)
        facts = ledger_facts(ledger)
    if as_json:
        datasets = [each.as_json(runs) for each in known]
        say_json({"ledger": facts, "datasets": datasets})
        return
    for number, each in enumerate(known):
        if number:
            say("")
        _print(each, runs)
    if not known:
        say("No policy and no charge yet: `dpflow init` makes a first one.")


def _asked_of_prefect() -> Mapping[str, Schedule]:
    from datetime import UTC, datetime

    from dpflow.prefect.schedules import served_schedules

    return served_schedules(datetime.now(UTC).date())


def _print(known: DatasetCalendar, count: int) -> None:
    from rich.text import Text

    from dpflow.cli.tables import cell, new_table

    say(Text(plain(known.dataset), style="bold cyan"))
    for flow in known.flows:
        say(plain(_sentence(flow)))
    rest = known.rest_ends
    if rest is not None and rest.outlook is not None:
        ends = rest.outlook.exhausted_on
        say(plain(f"The rest ends on {ends}, when {rest.flow} is refused."))
    coming = known.coming(count)
    if not coming:
        say(
            "No day of a run is known: deploy the flow with a schedule of days in "
            "prefect.yaml, ask Prefect's server (--served), or let its release keys "
            "tell the day (five runs do)."
        )
        return
    table = new_table("date", "flow", "run", "budget", numbers=("run",))
    for run in coming:
        paid = cell(run.paid, _STYLES[run.paid])
        table.add_row(cell(run.day), cell(run.flow), cell(run.number), paid)
    say("", table)


def _sentence(flow: FlowCalendar) -> str:
    kept, when, ahead = flow.kept, flow.schedule, flow.outlook
    parts = []
    if kept is not None:
        until = "" if flow.kept_until is None else f", until {flow.kept_until}"
        parts.append(f"{kept.runs_left} of {kept.runs} runs are kept{until}")
    if ahead is not None:
        parts.append(f"{ahead.left_text} left")
    elif kept is None:
        parts.append("it has not run")
    if when is not None:
        parts.append(f"every {when.every.text} (by its {when.source})")
    return f"{flow.flow}: {'; '.join(parts)}."
