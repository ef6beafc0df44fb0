"""Tables of accounts, flows and costs, for terminals and for the page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

from dpflow.accounting.costs.text import python_form
from dpflow.accounting.rules.rule import COUNTS, Filter
from dpflow.forecast.theorems import epsilon_used
from dpflow.ledger.decisions.gates import remainder
from dpflow.ledger.decisions.refusals import amount_text
from dpflow.ledger.views.accounts import AccountView
from dpflow.ledger.views.entries import account_title, percent_text
from dpflow.ledger.views.reading import OpenReservation
from dpflow.ledger.views.spending import Spending
from dpflow.notebook import Sheet
from dpflow.policy.reserved import run_lines
from dpflow.rounding import number_from_text, short_down, short_up
from dpflow.show.guarantees import shares_in_words
from dpflow.show.overview import FlowOverview
from dpflow.show.status import DatasetStatus

_AMOUNTS = ("budget", "spent", "reserved", "forfeited", "remaining", "used")
#: Significant digits, fewest first, of two numbers that must differ.
_DIGITS = range(4, 60)
_ACCOUNT_HEADS = ("account", "filter", "currency", *_AMOUNTS, "state")


#: What draws the noise of a step, by the word of the journal.
_DRAWN = {
    "opendp": "dpflow, by OpenDP",
    "own": "the step's own code",
    "self-declared": "the step's own code or library",
}
#: About so many accounts appear of a dataset with many parts.
MOST = 24


def details(
    status: DatasetStatus, most: int = MOST
) -> tuple[list[str], dict[str, Sheet], int]:
    """Return the details of a dataset's status.

    Args:
        status: Status of the dataset.
        most: About this number of accounts appear.

    Returns:
        Guarantee and epsilon in words, tables by their titles, and the number of
        accounts of parts that no table has.
    """
    pinned, accounts = status.standing.pinned, status.standing.accounts
    texts = [f"Used so far: {spent.text}." for spent in status.overview.spent]
    texts += [f"{union_text(v, members=True)}." for v in accounts if is_whole_union(v)]
    texts += [status.guarantee, status.odds, status.history]
    texts += [shares_in_words(pinned), *run_lines(pinned)]
    shown = telling(accounts, most)
    sheets = {
        "Flows": flows_sheet(status.overview.flows),
        "Accounts": accounts_sheet([view for view in shown if view.reading is None]),
        "Odometers": odometers_sheet(v for v in shown if v.reading is not None),
    }
    result = {title: sheet for title, sheet in sheets.items() if sheet.rows}
    return [*filter(None, texts)], result, len(accounts) - len(shown)


def telling(views: Sequence[AccountView], most: int = MOST) -> list[AccountView]:
    """Return the most important accounts of a dataset with many accounts.

    Args:
        views: Accounts of one dataset.
        most: About this number of accounts.

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


def reservations_sheet(reservations: Iterable[OpenReservation]) -> Sheet:
    """Return the open reservations."""
    rows = [
        (
            charge.reservation,
            str(charge.body["step"]),
            str(charge.body.get("flow") or "-"),
            python_form(charge.body["cost"]),
            charge.at[:16].replace("T", " "),
            charge.fate,
        )
        for charge in reservations
    ]
    heads = ("reservation", "step", "flow", "cost", "since", "state")
    return Sheet(heads, rows, ("reservation",))


def steps_sheet(groups: Iterable[tuple[int, Spending]]) -> Sheet:
    """Return the declared cost of each step, and what draws its noise.

    Args:
        groups: Charges by step, flow, cost and noise, with the number of their term.
    """
    rows = dict[tuple[str, ...], str]()
    for term, spending in groups:
        step, flow, cost, noise = spending.group
        mechanism, _, numbers = cost.removesuffix(")").partition("(")
        sensitivity, parameters = "-", numbers
        if numbers.startswith("sensitivity=") and "(" not in numbers:
            numbers = numbers.removeprefix("sensitivity=")
            sensitivity, _, parameters = numbers.partition(", ")
        drawn = _DRAWN.get(noise, noise)
        row = step, flow, mechanism, sensitivity, parameters or "-", drawn, str(term)
        rows[row] = max(rows.get(row, ""), spending.last[:10])
    heads = ("step", "flow", "mechanism", "sensitivity", "noise", "drawn by", "term")
    full = [(*row, last) for row, last in rows.items()]
    return Sheet((*heads, "last"), full, ("last",))


