"""Where a forecast is drawn: dates of the clock, or entries of the journal to come."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from typing import Any

from dpflow.forecast import BudgetLine
from dpflow.ledger.views.words import percent_text

#: One point of a forecast: when, and the share of the budget that is used then.
DatedShares = Sequence[tuple[date | datetime, float]]
#: A forecast takes at most so many times the room that the journal does.
_HORIZON = 2.0


def over_charges(line: BudgetLine, newest: int) -> list[tuple[Any, float]]:
    """Go on from the newest entry, whatever calendar the line's days have."""
    points = [(newest + grown, used) for _, used, grown in line.points]
    return _within(points, newest * (1 + _HORIZON))


def over_dates(
    given: DatedShares, line: BudgetLine | None, start: datetime, newest: datetime
) -> list[tuple[Any, float]]:
    """Go on from the newest charge; days that are not the clock's are left out.

    Args:
        given: A forecast that somebody made, which is drawn as it is.
        line: What the ledger's runs foretell.
        start: When the oldest charge was.
        newest: When the newest was.
    """
    if given:
        return [(_at(day), share) for day, share in given]
    if line is None or not line.clock:
        return []
    coming = [(_at(day), used) for day, used, _ in line.points]
    points = [(when, used) for when, used in coming if when >= newest]
    return _within(points, newest + _HORIZON * (newest - start))


def foretold(line: BudgetLine) -> str:
    """Say where a line ends, in the calendar of its days."""
    day, share, _ = line.points[-1]
    calendar = "" if line.clock else ", as release keys count"
    return f"forecast: {percent_text(share)} used on {day}{calendar}"


def _within(points: Sequence[tuple[Any, float]], end: Any) -> list[tuple[Any, float]]:
    """Cut a line off where a picture ends; its first point always stays."""
    return [each for number, each in enumerate(points) if not number or each[0] <= end]


def _at(day: date | datetime) -> datetime:
    if isinstance(day, datetime):
        return day if day.tzinfo else day.replace(tzinfo=UTC)
    return datetime.combine(day, time(), UTC)
