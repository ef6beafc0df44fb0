"""`dpflow forecast`: what if a flow ran that often, with that noise?"""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any

import typer

from dpflow.cli.output import Answer, Part, warn
from dpflow.notebook import Sheet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dpflow.forecast.counting import Workload
    from dpflow.forecast.theorems import Fit
    from dpflow.forecast.what_if import Forecast


def forecast(
    dataset: str | None = None,
    *,
    cost: list[str] | None = None,
    like: str | None = None,
    flow: str | None = None,
    every: str | None = None,
    start: str | None = None,
    runs: int | None = None,
    at_least: int | None = None,
    from_full_budget: bool = False,
    theorems: bool = False,
) -> Answer:
    """Forecast how many runs fit, until when, and the effect of other noise.

    Nothing is charged. The forecast starts from the ledger's charges, or from the whole
    budget if there is no ledger. Without --cost and --like, a run has the costs that
    the policy plans for the flow, else those of its last runs; without --flow, there
    is a forecast for each flow. Exit code 1 if fewer runs fit than --at-least.

    Example: `dpflow forecast sales --cost 'Gaussian(sensitivity=1, sigma=40)' --every
    week --from 2026-01-05`
    """
    from dpflow.forecast import Every
    from dpflow.forecast.what_if import forecast_flows

    if cost and like is not None:
        msg = "give either --cost COST, once or several times, or --like FLOW"
        raise typer.BadParameter(msg)
    if start is not None and every is None and like is None:
        msg = "--from needs --every INTERVAL"
        raise typer.BadParameter(msg)
    _read(every, Every.parse, "--every")
    results = forecast_flows(
        dataset,
        costs=cost or (),
        like=like,
        flow=flow,
        every=every,
        start=_read(start, date.fromisoformat, "--from"),
        runs=runs,
        from_full_budget=from_full_budget,
        theorems=theorems,
        tell=warn,
    )
    parts = [part for result in results for part in ("", *_parts(result))][1:]
    record = results[0] if len(results) == 1 else {"forecasts": results}
    counts = [result.outlook.runs_left for result in results]
    if at_least is None or all(left is None or left >= at_least for left in counts):
        return record, parts
    parts += ["", (f"Fewer than {at_least} runs fit.", "bold red")]
    return record, parts, False


def _read(text: str | None, read: Callable[[str], Any], option: str) -> Any:
    """Read the text of an option; what cannot be read is wrong usage."""
    from dpflow.exceptions import ConfigurationError

    try:
        return None if text is None else read(text)
    except ConfigurationError as error:
        msg = error.message
    except ValueError:
        msg = f"it takes a date such as 2026-01-05, got {str(text)[:40]!r}"
    raise typer.BadParameter(msg, param_hint=option)


def _parts(record: Forecast) -> Iterator[Part]:
    from dpflow.rounding import short_up

    outlook = record.outlook
    flow = "" if outlook.flow is None else f", flow {outlook.flow}"
    yield [(record.dataset, "bold cyan"), f"{flow}  {record.starts_from}"]
    yield f"A run is {outlook.per_run}:"
    yield from _steps(record.workload)
    yield from ("", (_headline(record), "bold"))
    yield from record.plans
    if record.enough is not None:
        factor = short_up(record.enough.factor)
        yield from ("", f"{record.enough.runs} runs fit with {factor} times its noise:")
        yield from _steps(record.enough.workload)
    yield from ("", "With other noise:", "", record.sheet())
    if record.fits:
        budget = "whole budget of one partition" if record.divided else "whole budget"
        yield from ("", f"Under each theorem, with the {budget}:", "")
        rows = [_fit_cells(record, fit) for fit in record.fits if not fit.problem]
        yield Sheet(("theorem", "runs", "remark"), rows, ("theorem", "runs"))
        if unpriced := sorted(fit.theorem for fit in record.fits if fit.problem):
            yield f"Without a price for it: {', '.join(unpriced)}. --json says why."


def _steps(workload: Workload) -> Iterator[str]:
    from dpflow.accounting.costs.top_k import TopK

    for step in workload:
        cost, often = step.cost, "" if step.times == 1 else f"{step.times} times "
        ended = "" if step.outcome is None else f", which ends at {step.outcome}"
        if isinstance(cost, TopK):
            ended += f"; a group has even odds with a margin of {cost.margin} people"
        yield f"  {often}{cost!r}{ended}"


def _fit_cells(record: Forecast, fit: Fit) -> tuple[str, str, str]:
    """Say how many runs a theorem admits."""
    from dpflow.accounting import LISTING

    name, remark = fit.theorem, ""
    if fit.order is not None:
        name += f", order {fit.order}"
        remark = "its best whole order; fix it before the first charge"
    elif fit.theorem in LISTING:
        remark = "only if steps and their number are fixed in advance"
    elif fit.theorem == record.theorem:
        remark = "the policy's"
    return name, "no end" if fit.rounds is None else str(fit.rounds), remark


def _headline(record: Forecast) -> str:
    outlook = record.outlook
    left = outlook.runs_left
    if left is None and outlook.window:
        return "Such runs fit permanently, one for each part of the dataset."
    if left is None:
        return "There is no end to the runs that fit: nothing here limits them."
    runs = "No run fits" if left == 0 else f"{left} run{'' if left == 1 else 's'} fit"
    gate = outlook.limited_by or "gate"
    # A clause about the gate ends by a comma, too.
    text = f"{runs}. The {gate}{',' if ',' in gate else ''} refuses the next one"
    if outlook.every is not None and outlook.exhausted_on is not None:
        is_given = outlook.source == "given"
        verb = "says" if outlook.source == "schedule" else "tell"
        how = "" if is_given else f", as its {outlook.source} {verb}"
        every = outlook.every.text.removeprefix("1 ")
        text += f", on {outlook.exhausted_on} at one every {every}{how}"
    return f"{text}."
