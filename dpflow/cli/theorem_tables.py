"""How theorems compare in a terminal: what fits, what it needs, why not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from rich.table import Table
from rich.text import Text

from dpflow.cli.output import say
from dpflow.cli.tables import cell, new_table
from dpflow.forecast.comparison import Stopping
from dpflow.forecast.stopping import Leftover
from dpflow.forecast.what_if import Forecast
from dpflow.forecast.workload import Fit, OdometerReading
from dpflow.ledger.views.words import percent_text
from dpflow.notebook import plain
from dpflow.rounding import reading_up, short_up

R = TypeVar("R", Fit, OdometerReading, Leftover)

_NO_ADAPTING = "only if steps and their number are fixed in advance"
_BEST_ORDER = "its best whole order; fix it before the first charge"


def runs_table(fits: Sequence[Fit], *, current: str) -> Table:
    """Show how many runs each theorem admits.

    Args:
        fits: One for each theorem, the one that goes furthest first.
        current: The policy's own.
    """
    table = new_table("theorem", "runs", "remark", numbers=("runs",))
    for fit in fits:
        table.add_row(_name(fit, current), _runs(fit), _remark(fit, current, fits))
    return table


def compare_table(fits: Sequence[Fit], *, steps: int, current: str) -> Table:
    """Show what each theorem makes of a workload of so many steps."""
    first = f"fit of {steps}"
    numbers = (first, "repeats", "needs epsilon")
    table = new_table("theorem", *numbers, "remark", numbers=numbers)
    for fit in fits:
        table.add_row(
            _name(fit, current),
            cell("-" if fit.problem else fit.admitted),
            _runs(fit),
            cell("-" if fit.needs is None else short_up(fit.needs, 3)),
            _remark(fit, current, fits),
        )
    return table


def notes(problems: Iterable[str]) -> list[str]:
    """Return each reason once, to stand below a table whose rows have its number."""
    return list(dict.fromkeys(problem for problem in problems if problem))


def no_price(problem: str, problems: Iterable[str]) -> Text:
    """Point to the reason why there is no number."""
    return cell(f"no price ({notes(problems).index(problem) + 1})", "dim")


def telling(rows: Sequence[R], *, current: str = "") -> list[R]:
    """Return the rows with a price, and that of the policy's own theorem.

    If none has a price, all are returned, for then the reasons are what there is.
    """
    priced = [row for row in rows if not row.problem]
    if not priced:
        return list(rows)
    return [row for row in rows if not row.problem or row.theorem == current]


def say_left_out(rows: Sequence[R], shown: Sequence[R]) -> None:
    """Say below a table why rows in it have no price, and which are not in it."""
    for number, problem in enumerate(notes(row.problem for row in shown), 1):
        say(Text(f"({number}) {plain(problem)}", style="dim"))
    names = sorted({row.theorem for row in rows} - {row.theorem for row in shown})
    if names:
        some = "theorem" if len(names) == 1 else "theorems"
        listed = ", ".join(names)
        text = f"{len(names)} {some} without a price for it: {listed}. --json says why."
        say(Text(text, style="dim"))


def _remark(fit: Fit, current: str, fits: Sequence[Fit]) -> Text:
    if fit.problem:
        return no_price(fit.problem, (each.problem for each in fits))
    if fit.theorem == "sequence":
        return cell(_NO_ADAPTING)
    if fit.order is not None:
        return cell(_BEST_ORDER)
    return cell("the policy's" if fit.theorem == current else "")


def _name(fit: Fit, current: str) -> Text:
    order = "" if fit.order is None else f", order {fit.order}"
    own = fit.theorem == current and not order
    return cell(fit.theorem + order, "bold" if own else "")


def _runs(fit: Fit) -> Text:
    if fit.problem:
        return cell("-")
    return cell("no end" if fit.rounds is None else fit.rounds)


def noise_table(found: Forecast) -> Table:
    """Show what other noise would change."""
    numbers = ("noise", "runs", "refused from")
    columns = ("noise", "runs", "refused from", "95 % of releases within +-")
    table = new_table(*columns, numbers=numbers)
    for row in found.rows:
        style = "bold" if row.factor == 1 else ""
        widths = ", ".join("-" if w is None else short_up(w, 3) for w in row.widths)
        left = "no end" if row.runs_left is None else str(row.runs_left)
        table.add_row(
            cell(f"x {float(row.factor):g}", style),
            cell("-" if row.problem else left, style),
            cell(row.ends or "-", style),
            cell(row.problem or widths, "dim" if row.problem else style),
        )
    return table


def odometers_table(readings: Sequence[OdometerReading]) -> Table:
    """Show what each odometer reads after a workload."""
    table = new_table("odometer", "reads", "remark", numbers=("reads",))
    for each in readings:
        shown = "-" if each.problem else reading_up(each.epsilon)
        problems = (other.problem for other in readings)
        why = no_price(each.problem, problems) if each.problem else ""
        table.add_row(cell(each.theorem), cell(shown), why)
    return table


def leftovers_table(ways: Sequence[Leftover]) -> Table:
    """Show what each way of accounting for an early stop leaves."""
    numbers = ("held", "cost", "left for")
    table = new_table("way", *numbers, "remark", numbers=numbers)
    for each in ways:
        rest = "no end" if each.rest is None else f"{each.rest}"
        if each.problem:
            problems = (other.problem for other in ways)
            why = no_price(each.problem, problems)
            row = [cell("-")] * 3 + [why]
        else:
            delta = f"and {percent_text(each.delta)} of delta" if each.delta else ""
            shares = percent_text(each.reserved), percent_text(each.posted)
            row = [cell(text) for text in (*shares, rest, delta)]
        table.add_row(cell(_way(each)), *row)
    return table


def verdict(found: Stopping) -> str:
    """Say which way leaves more for the rest."""
    known = [each for each in found.ways if not each.problem]
    how = f"After {found.stop} of at most {found.cost.stops[-1]} sub-steps"
    if not known:
        return f"{how}: no theorem has a price for {found.cost!r} within this budget."
    best = known[0]
    text = f"{how}, {_way(best)} leaves most: {_count(best)} further {found.rest!r}"
    other = next((e for e in known if e.output_dp is not best.output_dp), None)
    if other is None:
        kind = "filter" if best.output_dp else "way of output DP"
        return f"{text}. No {kind} has a price for it within this budget."
    kind = "output DP" if other.output_dp else "a filter"
    return f"{text}. The best of {kind}, {_way(other)}, leaves {_count(other)}."


def _way(each: Leftover) -> str:
    if each.theorem != "output":
        return f"filter {each.theorem}"
    return f"output DP by {each.accountant}"


def _count(each: Leftover) -> str:
    return "no end of" if each.rest is None else f"{each.rest}"
