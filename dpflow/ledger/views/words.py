"""Amounts, accounts and readings in words, for whatever shows them."""

from __future__ import annotations

from collections.abc import Sequence

from dpflow.ledger.records import AccountView
from dpflow.ledger.rows import split
from dpflow.rounding import number_from_text

FORFEITED = (
    "A forfeited reservation is one whose process ended without settling it. It stays "
    "charged in full, because the output of the step is unknown."
)


def people_lines(views: Sequence[AccountView]) -> list[str]:
    """Return a line where people have taken the budget, each for steps of their own."""
    text = "People have the budget: each pays for steps until their own part is used."
    for gate in (view.gate for view in views if view.kind == "dataset"):
        left = gate.left() if gate.rule.per_person else None
        if left is not None and not any(left.amounts):
            return [text]
    return []


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
