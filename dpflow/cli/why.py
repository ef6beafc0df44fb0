"""`dpflow why`: who spent a dataset's budget, and why steps were refused."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpflow.cli.output import AsJson, finite, plain, say, say_json

if TYPE_CHECKING:
    from dpflow.ledger.records import RefusalView
    from dpflow.ledger.spending import Spending


def why(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="The dataset.")],
    *,
    by: Annotated[
        str,
        typer.Option(
            "--by", help="Group by any of flow, step, week, release, who; commas."
        ),
    ] = "flow,step",
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="Show at most so many rows.")
    ] = 20,
    as_json: AsJson = False,
) -> None:
    """Show what spent the budget, and the last refusals with what would fit.

    Example: `dpflow why sales --by flow,step,week`
    """
    from dpflow.cli.source import (
        known_datasets,
        ledger_facts,
        policies_and_problem,
        project_ledger,
        unknown_dataset,
    )
    from dpflow.ledger import views
    from dpflow.ledger.spending import GROUPS, spending

    names = tuple(name.strip() for name in by.split(","))
    if not set(names) <= set(GROUPS):
        msg = f"it takes {', '.join(GROUPS)}, with commas between, got {by!r}"
        raise typer.BadParameter(msg, param_hint="--by")
    with project_ledger() as (found, ledger):
        policies, _ = policies_and_problem(found.policies)
        known = known_datasets(ledger, policies)
        if dataset not in known:
            raise unknown_dataset(dataset, known)
        spent = spending(ledger, dataset, names)
        refused = views.refusals(ledger, dataset=dataset)[:limit]
        facts = ledger_facts(ledger)
    if as_json:
        say_json(
            {
                "ledger": facts,
                "dataset": dataset,
                "by": list(names),
                "spending": [_spending_json(each) for each in spent],
                "refusals": [_refusal_json(each) for each in refused],
            }
        )
        return
    _print_spending(dataset, names, spent, limit)
    _print_refusals(refused)


def _spending_json(each: Spending) -> dict[str, Any]:
    data = asdict(each)
    return {**data, "used_fraction": finite(each.used_fraction)}


def _refusal_json(each: RefusalView) -> dict[str, Any]:
    names = ("refusal", "step", "flow", "gate", "theorem", "asked", "left", "fits")
    return {
        "at": each.at,
        "account": each.account,
        "run": each.run,
        **{name: each.body.get(name) for name in names},
        "message": each.body.get("message"),
    }


def _print_spending(
    dataset: str, names: tuple[str, ...], spent: list[Spending], limit: int
) -> None:
    from dpflow.cli.tables import cell, new_table
    from dpflow.summary import amounts_text, percent_text

    if not spent:
        say(f"Nothing was charged to {plain(dataset)} in its newest term.")
        return
    several = len({each.account for each in spent}) > 1
    first = ("account", *names) if several else names
    numbers = ("charges", "used", "share of budget")
    # Who groups by weeks sees them already.
    when = "last" if "week" in names else "weeks"
    table = new_table(*first, *numbers, when, numbers=numbers)
    for each in spent[:limit]:
        group = (each.account, *each.group) if several else each.group
        table.add_row(
            *(cell(name) for name in group),
            cell(each.charges),
            cell(amounts_text(each.amount)),
            cell(percent_text(each.used_fraction)),
            cell(_when(each, when)),
        )
    say(table)
    if len(spent) > limit:
        say("", f"These are the largest {limit} of {len(spent)}; --limit shows more.")


def _when(each: Spending, column: str) -> str:
    if column == "last":
        return each.last[:16].replace("T", " ")
    first, last = each.weeks
    return first if first == last else f"{first} to {last}"


def _print_refusals(refused: list[RefusalView]) -> None:
    if not refused:
        say("", "No step was refused.")
        return
    say("", "Refused, newest first:")
    for each in refused:
        say(f"  {each.at[:16].replace('T', ' ')}  {plain(each.body['message'])}")
