"""Who spent a budget: the charges of an account, added up by flow, step or week."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from operator import sub
from typing import Any, NamedTuple

from dpflow.accounting.rules.rule import Filter
from dpflow.accounting.rules.tally import Tally
from dpflow.ledger.decision.gates import Gate
from dpflow.ledger.entry import Entry
from dpflow.ledger.journal import KINDS
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.model import Keys
from dpflow.ledger.rows import Amounts, split
from dpflow.ledger.views.accounts import gates_of_book, term_of
from dpflow.ledger.views.charge_entries import drawn_from, openings, told

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


class _Charged(NamedTuple):
    """What one entry charges, and what it says of that."""

    amount: Amounts
    at: str
    writer: str
    body: Mapping[str, Any]


#: What charges can be told apart by.
GROUPS: Mapping[str, Callable[[_Charged], str]] = {
    "flow": lambda each: str(each.body.get("flow") or "-"),
    "step": lambda each: str(each.body.get("step") or each.body.get("reason") or "-"),
    "week": lambda each: _week(each.at),
    "release": lambda each: str(each.body.get("release_key") or "-"),
    "who": lambda each: str(each.body.get("who") or each.writer),
}


def spending(
    ledger: Ledger, dataset: str, by: tuple[str, ...], *, term: int | None = None
) -> list[Spending]:
    """Return what used the budgets of one term of a dataset, the largest first.

    Args:
        ledger: The ledger to read.
        dataset: The dataset.
        by: Names of `GROUPS`.
        term: Number of the term. Default: the newest.
    """
    with ledger.storage.read() as reading:
        state = reading.load(Keys(whole=(dataset,)))
        number = state.book(dataset).terms if term is None else term
        opening = openings(reading, dataset).get(number)
        if opening is None:
            return []
        spent = {
            gate.id: _Account(gate=gate, by=by)
            for gate in gates_of_book(state, dataset)
            if term_of(gate.id) == number and split(gate.id)[2] in _HAVE_BUDGETS
        }
        entries = reading.after(dataset, opening.number)
        moved = (each for each in entries if spent.keys() & each.postings.keys())
        for entry, body in told(reading, moved):
            for name in spent.keys() & entry.postings.keys():
                amount = entry.postings[name].amount
                charged = _Charged(amount, entry.at, entry.writer, body)
                spent[name].note(entry, charged)
    found = [each for account in spent.values() for each in account.spendings()]
    return sorted(found, key=lambda each: (-each.used_fraction, each.group))


@dataclass(slots=True)
class _Group:
    """What some charges add up to."""

    total: Tally
    charges: int
    first: str
    last: str


@dataclass(slots=True, kw_only=True)
class _Account:
    """The charges of one account, as its journal tells of them."""

    gate: Gate
    by: tuple[str, ...]
    held: dict[str, _Charged] = field(default_factory=dict)
    groups: dict[tuple[str, ...], _Group] = field(default_factory=dict)

    def note(self, entry: Entry, charged: _Charged) -> None:
        """Follow one entry."""
        kind = KINDS[entry.kind]
        if entry.kind == "reserve":
            self.held[str(entry.charge)] = charged
            drawn = drawn_from(charged.body) or ""
            if drawn in self.held:
                whole = self.held[drawn]
                rest = tuple(map(sub, whole.amount, charged.amount))
                self.held[drawn] = whole._replace(amount=rest)
        elif kind.ends:
            self.held.pop(str(entry.charge), None)
        if kind.settles:
            self.add(charged)

    def add(self, charged: _Charged) -> None:
        """Add what was charged to the group that it belongs to."""
        name = tuple(GROUPS[each](charged) for each in self.by)
        zero = self.gate.rule.zero()
        group = self.groups.setdefault(name, _Group(zero, 0, charged.at, charged.at))
        group.total = group.total + Tally(charged.amount)
        group.charges += 1
        group.first, group.last = (
            min(group.first, charged.at),
            max(group.last, charged.at),
        )

    def spendings(self) -> list[Spending]:
        """Return what each group used, with what is held."""
        for charged in self.held.values():
            self.add(charged)
        rule = self.gate.rule
        if not isinstance(rule, Filter):
            return []
        return [
            Spending(
                account=self.gate.id,
                group=name,
                charges=group.charges,
                amount=rule.named(group.total),
                used_fraction=rule.used_fraction(group.total),
                last=group.last,
                weeks=(_week(group.first), _week(group.last)),
            )
            for name, group in self.groups.items()
        ]


def _week(at: str) -> str:
    year, week, _ = datetime.fromisoformat(at).isocalendar()
    return f"{year}-W{week:02}"
