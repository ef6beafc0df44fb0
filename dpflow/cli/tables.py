"""How accounts, the journal and gates look in a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from dpflow.forecast import Outlook
from dpflow.forecast.check import GateCheck
from dpflow.ledger.records import AccountView
from dpflow.ledger.views.accounts import partition_of
from dpflow.ledger.views.entries import JournalEntry
from dpflow.ledger.views.words import (
    account_title,
    amount_text,
    percent_text,
    shown_components,
    spent_and_budget,
)
from dpflow.notebook import TableRecord, plain, shown_key
from dpflow.policy.pinned import TIMES
from dpflow.rounding import number_from_text, reading_up, short_down, short_up
from dpflow.show.overview import FlowOverview

#: Shares of a budget from which its use is shown in yellow, then in red.
_YELLOW, _RED = 0.8, 0.95
#: Of so many lines of a sequence, the steps are shown.
_STEPS_SHOWN = 4
#: So few runs left are shown in yellow.
_FEW = 3
STATE_STYLES = {
    "open": "green",
    "running": "green",
    "halted": "bold red",
    "paused": "bold yellow",
    "frozen": "bold cyan",
    "overdrawn": "bold red",
}


def new_table(*columns: str, numbers: Iterable[str] = ()) -> Table:
    """Make an empty table.

    Args:
        *columns: The headings.
        numbers: Those of them whose cells stay in one piece, at the right.
    """
    # No outer frame: lines start with the first cell, also in a pipe.
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0)
    )
    right = set(numbers)
    for name in columns:
        if name in right:
            table.add_column(name, justify="right", no_wrap=True)
        else:
            table.add_column(name, overflow="fold")
    return table


def cell(value: object, style: str = "") -> Text:
    """Write one cell; what a journal says can hold anything."""
    return Text(plain(str(value)).replace("\n", " "), style=style)


def sheet_table(record: TableRecord, *numbers: str) -> Table:
    """Show the table of a record; the columns of numbers stay in one piece."""
    heads, rows = record.sheet()
    table = new_table(*heads, numbers=numbers)
    for row in rows:
        table.add_row(*map(cell, row))
    return table


def flows_table(flows: Sequence[FlowOverview], unit: str) -> Table:
    """Show whether each flow runs, what it has lost at most, and how far it goes."""
    # One of several units: a person has lost more than a person-hour.
    lost = (
        f"lost at most, a {unit}"
        if unit.rpartition("-")[2] in TIMES
        else "lost at most"
    )
    numbers = (lost, "runs left", "refused from")
    table = new_table("flow", "state", *numbers, numbers=numbers)
    for each in flows:
        ahead = each.outlook
        table.add_row(
            cell(each.flow or "(no flow)"),
            cell(each.state.short(each.flow), STATE_STYLES.get(each.state.word, "")),
            cell("no bound" if each.lost is None else each.lost.text),
            cell("-") if ahead is None else runs_cell(ahead),
            cell("-" if ahead is None else ahead.exhausted_on or "-"),
        )
    return table


def accounts_table(views: Sequence[AccountView]) -> Table:
    """Show what filters have spent, one row for each component of a tally."""
    numbers = ("budget", "spent", "reserved", "forfeited", "left", "used")
    columns = ("account", "filter", "currency", *numbers, "state")
    table = new_table(*columns, numbers=numbers)
    for view in views:
        for number, name in enumerate(shown_components(view)):
            first = number == 0
            spent, budget = spent_and_budget(view, name)
            table.add_row(
                cell(account_title(view) if first else ""),
                cell(view.theorem if first else ""),
                cell(name),
                cell(budget),
                cell(spent),
                _amount(name, view.reserved[name], "cyan"),
                _amount(name, view.forfeited[name], "magenta"),
                cell(amount_text(name, (view.left or {}).get(name), up=False)),
                _share(view.used_fraction) if first else cell(""),
                cell(view.state, STATE_STYLES.get(view.state, "")) if first else "",
            )
    return table


def _amount(name: str, text: str, style: str) -> Text:
    return cell(amount_text(name, text), "" if text == "0" else style)


def _share(fraction: float | None) -> Text:
    style = ""
    if fraction is not None:
        style = "red" if fraction >= _RED else "green"
        style = "yellow" if _YELLOW <= fraction < _RED else style
    return cell(percent_text(fraction), style)


def odometers_table(views: Sequence[AccountView]) -> Table:
    """Show how much each flow has lost at most, in each partition if there are any."""
    numbers = ("epsilon lost at most", "at delta", "halts at")
    table = new_table("flow", "odometer", *numbers, "state", numbers=numbers)
    for view in views:
        part = partition_of(view.id)
        table.add_row(
            cell(f"{view.name} in {part}" if part else view.name),
            cell(view.theorem),
            reading_cell(view),
            cell(short_up(number_from_text(view.delta))),
            cell("never" if view.halt_at is None else f"{float(view.halt_at):g}"),
            cell(view.state, STATE_STYLES.get(view.state, "")),
        )
    return table


def reading_cell(view: AccountView) -> Text:
    """Show an odometer's reading, coloured by its distance from the halt."""
    reading = view.reading
    if reading is None:
        return cell("-")
    if not view.charged:
        # What it reads while it idles is no loss.
        return cell("0")
    if reading == float("inf"):
        uncovered = sum(int(a.get("uncovered", "0")) for a in _charged(view))
        return cell(f"undefined ({uncovered} uncovered)", "yellow")
    used = None if view.halt_at is None else reading / float(view.halt_at)
    style = "" if used is None or used < _YELLOW else "yellow"
    return cell(reading_up(reading), "red" if used and used >= _RED else style)


