"""Accounts in words and numbers, for the CLI, artifacts and reports."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from dpflow.accounting.theorem import COUNTS
from dpflow.ledger.records import AccountView
from dpflow.policy import Policy
from dpflow.rounding import number_from_text, short_down, short_up


def guarantee_line(policy: Policy) -> str:
    """Return the guarantee of a policy in one sentence, with its assumptions."""
    return policy.guarantee_sentence()


def pinned_guarantee(pinned: Mapping[str, Any]) -> str:
    """Return the guarantee that a ledger has pinned, in the policy's own sentence.

    Args:
        pinned: What `Policy.pinned` returned when the term was opened.
    """
    names = ("dataset", "unit", "relation", "budget")
    # The sentence does not speak of the filter, and this one takes any budget.
    fields = {name: pinned[name] for name in names} | {"filter": "basic"}
    return Policy.model_validate(fields).guarantee_sentence()


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


def percent_text(fraction: float | None) -> str:
    """Write a share as a percentage."""
    return "-" if fraction is None else f"{fraction:.1%}"


def account_title(view: AccountView) -> str:
    """Say which account this is."""
    if view.kind == "dataset":
        return f"dataset {view.dataset}"
    if view.kind == "flow":
        return f"share of {view.name}"
    return f"{view.kind} of {view.name}"


def reading_text(view: AccountView) -> str:
    """Write an odometer's reading with its delta, and where it halts the flow."""
    if view.reading is None:
        return "-"
    halt = ""
    if view.halt_at is not None:
        halt = f", halts at {short_down(number_from_text(view.halt_at))}"
    # An undefined reading is infinite; every other one is rounded up.
    defined = math.isfinite(view.reading)
    reading = short_up(Fraction(view.reading)) if defined else "infinity"
    delta = short_up(number_from_text(view.delta))
    return f"epsilon {reading} at delta {delta}{halt}"


def account_lines(views: list[AccountView]) -> list[str]:
    """Return a Markdown table with a column for each account."""
    rows: list[tuple[str, list[str]]] = [
        ("theorem", [view.theorem for view in views]),
        ("spent", [amounts_text(view.spent) for view in views]),
        ("reserved", [amounts_text(view.reserved) for view in views]),
        ("forfeited", [amounts_text(view.forfeited) for view in views]),
        ("left", [amounts_text(view.left, up=False) for view in views]),
        ("used", [percent_text(view.used_fraction) for view in views]),
        ("reading", [reading_text(view) for view in views]),
    ]
    titles = " | ".join(account_title(view) for view in views)
    lines = [f"| | {titles} |", "| --- |" + " --- |" * len(views)]
    return lines + [f"| {name} | {' | '.join(cells)} |" for name, cells in rows]
