"""One line for a picture of a budget: what all flows together will have used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date

from dpflow.forecast.outlook import Outlook

#: From what is known of one flow's dates, others' cannot be told.
_KEYS = "release keys"
#: A settled step is two entries: its reserve and its settle.
_ENTRIES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetLine:
    """What is foreseen for one account.

    Attributes:
        account: Its id.
        points: A day, the share of the budget used after it, and how many entries the
            journal will have grown by; in this order.
        clock: Whether the days are those of the clock. Days of release keys are those
            of the periods that are reported on, such as 1997 in a backfill.
    """

    account: str
    points: tuple[tuple[date, float, int], ...]
    clock: bool


def budget_line(outlooks: Iterable[Outlook]) -> BudgetLine | None:
    """Add up the outlooks of one dataset's flows on its budget.

    Shares add up for theorems of one sum; for others the line is above what will be
    used. It ends where the budget does.

    Args:
        outlooks: Those of one dataset.

    Returns:
        None if no flow has points, or if they are on different accounts or calendars.
    """
    told = [each for each in outlooks if each.ahead]
    if len({(each.account, each.source == _KEYS) for each in told}) != 1:
        return None
    start = told[0].used
    points: list[tuple[date, float, int]] = []
    used, grown = start, 0
    for day, share, steps in sorted(move for each in told for move in _moves(each)):
        used, grown = used + share, grown + _ENTRIES * steps
        points.append((day, min(used, 1.0), grown))
        if used >= 1:
            break
    clock = told[0].source != _KEYS
    return BudgetLine(account=told[0].account, points=tuple(points), clock=clock)


def _moves(outlook: Outlook) -> Iterator[tuple[date, float, int]]:
    """Yield the days, what is used from one to the next, and the steps between."""
    before, count = outlook.used, 0
    for day, used, runs in outlook.ahead:
        yield day, used - before, outlook.steps * (runs - count)
        before, count = used, runs