def outlooks_table(outlooks: Sequence[Outlook]) -> Table:
    """Show how many more runs each flow has."""
    numbers = ("runs left", "refused from")
    table = new_table("flow", "runs left", "refused from", "by", "a run is", "every")
    for column in table.columns:
        column.no_wrap = column.header in numbers
    for each in outlooks:
        every = (
            "-" if each.every is None else f"{each.every.text}, by its {each.source}"
        )
        table.add_row(
            cell(each.flow or "(no flow)"),
            runs_cell(each),
            cell(each.exhausted_on or "-"),
            cell(each.limited_by or "-"),
            cell(each.per_run),
            cell(every),
        )
    return table


def runs_cell(outlook: Outlook) -> Text:
    """Show a number of runs; few are red, none bold."""
    left = outlook.runs_left
    if left is None:
        return cell(outlook.left_text, "green")
    style = "bold red" if left == 0 else "yellow" if left <= _FEW else "green"
    return cell(f"{outlook.left_text}{'' if outlook.complete else '*'}", style)


def _charged(view: AccountView) -> tuple[Mapping[str, str], ...]:
    return view.spent, view.reserved, view.forfeited


# The journal


def messages(items: Sequence[JournalEntry]) -> list[str]:
    """Return what is said below the table; a repeated message is said once."""
    return list(dict.fromkeys(item.message for item in items if item.message))


def history_table(
    items: Sequence[JournalEntry], *, all_accounts: bool, dates_apart: bool
) -> Table:
    """Show journal entries; columns in which nothing stands are left out.

    Args:
        items: The entries, newest first.
        all_accounts: Show which account each moved, and what was settled after it.
        dates_apart: Say each date once, above its entries.
    """
    currency = _commonest(items)
    when, amount = "when (UTC)", f"amount\n{currency}".rstrip()
    after, left = "settled\nafter", "left\nafter"
    entries = [item.entry for item in items]
    cells: dict[str, list[Text]] = {
        when: [cell(_moment(each.at, dates_apart=dates_apart)) for each in entries],
        "entry": [cell(each.kind) for each in entries],
        **_places(items, all_accounts=all_accounts),
        "step": [_said(item, "step") for item in items],
        "flow": [_said(item, "flow") for item in items],
        amount: [_amounts(each.amount, currency, up=True) for each in entries],
        after: [_amounts(each.settled_after, currency, up=True) for each in entries],
        left: [_amounts(item.left_after, currency, up=False) for item in items],
        "release key": [
            cell(shown_key(item.entry.body.get("release_key") or "")) for item in items
        ],
        "outcome": [_outcome(item, messages(items)) for item in items],
    }
    if not all_accounts:
        del cells[after]
    said = {name: column for name, column in cells.items() if any(map(str, column))}
    table = new_table(*said, numbers=(when, "entry", amount, after, left))
    for column in table.columns[:2]:
        column.justify = "left"
    date = ""
    for each, row in zip(entries, zip(*said.values(), strict=True), strict=True):
        if dates_apart and each.at[:10] != date:
            date = each.at[:10]
            table.add_row(cell(date, "bold"))
        table.add_row(*row)
    return table


