"""Tables of accounts, flows and costs, for terminals and for the page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dpflow.ledger.records import AccountView
from dpflow.ledger.views.accounts import partition_of
from dpflow.ledger.views.words import (
    account_title,
    amount_text,
    percent_text,
    reading_text,
    shown_components,
    spent_and_budget,
)
from dpflow.notebook import Sheet
from dpflow.show.overview import FlowOverview

_AMOUNTS = ("budget", "spent", "reserved", "forfeited", "left", "used")
_ACCOUNT_HEADS = ("account", "filter", "currency", *_AMOUNTS, "state")
#: Without an amount these columns are left out.
_RARE = ("reserved", "forfeited")


def flows_sheet(flows: Iterable[FlowOverview]) -> Sheet:
    """Return the bound on what each flow has lost, and what limits its runs."""
    heads = ("flow", "lost at most", "first limit", "a run is", "every")
    rows = [
        (
            each.flow or "(no flow)",
            "no bound" if each.lost is None else each.lost.text,
            *(("-",) * 3 if each.outlook is None else each.outlook.texts),
        )
        for each in flows
    ]
    return Sheet(heads, rows, ("lost at most",))


def accounts_sheet(views: Sequence[AccountView]) -> Sheet:
    """Return what filters have spent, one row for each component of a tally."""
    rows = [row for view in views for row in _account_rows(view)]
    columns = {head: [row[n] for row in rows] for n, head in enumerate(_ACCOUNT_HEADS)}
    for name in _RARE:
        if {*columns[name]} <= {"0"}:
            del columns[name]
    return Sheet.of(columns, *_AMOUNTS)


def _account_rows(view: AccountView) -> Iterator[tuple[str, ...]]:
    heads = account_title(view), view.theorem
    tail = percent_text(view.used_fraction), view.state
    for name in shown_components(view):
        spent, budget = spent_and_budget(view, name)
        held = [
            amount_text(name, each[name]) for each in (view.reserved, view.forfeited)
        ]
        left = amount_text(name, (view.left or {}).get(name), up=False)
        used, state = tail
        yield (*heads, name, budget, spent, *held, left, used, state)
        heads, tail = ("", ""), ("", "")


def odometers_sheet(views: Iterable[AccountView]) -> Sheet:
    """Return the reading of each flow, in each partition if there are any."""
    rows = []
    for view in views:
        part = partition_of(view.id)
        name = f"{view.name} in {part}" if part else view.name
        rows.append((name, view.theorem, reading_text(view), view.state))
    return Sheet(("flow", "odometer", "lost at most", "state"), rows)
