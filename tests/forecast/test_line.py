"""The line of a picture: what all flows together will have used."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest

from dpflow.forecast import Every, Outlook, budget_line
from dpflow.forecast.cadence import Schedule

pytestmark = pytest.mark.quick

SCHEDULE = Schedule(Every(seconds=604_800), date(2026, 1, 5), "schedule")


def made(flow: str, *ahead: tuple[date, float, int], **fields: object) -> Outlook:
    """Return an outlook on the same account, a tenth of which is used."""
    base = Outlook(
        dataset="d",
        flow=flow,
        runs_left=len(ahead),
        per_run="",
        limited_by=None,
        schedule=SCHEDULE,
        account="d#1",
        used=0.1,
        ahead=ahead,
        steps=2,
    )
    return replace(base, **fields)


WEEKLY = made("w", (date(2026, 1, 5), 0.3, 1), (date(2026, 1, 12), 0.5, 2))
MONTHLY = made("m", (date(2026, 1, 8), 0.2, 1), (date(2026, 2, 8), 0.9, 3), steps=1)


def test_flows_add_up():
    """Each flow's runs come off the same budget, in the order of their days."""
    line = budget_line([WEEKLY, MONTHLY])
    days = [day.isoformat() for day, _, _ in line.points]
    assert days == ["2026-01-05", "2026-01-08", "2026-01-12", "2026-02-08"]
    used = [used for _, used, _ in line.points]
    assert used == pytest.approx([0.3, 0.4, 0.6, 1.0])
    # A step is two entries; the last point stands for two runs of one step.
    assert [grown for _, _, grown in line.points] == [4, 6, 10, 14]
    assert (line.account, line.clock) == ("d#1", True)


def test_other_accounts_are_no_part_of_it():
    """Shares of different budgets do not add up; without points there is no line.

    A backfill of 1997, which release keys date, is not drawn among charges of today.
    """
    assert budget_line([WEEKLY, replace(MONTHLY, account="d#1/flow/m")]) is None
    assert budget_line([replace(WEEKLY, ahead=())]) is None
    assert budget_line([]) is None
    keyed = replace(WEEKLY, schedule=replace(SCHEDULE, source="release keys"))
    assert not budget_line([keyed]).clock
    assert budget_line([keyed, MONTHLY]) is None
