"""`dpflow history`: the journal, readable."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from dpflow.cli.output import is_terminal, say, say_json, warn
from dpflow.notebook import plain

if TYPE_CHECKING:
    from dpflow.show.history import History

_LIMIT = 30


def history(
    dataset: str | None = None,
    *,
    limit: int = _LIMIT,
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
    if as_json:
        say_json(found)
    elif decided:
        _print_decisions(found)
    elif not found.entries:
        say(_empty(dataset, any_policy=found.any_policy))
    else:
        _print(found, all_accounts=all_accounts)


def _empty(dataset: str | None, *, any_policy: bool) -> str:
    of = f" of dataset {dataset!r}" if dataset else ""
    then = (
        "Run a flow whose steps are under @dp_task; each charge is told here."
        if any_policy
        else "Write a policy first: `dpflow status` shows how."
    )
    return f"The journal{of} is empty. {then}"


def _print_decisions(found: History) -> None:
    if not found.entries:
        say("No decision is journaled yet; the first charge opens a term.")
        return
    from dpflow.cli.tables import sheet_table

    say(sheet_table(found, "when (UTC)"))
    _say_more(found)


def _print(found: History, *, all_accounts: bool) -> None:
    from dpflow.cli.tables import history_table, messages

    shown, apart = list(found.entries), is_terminal()
    say(history_table(shown, all_accounts=all_accounts, dates_apart=apart))
    for number, text in enumerate(messages(shown), start=1):
        say("", f"({number}) {plain(text)}")
    _say_more(found)


def _say_more(found: History) -> None:
    if found.more:
        shown = len(found.entries)
        say("", f"These are the newest {shown}; --limit {4 * shown} shows more.")
