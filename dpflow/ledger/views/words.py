"""Amounts, accounts and readings in words, for whatever shows them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

from dpflow.accounting.rules.rule import COUNTS
from dpflow.ledger.records import (
    AccountView,
    OpenReservation,
)
from dpflow.ledger.rows import split
from dpflow.rounding import number_from_text, short_down, short_up

#: Significant digits, fewest first, of two numbers that must be told apart.
_DIGITS = range(4, 60)
FORFEITED = (
    "A forfeited reservation is one whose process ended without settling it. It stays "
    "charged in full: nobody knows what the step released."
)


def amount_text(component: str, text: str | None, *, up: bool = True) -> str:
    """Write one amount for people.

    Args:
        component: Its name in the tally.
        text: Exact decimal text, or None where there is nothing to tell.
        up: Round up, as for what is spent; down is for what is left.
    """
    if text is None or component in COUNTS:
        return "-" if text is None else text
    number = number_from_text(text)
    return short_up(number) if up else short_down(number)


def spent_and_budget(view: AccountView, component: str) -> tuple[str, str]:
    """Write what is spent, rounded up, and the budget, rounded down.

    An account within its budget gets as many digits as it takes not to read as more.
    """
    spent, budget = view.spent[component], (view.budget or {}).get(component)
    if budget is None or component in COUNTS:
        return amount_text(component, spent), amount_text(component, budget)
    used, limit = number_from_text(spent), number_from_text(budget)
    for digits in _DIGITS:
        texts = short_up(used, digits), short_down(limit, digits)
        if used > limit or number_from_text(texts[0]) <= number_from_text(texts[1]):
            return texts
    return spent, budget


def held_step(item: OpenReservation) -> str:
    """Name an open step; a preflight with its run and what no step has drawn."""
    if not item.undrawn:
        return str(item.body["step"])
    rest = next(iter(item.undrawn.values()))
    run = f"run {item.body['covers']}: {amounts_text(rest)} undrawn"
    return f"{item.body['step']}, {run}"


def amounts_text(amounts: Mapping[str, str] | None, *, up: bool = True) -> str:
    """Write amounts for people; components that are zero are left out.

    Args:
        amounts: Decimal text by component, or None where there is nothing to tell.
        up: Round up, as for what is spent; down is for what is left.
    """
    if amounts is None:
        return "-"
    parts = [
        f"{name} {amount_text(name, text, up=up)}"
        for name, text in amounts.items()
        if text != "0"
    ]
    return ", ".join(parts) or "0"


def people_lines(views: Sequence[AccountView]) -> list[str]:
    """Return a line where people have taken the budget, each for steps of their own."""
    text = "People have the budget: each pays for steps until their own part is used."
    for gate in (view.gate for view in views if view.kind == "dataset"):
        left = gate.left() if gate.rule.per_person else None
        if left is not None and not any(left.amounts):
            return [text]
    return []


def parts_lines(parts: int) -> list[str]:
    """Return a line for a dataset with several parts."""
    return [f"{parts:,} parts; `--part NAME` reads one"] if parts > 1 else []


def shown_components(view: AccountView) -> list[str]:
    """Return the components that say something: not a delta of 0 of 0."""
    names = list(view.spent)
    if view.budget is not None:
        sums = (view.budget, view.spent, view.reserved, view.forfeited)
        names = [n for n in names if any(each.get(n, "0") != "0" for each in sums)]
    return names or list(view.spent)[:1]


def telling(views: Sequence[AccountView], most: int) -> list[AccountView]:
    """Return the accounts that tell most where there are too many to show.

    Args:
        views: Accounts of one dataset.
        most: About so many.

    Returns:
        All that belong to no part of a divided dataset, and of the parts the fullest
        and the newest ones; in the order of `views`.
    """
    parts = [view for view in views if view.gate.partition]
    if len(views) <= most or not parts:
        return list(views)
    half = max(most - (len(views) - len(parts)), 2) // 2
    fullest = sorted(parts, key=lambda view: -(view.used_fraction or 0))[:half]
    newest = sorted(parts, key=lambda view: view.gate.partition)[-half:]
    shown = {view.id for view in (*fullest, *newest)}
    return [view for view in views if not view.gate.partition or view.id in shown]


def alert_text(account: str, threshold: str) -> str:
    """Say which share of what an account allows is used."""
    dataset, _, kind, name, part = split(account)
    percent = f"{float(100 * number_from_text(threshold)):g}%"
    where = f"{name} on {dataset}{f' in {part}' if part else ''}"
    if kind == "odometer":
        return f"the odometer of {where} has gone {percent} of the way to its halt"
    if kind == "flow":
        return f"{percent} of the share of {where} is used"
    return f"{percent} of the budget of {account} is used"


def percent_text(fraction: float | None) -> str:
    """Write a share as a percentage."""
    return "-" if fraction is None else f"{fraction:.1%}"


def account_title(view: AccountView) -> str:
    """Say which account this is."""
    return kind_title(view.kind, view.dataset, view.name, view.gate.partition)


def kind_title(kind: str, dataset: str, name: str, partition: str = "") -> str:
    """Say which account of a dataset this is."""
    inside = f" in {partition}" if partition else ""
    titles = {
        "dataset": f"dataset {dataset}",
        "others": f"dataset {dataset} beside reserved shares",
        "population": dataset.replace("/", " ", 1),
        "partition": f"partition {name}",
        "flow": f"share of {name}{inside}",
    }
    return titles.get(kind, f"{kind} of {name}{inside}")


def reading_text(view: AccountView) -> str:
    """Write an odometer's reading with its delta, and where it halts the flow."""
    if view.reading is None:
        return "-"
    if not view.charged:
        return "epsilon 0"
    halt = ""
    if view.halt_at is not None:
        halt = f", halts at {short_down(number_from_text(view.halt_at))}"
    # An undefined reading is infinite; every other one is rounded up.
    defined = math.isfinite(view.reading)
    reading = short_up(Fraction(view.reading)) if defined else "infinity"
    delta = short_up(number_from_text(view.delta))
    return f"epsilon {reading} at delta {delta}{halt}"
