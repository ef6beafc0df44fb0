"""`dpflow forecast`: what if a flow ran so often, with so much noise?"""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from dpflow.cli.output import say, say_json, warn
from dpflow.notebook import plain

if TYPE_CHECKING:
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
    from_full_budget: bool = False,
    theorems: bool = False,
    as_json: bool = False,
) -> None:
    """Say how many runs fit, until when, and what other noise would change.

    Nothing is charged. It starts from what the ledger has charged so far, or from the
    whole budget if there is no ledger yet.

    Example: `dpflow forecast sales --cost 'Gaussian(sensitivity=1, sigma=40)' --every
    week --from 2026-01-05`
    """
    from dpflow.forecast.what_if import forecast as foresee

    if bool(cost) == (like is not None):
        msg = "give either --cost COST, once or several times, or --like FLOW"
        raise typer.BadParameter(msg)
    if start is not None and every is None and like is None:
        msg = "--from needs --every INTERVAL"
        raise typer.BadParameter(msg)
    found = foresee(
        dataset,
        costs=cost or (),
        like=like,
        flow=flow,
        every=_interval(every),
        start=_date(start),
        runs=runs,
        from_full_budget=from_full_budget,
        theorems=theorems,
        tell=warn,
    )
    if as_json:
        say_json(found)
    else:
        _print(found)


def _interval(text: str | None) -> str | None:
    from dpflow.exceptions import ConfigurationError
    from dpflow.forecast import Every

    try:
        if text is not None:
            Every.parse(text)
    except ConfigurationError as error:
        raise typer.BadParameter(error.message, param_hint="--every") from None
    return text


def _date(text: str | None) -> Any:
    from datetime import date

    if text is None:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        msg = f"it takes a date such as 2026-01-05, got {text[:40]!r}"
        raise typer.BadParameter(msg, param_hint="--from") from None


def _print(found: Forecast) -> None:
    from rich.text import Text

    from dpflow.accounting.costs.top_k import TopK
    from dpflow.cli.tables import sheet_table

    outlook = found.outlook
    title = (plain(found.dataset), "bold cyan")
    flow = "" if outlook.flow is None else f", flow {plain(outlook.flow)}"
    say(Text.assemble(title, f"{flow}  {plain(found.starts_from)}"))
    say(f"A run is {plain(outlook.per_run)}:")
    for step in found.workload:
        often = "" if step.times == 1 else f"{step.times} times "
        ended = "" if step.outcome is None else f", which ends at {step.outcome}"
        if isinstance(step.cost, TopK):
            ended += (
                f"; a group has even odds with a margin of {step.cost.margin} people"
            )
        say(f"  {often}{plain(repr(step.cost))}{plain(ended)}")
    say("", Text(_headline(found), style="bold"))
    _print_enough(found)
    numbers = ("noise", "runs", "refused from")
    say("", "With other noise:", "", sheet_table(found, *numbers))
    if found.fits:
        _print_theorems(found)


def _print_theorems(found: Forecast) -> None:
    """Show how many runs each theorem admits, and name those without a price."""
    from rich.text import Text

    from dpflow.accounting import LISTING
    from dpflow.cli.tables import cell, new_table

    whole = "whole budget of one partition" if found.divided else "whole budget"
    say("", f"Under each theorem, with the {whole}:", "")
    table = new_table("theorem", "runs", "remark", numbers=("runs",))
    unpriced = []
    for fit in found.fits:
        if fit.problem:
            unpriced.append(fit.theorem)
            continue
        own = fit.theorem == found.theorem and fit.order is None
        remark = "the policy's" if own else ""
        if fit.theorem in LISTING:
            remark = "only if steps and their number are fixed in advance"
        elif fit.order is not None:
            remark = "its best whole order; fix it before the first charge"
        runs = "no end" if fit.rounds is None else fit.rounds
        name = fit.theorem if fit.order is None else f"{fit.theorem}, order {fit.order}"
        table.add_row(
            cell(name, "bold" if own else ""),
            cell(runs),
            cell(remark),
        )
    say(table)
    if unpriced:
        names = ", ".join(sorted(unpriced))
        say(Text(f"Without a price for it: {names}. --json says why.", style="dim"))


def _print_enough(found: Forecast) -> None:
    from dpflow.rounding import short_up

    for line in found.plans:
        say(plain(line))
    if found.enough is None:
        return
    factor = short_up(found.enough.factor)
    say("", f"{found.enough.runs} runs fit with {factor} times its noise:")
    for step in found.enough.workload:
        often = "" if step.times == 1 else f"{step.times} times "
        say(f"  {often}{plain(repr(step.cost))}")


def _headline(found: Forecast) -> str:
    outlook = found.outlook
    left = outlook.runs_left
    if left is None:
        return "There is no end to the runs that fit: nothing here limits them."
    runs = "No run fits" if left == 0 else f"{left} run{'' if left == 1 else 's'} fit"
    gate = plain(outlook.limited_by or "gate")
    # A clause that tells of the gate ends by a comma, too.
    text = f"{runs}. The {gate}{',' if ',' in gate else ''} refuses the next one"
    if outlook.every is not None and outlook.exhausted_on is not None:
        given = outlook.source == "given"
        verb = "says" if outlook.source == "schedule" else "tell"
        how = "" if given else f", as its {outlook.source} {verb}"
        every = outlook.every.text.removeprefix("1 ")
        text += f", on {outlook.exhausted_on} at one every {every}{how}"
    return f"{text}."