def flows_sheet(flows: Iterable[FlowOverview]) -> Sheet:
    """Return what limits the runs of each flow, and what a run costs."""
    heads = ("flow", "first limit", "a run is", "every")
    rows = [
        (
            flow.flow or "(no flow)",
            *(("-",) * 3 if flow.outlook is None else flow.outlook.texts),
        )
        for flow in flows
    ]
    return Sheet(heads, rows)


def accounts_sheet(views: Sequence[AccountView]) -> Sheet:
    """Return what filters have spent, one row for each component of a tally.

    An account of `auto` has one row, its epsilon.
    """
    rows = [row for view in views for row in _account_rows(view)]
    columns = {head: [row[n] for row in rows] for n, head in enumerate(_ACCOUNT_HEADS)}
    return Sheet.of(columns, *_AMOUNTS)


def _account_rows(view: AccountView) -> Iterator[tuple[str, ...]]:
    if is_union(view):
        yield _union_row(view)
        return
    heads = account_title(view), view.theorem
    tail = percent_text(view.used_fraction), view.state
    for name in _list_components(view):
        spent, budget = _spent_and_budget(view, name)
        reserved, forfeited = (
            "" if part[name] == "0" else amount_text(name, part[name])
            for part in (view.reserved, view.forfeited)
        )
        left = amount_text(name, (view.left or {}).get(name), up=False)
        yield (*heads, name, budget, spent, reserved, forfeited, left, *tail)
        heads = tail = ("", "")


def is_whole_union(view: AccountView) -> bool:
    """Return True if the account is that of a whole dataset under `auto`."""
    return is_union(view) and view.kind in ("dataset", "population")


def is_union(view: AccountView) -> bool:
    """Return True if the account's filter is a union of members, as `auto` is."""
    return isinstance(view.gate.rule, Filter) and bool(view.gate.rule.members)


def union_text(view: AccountView, *, members: bool = False) -> str:
    """Return what an account of `auto` has spent, and the remaining delta of steps.

    Args:
        view: The account.
        members: True for the used share of each member, too.
    """
    rule, deltas = view.gate.rule, [Fraction(0)]
    states = dict.fromkeys((member.theorem for member in rule.members), "ended")
    for member, own in rule.covering(view.gate.total):
        states[member.theorem] = f"{percent_text(member.used_fraction(own))} used"
        if member.limit is not None and member.admits(own):
            amounts = member.label(remainder(member.limit, own))
            deltas.append(number_from_text(amounts.get("delta", "0")))
    _, _, _, budget, spent, _, _, left, *_ = _union_row(view)
    texts = [f"epsilon {spent} of {budget}, {left} remains"]
    texts += [f"delta {short_down(max(deltas))} of steps remains"]
    texts += [f"{name} {state}" for name, state in states.items() if members]
    return "; ".join(texts)


def _union_row(view: AccountView) -> tuple[str, ...]:
    """Return the row of an account of `auto`: its epsilon, everything included."""
    rule, epsilon = view.gate.rule, None
    # A search for each of many parts would take minutes.
    if view.kind != "partition":
        epsilon = epsilon_used(rule, view.gate.total)
    spent, left = "-", "-"
    if epsilon is not None:
        spent = short_up(epsilon)
        left = short_down(max(rule.epsilon - epsilon, Fraction(0)))
    amounts = short_down(rule.epsilon), spent, "", "", left
    tail = percent_text(view.used_fraction), view.state
    return account_title(view), view.theorem, "epsilon", *amounts, *tail


def _spent_and_budget(view: AccountView, component: str) -> tuple[str, str]:
    """Write the spent amount, rounded up, and the budget, rounded down.

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


def _list_components(view: AccountView) -> list[str]:
    """Return the components of an account, without a delta of 0 of 0."""
    names = list(view.spent)
    if view.budget is not None:
        sums = (view.budget, view.spent, view.reserved, view.forfeited)
        names = [n for n in names if any(side.get(n, "0") != "0" for side in sums)]
    return names or list(view.spent)[:1]


def odometers_sheet(views: Iterable[AccountView]) -> Sheet:
    """Return the reading of each flow, in each partition if there are any."""
    rows = []
    for view in views:
        part = view.gate.partition
        name = f"{view.name} in {part}" if part else view.name
        rows.append((name, view.theorem, reading_text(view), view.state))
    return Sheet(("flow", "odometer", "lost at most", "state"), rows)


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
