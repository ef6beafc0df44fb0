"""`dpflow history`: the journal, readable."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dpflow.cli.options import AnyDataset
from dpflow.cli.output import AsJson, is_terminal, plain, say, say_json
from dpflow.cli.source import ledger_facts, project_ledger

if TYPE_CHECKING:
    from dpflow.ledger.views.entries import JournalEntry

_LIMIT = 30


_Limit = Annotated[
    int, typer.Option("--limit", "-n", min=1, help="Show at most so many entries.")
]
_AllAccounts = Annotated[
    bool,
    typer.Option(
        "--all-accounts",
        help="Show what each charge posted to shares and odometers, too.",
    ),
]
_Decided = Annotated[
    bool,
    typer.Option(
        "--decisions",
        help="Show only what people decided: who, and why; no charges.",
    ),
]


def history(
    dataset: AnyDataset = None,
    *,
    limit: _Limit = _LIMIT,
    all_accounts: _AllAccounts = False,
    decided: _Decided = False,
    as_json: AsJson = False,
) -> None:
    """Show the journal, newest entry first.

    Decisions are terms, tightenings, freezes, and what was charged by hand.

    Example: `dpflow history sales --decisions`
    """
    from dpflow.cli.journal import decision_json, journal_json
    from dpflow.ledger.views.entries import decision_entries, journal_entries
    from dpflow.ledger.views.standing import check_dataset
    from dpflow.policy.files import policies_and_problem

    if decided and all_accounts:
        msg = "each decision is told once; leave out --all-accounts or --decisions"
        raise typer.BadParameter(msg)
    with project_ledger() as (found, ledger):
        # One more than asked for tells whether there are more.
        if decided:
            items = decision_entries(ledger, dataset, limit=limit + 1)
        else:
            items = journal_entries(
                ledger, dataset, limit=limit + 1, all_accounts=all_accounts
            )
        facts = ledger_facts(ledger)
        policies, _ = policies_and_problem(found.policies)
        if not items and dataset is not None:
            check_dataset(ledger, policies, dataset)
    if as_json:
        told = decision_json if decided else journal_json
        entries = [told(item) for item in items[:limit]]
        more = len(items) > limit
        say_json({"ledger": facts, "entries": entries, "more": more})
    elif decided:
        _print_decisions(items, limit)
    elif not items:
        say(_empty(dataset, any_policy=bool(policies)))
    else:
        _print(items, limit, all_accounts=all_accounts)


def _empty(dataset: str | None, *, any_policy: bool) -> str:
    of = f" of dataset {dataset!r}" if dataset else ""
    then = (
        "Run a flow whose steps are under @dp_task; each charge is told here."
        if any_policy
        else "Write a policy first: `dpflow status` shows how."
    )
    return f"The journal{of} is empty. {then}"


def _print_decisions(items: list[JournalEntry], limit: int) -> None:
    from dpflow.cli.journal import decisions_table

    if not items:
        say("No decision is journaled yet; the first charge opens a term.")
        return
    say(decisions_table(items[:limit]))
    _say_more(items, limit)


def _print(items: list[JournalEntry], limit: int, *, all_accounts: bool) -> None:
    from dpflow.cli.tables import history_table, messages

    shown, apart = items[:limit], is_terminal()
    say(history_table(shown, all_accounts=all_accounts, dates_apart=apart))
    for number, text in enumerate(messages(shown), start=1):
        say("", f"({number}) {plain(text)}")
    _say_more(items, limit)


def _say_more(items: list[JournalEntry], limit: int) -> None:
    if len(items) > limit:
        say("", f"These are the newest {limit}; --limit {4 * limit} shows more.")
