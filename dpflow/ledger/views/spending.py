"""Who spent a budget: the charges of an account, added up by flow, step or week."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dpflow.accounting.rules.rule import Filter
from dpflow.accounting.rules.tally import Tally
from dpflow.ledger.entry import Entry
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.rows import term_of
from dpflow.ledger.views.charges import charges, openings
from dpflow.ledger.views.parts import gates_of_book, load_book

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


#: What charges can be told apart by: their facts, and their newest entry.
GROUPS: Mapping[str, Callable[[Mapping[str, Any], Entry], str]] = {
    "flow": lambda body, _: str(body.get("flow") or "-"),
    "step": lambda body, _: str(body.get("step") or body.get("reason") or "-"),
    "week": lambda _, entry: _week(entry.at),
    "release": lambda body, _: str(body.get("release_key") or "-"),
    "who": lambda body, entry: str(body.get("who") or entry.writer),
}


def spending(
    ledger: Ledger, dataset: str, by: tuple[str, ...], *, term: int
) -> list[Spending]:
    """Return what used the budgets of one term of a dataset, the largest first.

    Args:
        ledger: The ledger to read.
        dataset: The dataset.
        by: Names of `GROUPS`.
        term: Number of the term.
    """
    groups: dict[tuple[str, tuple[str, ...]], tuple[Tally, int, str, str]] = {}
    with ledger.storage.read() as reading:
        opening = openings(reading, dataset).get(term)
        if opening is None:
            return []
        rules = {
            gate.id: gate.rule
            for gate in gates_of_book(load_book(reading, dataset), dataset)
            if term_of(gate.id) == term
            and gate.kind in _HAVE_BUDGETS
            and isinstance(gate.rule, Filter)
        }
        for charge in charges(reading, dataset, opening.number):
            at, body = charge.last.at, charge.body
            group = tuple(GROUPS[name](body, charge.last) for name in by)
            for account in rules.keys() & charge.amounts.keys():
                zero = rules[account].zero(), 0, at, at
                total, count, first, last = groups.get((account, group), zero)
                total = total + Tally(charge.amounts[account])
                dates = min(first, at), max(last, at)
                groups[account, group] = (total, count + 1, *dates)
    found = [
        Spending(
            account=account,
            group=group,
            charges=count,
            amount=rules[account].named(total),
            used_fraction=rules[account].used_fraction(total),
            last=last,
            weeks=(_week(first), _week(last)),
        )
        for (account, group), (total, count, first, last) in groups.items()
    ]
    return sorted(found, key=lambda each: (-each.used_fraction, each.group))


def _week(at: str) -> str:
    year, week, _ = datetime.fromisoformat(at).isocalendar()
    return f"{year}-W{week:02}"
