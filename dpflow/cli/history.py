"""`dpflow history` and `dpflow why`: the journal, and what spent a budget."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from dpflow.cli.output import Answer, Part, warn

if TYPE_CHECKING:
    from dpflow.show.history import History
    from dpflow.show.why import Why


def history(
    dataset: str | None = None,
    *,
    limit: int = 30,
    all_accounts: bool = False,
    decided: bool = False,
    details: bool = False,
) -> Answer:
    """Show the journal, newest entry first.

    Decisions are terms, tightened policies, freezes and charges by hand.

    Example: `dpflow history sales --decisions`
    """
    from dpflow.show.history import history as read_history

    if decided and (all_accounts or details):
        msg = "each decision has one line; omit --decisions or the other option"
        raise typer.BadParameter(msg)
    result = read_history(
        dataset, limit=limit, all_accounts=all_accounts, decisions=decided, tell=warn
    )
    return result, _history_parts(replace(result, details=details), dataset)


def _history_parts(record: History, dataset: str | None) -> Iterator[Part]:
    if not record.entries:
        yield _empty(record, dataset)
        return
    yield record.sheet()
    for number, text in enumerate(record.messages, start=1):
        yield from ("", f"({number}) {text}")
    if record.more:
        shown = len(record.entries)
        yield ""
        yield f"These are the newest {shown}; --limit {4 * shown} shows more."


def _empty(record: History, dataset: str | None) -> str:
    if record.decisions:
        return "No decision is journaled yet; the first charge opens a term."
    of = f" of dataset {dataset!r}" if dataset else ""
    then = (
        "Run a flow whose steps are under @dp_task; each charge appears here."
        if record.any_policy
        else "Write a policy first: `dpflow status` shows how."
    )
    return f"The journal{of} is empty. {then}"


def why(
    dataset: str,
    *,
    by: str = "flow,step",
    term: int | None = None,
    limit: int = 20,
    details: bool = False,
) -> Answer:
    """Show the charges of flows and steps, unusual steps and refusals.

    A step is unusual if it drew its own noise, failed or was forfeited.

    Example: `dpflow why sales --by flow,step,week`
    """
    from dpflow.ledger.views.spending import GROUPS
    from dpflow.show.why import why as read_why

    names = tuple(name.strip() for name in by.split(","))
    if not set(names) <= set(GROUPS):
        msg = f"it takes {', '.join(GROUPS)}, with commas between, got {by!r}"
        raise typer.BadParameter(msg, param_hint="--by")
    result = read_why(dataset, by=names, term=term, tell=warn)
    which = "its newest term" if term is None else f"term {result.term}"
    shown = replace(
        result, refused=result.refused[:limit], limit=limit, details=details
    )
    return shown, _why_parts(shown, which, refused=len(result.refused))


def _why_parts(record: Why, which: str, *, refused: int) -> Iterator[Part]:
    from dpflow.show.why import minute

    if record.spending:
        yield record.sheet()
        yield from _rest(record, len(record.spending), "largest")
    else:
        yield f"Nothing was charged to {record.dataset} in {which}."
    if record.unusual:
        yield from ("", "Unusual steps; each of them is charged:", "")
        yield record.unusual_sheet()
        yield from _rest(record, len(record.unusual), "newest")
    else:
        yield from ("", "No step drew its own noise, failed or was forfeited.")
    yield from ("", "Refused, newest first:" if refused else "No step was refused.")
    for refusal in record.refused:
        since = f", {refusal.times} times since {minute(refusal.first)}"
        often = "" if refusal.times == 1 else since
        yield f"  {minute(refusal.newest.at)}{often}  {refusal.newest.body['message']}"
    yield from _rest(record, refused, "newest")


def _rest(record: Why, count: int, which: str) -> Iterator[Part]:
    limit = record.limit or count
    if count > limit:
        yield ""
        yield f"These are the {which} {limit} of {count}; --limit shows more."
