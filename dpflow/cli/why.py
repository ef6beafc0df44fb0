"""`dpflow why`: who spent a dataset's budget, what went otherwise, what was refused."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from dpflow.cli.output import render, warn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dpflow.cli.output import Part
    from dpflow.show.why import Why


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
    which = "its newest term" if term is None else f"term {found.term}"
    shown = replace(found, refused=found.refused[:limit], limit=limit)
    lines = _parts(shown, which, refused=len(found.refused))
    render(shown, lines, as_json=as_json)


def _parts(found: Why, which: str, *, refused: int) -> Iterator[Part]:
    from dpflow.show.why import minute

    if found.spending:
        yield found.sheet()
        yield from _rest(found, len(found.spending), "largest")
    else:
        yield f"Nothing was charged to {found.dataset} in {which}."
    if found.unusual:
        yield from ("", "Unusual steps; each of them is charged:", "")
        yield found.unusual_sheet()
        yield from _rest(found, len(found.unusual), "newest")
    else:
        yield from ("", "No step drew its own noise, failed or was forfeited.")
    yield from ("", "Refused, newest first:" if refused else "No step was refused.")
    for each in found.refused:
        since = f", {each.times} times since {minute(each.first)}"
        often = "" if each.times == 1 else since
        yield f"  {minute(each.newest.at)}{often}  {each.newest.body['message']}"
    yield from _rest(found, refused, "newest")


def _rest(found: Why, count: int, which: str) -> Iterator[Part]:
    limit = found.limit or count
    if count > limit:
        yield from (
            "",
            f"These are the {which} {limit} of {count}; --limit shows more.",
        )