def _places(
    items: Sequence[JournalEntry], *, all_accounts: bool
) -> dict[str, list[Text]]:
    """Return the column that tells accounts or datasets apart, if there are several."""
    if all_accounts:
        return {"account": [cell(item.account.id) for item in items]}
    names = [item.account.dataset for item in items]
    return {"dataset": [cell(name) for name in names]} if len(set(names)) > 1 else {}


def _said(item: JournalEntry, name: str) -> Text:
    return cell(item.entry.body.get(name) or "")


def _moment(at: str, *, dates_apart: bool) -> str:
    return at[11:19] if dates_apart else at[:19].replace("T", " ")


def _outcome(item: JournalEntry, said: Sequence[str]) -> Text:
    number = f" ({said.index(item.message) + 1})" if item.message else ""
    text, alarm = item.outcome
    return cell(f"{text}{number}", "red" if alarm else "")


def _commonest(items: Iterable[JournalEntry]) -> str:
    """Return the component that most amounts are in; its name stands once."""
    counted = Counter(
        name
        for item in items
        for name, text in item.entry.amount.items()
        if text != "0"
    )
    return counted.most_common(1)[0][0] if counted else ""


def _amounts(amounts: Mapping[str, str] | None, currency: str, *, up: bool) -> Text:
    """Write amounts; those that are not in the heading's currency say which."""
    if amounts is None:
        return cell("-")
    parts = [
        f"{'' if name == currency else f'{name} '}{amount_text(name, text, up=up)}"
        for name, text in amounts.items()
        if text != "0"
    ]
    # One below the other: numbers stay in one piece and the column stays narrow.
    return Text(plain("\n".join(parts) or "0"))


# Gates


def gates_table(gates: Sequence[GateCheck]) -> Table:
    """Show the gates of a policy, with the rules' parameters, derived ones included."""
    costs = list(gates[0].counts) if gates else []
    columns = ("gate", "theorem", "constants", "threshold")
    table = new_table(*columns, *costs, numbers=costs)
    for gate in gates:
        account = gate.account
        constants = ", ".join(
            _constant(name, value)
            for name, value in account.parameters.items()
            if name != "theorem"
        )
        texts = (account_title(account), account.theorem, constants)
        counts = [cell(_count(*gate.counts[name])) for name in costs]
        table.add_row(*map(cell, texts), cell(_threshold(account)), *counts)
    return table


def _count(priced: bool, steps: int | None) -> str:  # noqa: FBT001
    if not priced:
        return "no price"
    return "no end" if steps is None else f"{steps}"


def _constant(name: str, value: Any) -> str:
    """Write a rule's constant; numbers in their shortest exact form, steps briefly."""
    if isinstance(value, bool):
        return name if value else f"no {name}"
    if name == "steps":
        times = [str(step["times"]) for step in value[:_STEPS_SHOWN]]
        return f"{' + '.join(times)}{' + ...' * (len(value) > len(times))} steps"
    text = str(value)
    try:
        number = number_from_text(text)
    except (ValueError, ArithmeticError):
        return f"{name} {text}"
    short = short_up(number)
    return f"{name} {short if number_from_text(short) == number else text}"


def _threshold(view: AccountView) -> str:
    """Say what a gate compares with."""
    if view.reading is not None:
        halt = "never" if view.halt_at is None else f"at {float(view.halt_at):g}"
        return f"halts {halt}, idle {reading_up(view.reading)}"
    parts = [
        # A sequence counts each of its costs.
        f"{name.partition('(')[0]} {short_down(number_from_text(text))}"
        for name, text in (view.budget or {}).items()
        if text != "0"
    ]
    return ", ".join(parts) or "no box"
