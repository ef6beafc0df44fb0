"""The runs to come: which are kept, and when the rest ends."""

from __future__ import annotations

from datetime import date, timedelta

from dpflow.forecast.cadence import Every, Schedule
from dpflow.forecast.calendar import DatasetCalendar, FlowCalendar
from dpflow.ledger.records import KeptView
from dpflow.show.figures import alt_text, picture
from dpflow.show.figures.coming_runs import ComingRuns, draw_coming_runs

MONDAY = date(2027, 1, 4)


def flow(name: str, left: int = 0) -> FlowCalendar:
    """Return a flow of every week, with so many runs that are kept."""
    kept = KeptView(flow=name, runs=9, runs_left=left, left={}) if left else None
    weekly = Schedule(Every(seconds=7 * 86_400), MONDAY, "schedule")
    return FlowCalendar(flow=name, schedule=weekly, kept=kept, outlook=None)


def test_each_run_has_its_mark_and_the_sentence_counts_them() -> None:
    """Filled where it is kept; of two flows the one without kept runs has the rest."""
    flows = (flow("ad-hoc"), flow("weekly", 9))
    data = ComingRuns.read(DatasetCalendar(dataset="shop", flows=flows))
    assert data is not None
    figure = draw_coming_runs(data)
    [axes] = figure.axes
    lines = {line.get_label(): line for line in axes.lines}
    kept, rest = lines["kept"], lines["from the rest"]
    assert list(kept.get_ydata())[:2] == [0, 0]
    assert len(kept.get_xdata()) == 9
    assert kept.get_markerfacecolor() != rest.get_markerfacecolor() == "white"
    assert [text.get_text() for text in axes.get_yticklabels()] == ["weekly", "ad-hoc"]
    last = MONDAY + timedelta(weeks=29)
    assert alt_text(figure) == (
        f"Runs to come on shop from {MONDAY} to {last}: ad-hoc 30 from the rest, "
        "weekly 21 from the rest, weekly 9 kept."
    )
    assert picture(figure, "svg").startswith(b"<?xml")


def test_nothing_is_drawn_where_nothing_is_kept() -> None:
    """The burn-down has the forecast of a flow already."""
    found = DatasetCalendar(dataset="shop", flows=(flow("ad-hoc"),))
    assert ComingRuns.read(found) is None
