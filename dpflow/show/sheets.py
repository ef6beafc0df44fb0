"""Tables of accounts, flows and costs, for terminals and for the page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dpflow.accounting.costs.text import python_form
from dpflow.ledger.records import AccountView, OpenReservation
from dpflow.ledger.views.words import (
    account_title,
    amount_text,
    held_step,
    percent_text,
    reading_text,
    shown_components,
    spent_and_budget,
    telling,
)
from dpflow.notebook import Sheet
from dpflow.policy.reserved import run_lines
from dpflow.show.guarantees import shares_in_words
from dpflow.show.overview import FlowOverview
from dpflow.show.status import DatasetStatus

_AMOUNTS = ("budget", "spent", "reserved", "forfeited", "left", "used")
_ACCOUNT_HEADS = ("account", "filter", "currency", *_AMOUNTS, "state")


def details(known: DatasetStatus, most: int) -> tuple[list[str], dict[str, Sheet], int]:
    """Return what stands behind the first words about a dataset.

    Args:
        known: The dataset.
        most: About this number of accounts appear.

    Returns:
        Guarantee and epsilon in words, tables by their titles, and how many accounts
        of parts are in none of them.
    """
    pinned, accounts = known.standing.pinned, known.standing.accounts
    texts = [f"{each.text}." for each in known.overview.spent]
    texts += [known.guarantee, known.history]
    texts += [shares_in_words(pinned), *run_lines(pinned)]
    shown = telling(accounts, most)
    sheets = {
        "Flows": flows_sheet(known.overview.flows),
        "Accounts": accounts_sheet([view for view in shown if view.reading is None]),
        "Odometers": odometers_sheet(v for v in shown if v.reading is not None),
    }
    told = {title: sheet for title, sheet in sheets.items() if sheet.rows}
    return [*filter(None, texts)], told, len(accounts) - len(shown)


def reservations_sheet(reservations: Iterable[OpenReservation]) -> Sheet:
    """Return the open reservations."""
    rows = [
        (
            each.reservation,
            held_step(each),
            str(each.body.get("flow") or "-"),
            python_form(each.body["cost"]),
            each.at[:16].replace("T", " "),
            "running" if each.alive else "forfeited",
        )
        for each in reservations
    ]
    heads = ("reservation", "step", "flow", "cost", "since", "state")
    return Sheet(heads, rows, ("reservation",))


def flows_sheet(flows: Iterable[FlowOverview]) -> Sheet:
    """Return what limits the runs of each flow, and what a run costs."""
    heads = ("flow", "first limit", "a run is", "every")
    rows = [
        (
            each.flow or "(no flow)",
            *(("-",) * 3 if each.outlook is None else each.outlook.texts),
        )
        for each in flows
    ]
    return Sheet(heads, rows)


def accounts_sheet(views: Sequence[AccountView]) -> Sheet:
    """Return what filters have spent, one row for each component of a tally."""
    rows = [row for view in views for row in _account_rows(view)]
    columns = {head: [row[n] for row in rows] for n, head in enumerate(_ACCOUNT_HEADS)}
    return Sheet.of(columns, *_AMOUNTS)


def _account_rows(view: AccountView) -> Iterator[tuple[str, ...]]:
    heads = account_title(view), view.theorem
    tail = percent_text(view.used_fraction), view.state
    for name in shown_components(view):
        spent, budget = spent_and_budget(view, name)
        reserved, forfeited = (
            "" if part[name] == "0" else amount_text(name, part[name])
            for part in (view.reserved, view.forfeited)
        )
        left = amount_text(name, (view.left or {}).get(name), up=False)
        yield (*heads, name, budget, spent, reserved, forfeited, left, *tail)
        heads = tail = ("", "")


def odometers_sheet(views: Iterable[AccountView]) -> Sheet:
    """Return the reading of each flow, in each partition if there are any."""
    rows = []
    for view in views:
        part = view.gate.partition
        name = f"{view.name} in {part}" if part else view.name
        rows.append((name, view.theorem, reading_text(view), view.state))
    return Sheet(("flow", "odometer", "lost at most", "state"), rows)
