"""Burn-downs: what is left, charge by charge or day by day, made of public facts."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest
from matplotlib.dates import date2num
from matplotlib.figure import Figure

from dpflow import guarded
from dpflow.exceptions import ConfigurationError, UnknownDataset
from dpflow.forecast import BudgetLine
from dpflow.ledger.views.spending import Usage
from dpflow.show.figures import BurnDown, alt_text, burn_down, draw_burn_down, picture
from tests.projects import POLICY, TENTH, make_project

pytestmark = pytest.mark.quick

MONDAY = datetime(2026, 1, 5, 6, tzinfo=UTC)


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """Return the folder of a project with one dataset."""
    return make_project(tmp_path, monkeypatch, POLICY + "alerts: [0.25, 0.75]\n")


def charge(week, cost=TENTH):
    """Charge one week under a key, with a value that no figure may show."""

    @guarded(dataset="shop", cost=cost, release_key="count/{week}", noise="own")
    def count(week):
        return "canary-271828"

    return count(week)


def texts(figure):
    """Return every text of a figure."""
    (axes,) = figure.axes
    labels = [label.get_text() for label in axes.get_xticklabels()]
    notes = [note.get_text() for note in axes.texts]
    titles = [axes.get_title(loc=place) for place in ("left", "center", "right")]
    legend = axes.get_legend()
    names = [] if legend is None else [text.get_text() for text in legend.texts]
    return [*labels, *notes, *titles, *names, axes.get_ylabel(), alt_text(figure)]


def weekly(count, share=0.025):
    """Return the points of a dataset that is charged every week."""
    return tuple(
        Usage(
            seq=number,
            kind="settle",
            used_fraction=number * share,
            release_key=f"count/{number}",
            at=(MONDAY + timedelta(weeks=number)).isoformat(),
        )
        for number in range(1, count + 1)
    )


def made(*lines, **fields):
    """Return what a figure of these lines shows."""
    given = {"dataset": "shop", "budget": "epsilon 1", "lines": lines}
    return BurnDown(**{**given, **fields})


def test_the_burn_down_falls_with_every_charge(shop):
    """The line starts at the whole budget and ends at what is left, in percent."""
    for week in range(3):
        charge(f"2026-W{week}")
    figure = burn_down("shop")
    (axes,) = figure.axes
    line = axes.lines[0]
    assert isinstance(figure, Figure)
    assert tuple(figure.get_size_inches()) == (8.0, 4.2)
    # Reserve and settle of each; the last point is drawn to the end.
    heights = [100, 90, 90, 80, 80, 70, 70, 70]
    assert list(line.get_ydata()) == pytest.approx(heights)
    assert list(line.get_xdata()) == [0, 1, 2, 3, 4, 5, 6, 6]
    labels = texts(figure)
    assert "shop: epsilon 1 at delta 0, basic filter" in labels
    alerts = {"alert at 25 % used", "alert at 75 % used"}
    assert {*alerts, "2026-W0", "remaining budget, %"} <= set(labels)
    assert not any("canary" in text for text in labels)


def test_what_is_left_is_rounded_down():
    """A sentence never promises more than there is."""
    for share, percent in ((0.99951, "0 %"), (0.00001, "99.9 %")):
        sentence = made(("the whole", weekly(1, share=share))).sentence()
        assert f"the whole: {percent} left" in sentence


def test_a_forecast_goes_on_from_the_newest_point():
    """It never goes below nothing, and days that no clock has are not drawn."""
    days = ((date(2026, 8, 10), 0.8, 1), (date(2026, 9, 1), 1.2, 2))
    line = BudgetLine(account="shop#1", points=days, clock=True)
    data = made(("dataset shop", weekly(30)), line=line)
    figure = draw_burn_down(data)
    drawn = figure.axes[0].lines[1]
    assert list(drawn.get_ydata()) == pytest.approx([25, 20, 0])
    last = datetime.fromisoformat(data.points[-1].at)
    expected = [last, *(datetime(*day.timetuple()[:3], tzinfo=UTC) for day, *_ in days)]
    assert list(date2num(drawn.get_xdata())) == pytest.approx(date2num(expected))
    assert "forecast" in texts(figure)
    assert "forecast: 120.0% used on 2026-09-01" in alt_text(figure)
    other = replace(data, line=replace(line, clock=False))
    assert "forecast" not in texts(draw_burn_down(other))


def test_hostile_names_are_drawn_as_they_are():
    """Dollars are no formulas, and an underscore hides nothing from the legend."""
    name = "$\\frac{$ _x_ " + "y" * 300 + "\x1b[31m"
    data = made((name, weekly(3)), ("_hidden", weekly(3)), dataset="$a_b$")
    figure = draw_burn_down(data)
    names = [text.get_text() for text in figure.axes[0].get_legend().texts]
    assert all(len(each) < 50 for each in names)
    assert names[1] == " _hidden"
    # Matplotlib raises here if it reads a name as a formula.
    assert picture(figure).startswith(b"\x89PNG")


def test_an_unused_budget_is_no_unknown_dataset(shop):
    """A misspelt name is not an unused budget."""
    with pytest.raises(ConfigurationError, match="nothing was charged to dataset"):
        burn_down("shop")
    with pytest.raises(UnknownDataset, match="shpo"):
        burn_down("shpo")
