"""`dpflow history`: the journal, readable."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from dpflow.cli.output import render, warn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dpflow.cli.output import Part
    from dpflow.show.history import History


def history(
    dataset: str | None = None,
    *,
    limit: int = 30,
    all_accounts: bool = False,
    decided: bool = False,
    as_json: bool = False,
) -> None:
    """Show the journal, newest entry first.

    Decisions are terms, tightenings, freezes, and what was charged by hand.

    Example: `dpflow history sales --decisions`
    """
    from dpflow.show.history import history as read_history

    if decided and all_accounts:
        msg = "each decision is told once; leave out --all-accounts or --decisions"
        raise typer.BadParameter(msg)
    found = read_history(
        dataset, limit=limit, all_accounts=all_accounts, decisions=decided, tell=warn
    )
    render(found, _parts(found, dataset), as_json=as_json)


def _parts(found: History, dataset: str | None) -> Iterator[Part]:
    if not found.entries:
        yield _empty(found, dataset)
        return
    yield found.sheet()
    for number, text in enumerate(found.messages, start=1):
        yield from ("", f"({number}) {text}")
    if found.more:
        shown = len(found.entries)
        yield from (
            "",
            f"These are the newest {shown}; --limit {4 * shown} shows more.",
        )


def _empty(found: History, dataset: str | None) -> str:
    if found.decisions:
        return "No decision is journaled yet; the first charge opens a term."
    of = f" of dataset {dataset!r}" if dataset else ""
    then = (
        "Run a flow whose steps are under @dp_task; each charge is told here."
        if found.any_policy
        else "Write a policy first: `dpflow status` shows how."
    )
    return f"The journal{of} is empty. {then}"
