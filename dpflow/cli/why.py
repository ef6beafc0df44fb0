"""`dpflow why`: who spent a dataset's budget, what went otherwise, what was refused."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from dpflow.cli.output import say, say_json, warn
from dpflow.notebook import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dpflow.ledger.views.spending import Unusual
    from dpflow.show.why import Refused, Why


def why(
    dataset: str,
    *,
    by: str = "flow,step",
    term: int | None = None,
    limit: int = 20,
    as_json: bool = False,
) -> None:
    """Show what spent the budget, which steps were unusual, and what was refused.

    Unusual are steps that drew their own noise, failed or were forfeited.

    Example: `dpflow why sales --by flow,step,week`
    """
    from dpflow.ledger.views.spending import GROUPS
    from dpflow.show.why import why as read_why

    names = tuple(name.strip() for name in by.split(","))
    if not set(names) <= set(GROUPS):
        msg = f"it takes {', '.join(GROUPS)}, with commas between, got {by!r}"
        raise typer.BadParameter(msg, param_hint="--by")
    found = read_why(dataset, by=names, term=term, tell=warn)
    if as_json:
        say_json(replace(found, refused=found.refused[:limit]))
        return
    title = plain(dataset)
    which = "its newest term" if term is None else f"term {found.term}"
    if found.spending:
        _print_spending(found, limit)
    else:
        say(f"Nothing was charged to {title} in {which}.")
    _print_unusual(found.unusual, limit)
    _print_refusals(found.refused, limit)


def _print_spending(found: Why, limit: int) -> None:
    from dpflow.cli.tables import sheet_table

    shown = replace(found, spending=found.spending[:limit])
    say(sheet_table(shown, "charges", "used", "share of budget"))
    _say_rest(len(found.spending), limit, "largest")


def _print_unusual(odd: Sequence[Unusual], limit: int) -> None:
    from dpflow.cli.tables import cell, new_table

    if not odd:
        say("", "No step drew its own noise, failed or was forfeited.")
        return
    say("", "Unusual steps; each of them is charged:", "")
    table = new_table("step", "flow", "what", "times", "last", numbers=("times",))
    for each in odd[:limit]:
        facts = (each.step, each.flow or "-", each.what, each.times, _minute(each.last))
        table.add_row(*map(cell, facts))
    say(table)
    _say_rest(len(odd), limit, "newest")


def _print_refusals(refused: Sequence[Refused], limit: int) -> None:
    if not refused:
        say("", "No step was refused.")
        return
    say("", "Refused, newest first:")
    for each in refused[:limit]:
        since = f", {each.times} times since {_minute(each.first)}"
        often = "" if each.times == 1 else since
        message = plain(each.newest.body["message"])
        say(f"  {_minute(each.newest.at)}{often}  {message}")
    _say_rest(len(refused), limit, "newest")


def _say_rest(count: int, limit: int, which: str) -> None:
    if count > limit:
        say("", f"These are the {which} {limit} of {count}; --limit shows more.")


def _minute(at: str) -> str:
    return at[:16].replace("T", " ")
