"""Who spent a budget: the charges of an account, added up by flow, step or week."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dpflow.accounting.tally import Tally
from dpflow.accounting.theorem import Filter
from dpflow.ledger.account import Account, account_from_row
from dpflow.ledger.database import Database, Row
from dpflow.ledger.kernel import Ledger
from dpflow.ledger.pages import entries

#: Entries that post usage.
_POSTED = ("settle", "forfeit", "amend", "prior", "repair")
#: Entries that give back what is held.
_RETURNED = ("void", "seal")
_HAVE_BUDGETS = ("dataset", "partition", "population")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """What one group of charges used of an account.

    Attributes:
        group: What the charges have in common, such as flow and step.
        charges: How many there are.
        amount: Their sum in the theorem's own currency.
        used_fraction: The share of the threshold that the sum would use alone.
        last: When the newest was posted; a label.
        weeks: The ISO weeks of the oldest and of the newest.
    """

    account: str
    group: tuple[str, ...]
    charges: int
    amount: Mapping[str, str]
    used_fraction: float
    last: str
    weeks: tuple[str, str]


#: What charges can be told apart by: each takes a journal row and its body.
GROUPS: Mapping[str, Callable[[Row, Mapping[str, Any]], str]] = {
    "flow": lambda _, body: str(body.get("flow") or "-"),
    "step": lambda _, body: str(body.get("step") or body.get("because") or "-"),
    "week": lambda row, _: _week(row["at"]),
    "release": lambda _, body: str(body.get("release_key") or "-"),
    "who": lambda row, body: str(body.get("who") or row["writer"]),
}


def spending(ledger: Ledger, dataset: str, by: tuple[str, ...]) -> list[Spending]:
    """Return what used the budgets of a dataset's newest term, the largest first.

    Args:
        ledger: The ledger to read.
        dataset: The dataset.
        by: Names of `GROUPS`.
    """
    found: list[Spending] = []
    with ledger.database.read() as session:
        rows = session.rows("list_accounts", dataset=dataset)
    term = max((row["term"] for row in rows), default=0)
    for row in rows:
        if row["term"] == term and row["kind"] in _HAVE_BUDGETS:
            found += _of_account(ledger.database, account_from_row(row), by)
    return sorted(found, key=lambda each: (-each.used_fraction, each.group))


def _of_account(
    database: Database, account: Account, by: tuple[str, ...]
) -> list[Spending]:
    rule = account.rule
    if not isinstance(rule, Filter):
        return []
    held: dict[str, Mapping[str, Any]] = {}
    groups: dict[tuple[str, ...], _Group] = {}
    for row in entries(database, account.id, account.seq):
        if row["kind"] == "reserve":
            held[row["reservation"]] = row
        elif row["kind"] == "draw":
            held[row["reservation"]] = _without(held[row["reservation"]], row)
        elif row["kind"] in (*_POSTED, *_RETURNED):
            held.pop(row["reservation"], None)
            if row["kind"] not in _RETURNED:
                _add(groups, row, by, rule)
    for row in held.values():
        _add(groups, row, by, rule)
    return [
        Spending(
            account=account.id,
            group=name,
            charges=group.charges,
            amount=rule.named(group.total),
            used_fraction=rule.used_fraction(group.total),
            last=group.last,
            weeks=(_week(group.first), _week(group.last)),
        )
        for name, group in groups.items()
    ]


@dataclass(slots=True)
class _Group:
    """What some charges add up to."""

    total: Tally
    charges: int
    first: str
    last: str


def _add(
    groups: dict[tuple[str, ...], _Group],
    row: Mapping[str, Any],
    by: tuple[str, ...],
    rule: Filter,
) -> None:
    body, at = json.loads(row["body"]), row["at"]
    name = tuple(GROUPS[each](row, body) for each in by)
    group = groups.setdefault(name, _Group(rule.zero(), 0, at, at))
    group.total = group.total + Tally.from_text(row["amount"])
    group.charges += 1
    group.first, group.last = min(group.first, at), max(group.last, at)


def _without(preflight: Mapping[str, Any], draw: Row) -> Mapping[str, Any]:
    """Return the entry of a preflight, less what a step has drawn of it."""
    rest = Tally.from_text(preflight["amount"]) - Tally.from_text(draw["amount"])
    return {**dict(preflight), "amount": rest.to_text()}


def _week(at: str) -> str:
    year, week, _ = datetime.fromisoformat(at).isocalendar()
    return f"{year}-W{week:02}"
