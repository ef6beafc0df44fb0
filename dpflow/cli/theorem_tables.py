"""How theorems compare in a terminal: what fits, what it needs, why not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from rich.table import Table
from rich.text import Text

from dpflow.cli.output import plain, say
from dpflow.cli.tables import cell, new_table
from dpflow.forecast.stopping import Leftover
from dpflow.forecast.workload import Fit, Reading
from dpflow.rounding import float_up, short_up

R = TypeVar("R", Fit, Reading, Leftover)

_NO_ADAPTING = "only if steps and their number are fixed in advance"


def fit_json(fit: Fit) -> dict[str, Any]:
    """Return what a theorem makes of a workload, for programs."""
    return {
        "theorem": fit.theorem,
        "priced": not fit.problem,
        "steps_admitted": None if fit.problem else fit.admitted,
        "runs": fit.rounds,
        "needs_epsilon": None if fit.needs is None else float_up(fit.needs),
        "problem": fit.problem or None,
    }


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
    if fit.theorem == "plan":
        return cell(_NO_ADAPTING)
    return cell("the policy's" if fit.theorem == current else "")


def _name(fit: Fit, current: str) -> Text:
    return cell(fit.theorem, "bold" if fit.theorem == current else "")


def _runs(fit: Fit) -> Text:
    if fit.problem:
        return cell("-")
    return cell("no end" if fit.rounds is None else fit.rounds)
