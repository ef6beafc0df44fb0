"""Figures: returned, never shown, and made of public facts."""

from __future__ import annotations

import base64
import sys

import pytest
from matplotlib.figure import Figure

from dpflow import PureDP, guarded
from dpflow.exceptions import BudgetRefused, ConfigurationError, UnknownDataset
from dpflow.plots import burn_down, data_uri
from tests.projects import POLICY, TENTH, make_project, run_python


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """Return the folder of a project with one dataset."""
    return make_project(tmp_path, monkeypatch, POLICY + "alerts: [0.25, 0.75]\n")


def charge(week, cost=TENTH):
    """Charge one week under a key, with a value that no figure may show."""

    @guarded(dataset="shop", cost=cost, release_key="count/{week}")
    def count(week):
        return "canary-271828"

    return count(week)


def texts(figure):
    """Return every text of a figure."""
    (axes,) = figure.axes
    labels = [label.get_text() for label in axes.get_xticklabels()]
    notes = [note.get_text() for note in axes.texts]
    titles = [axes.get_title(loc=place) for place in ("left", "center", "right")]
    return [*labels, *notes, *titles, axes.get_ylabel()]


def test_the_burn_down_rises_with_every_charge(shop):
    """The line starts at nothing and ends at what is used, in percent."""
    for week in range(3):
        charge(f"2026-W{week}")
    figure = burn_down("shop")
    (axes,) = figure.axes
    line = axes.lines[0]
    assert isinstance(figure, Figure)
    assert tuple(figure.get_size_inches()) == (8.0, 4.2)
    assert list(line.get_ydata()) == pytest.approx([0, 10, 10, 20, 20, 30, 30])
    assert list(line.get_xdata()) == list(range(7))
    found = texts(figure)
    assert "shop: epsilon 1 at delta 0, basic filter" in found
    assert {"alert 25 %", "alert 75 %", "2026-W0", "budget used, %"} <= set(found)
    assert not any("canary" in text for text in found)


def test_refusals_are_marked_where_they_happened(shop):
    """A cross after the charges that came before it."""
    charge("W1")
    with pytest.raises(BudgetRefused):
        charge("W2", PureDP(epsilon=5))
    charge("W3")
    (axes,) = burn_down("shop").axes
    crosses = next(line for line in axes.lines if line.get_marker() == "x")
    assert list(crosses.get_xdata()) == [2]
    assert list(crosses.get_ydata()) == pytest.approx([10])
    assert [text.get_text() for text in axes.get_legend().texts] == ["1 refused"]


def test_a_ledger_with_refusals_only_is_drawn(shop):
    """Nothing was used."""
    with pytest.raises(BudgetRefused):
        charge("W1", PureDP(epsilon=5))
    (axes,) = burn_down("shop").axes
    assert list(axes.lines[0].get_ydata()) == [0]


def test_many_charges_have_few_labels(shop):
    """The axis stays readable."""
    for week in range(30):
        charge(f"W{week}", PureDP(epsilon="0.01"))
    (axes,) = burn_down("shop").axes
    assert len(axes.get_xticks()) <= 13


def test_an_exhausted_budget_ends_at_one_hundred(shop):
    """Not above, and not below."""
    for week in range(10):
        charge(f"W{week}")
    (axes,) = burn_down("shop").axes
    assert axes.lines[0].get_ydata()[-1] == pytest.approx(100)


def test_nothing_charged_and_no_such_dataset_are_told_apart(shop):
    """A misspelt name is not an unused budget."""
    with pytest.raises(ConfigurationError, match="nothing was charged to dataset"):
        burn_down("shop")
    with pytest.raises(UnknownDataset, match="shpo"):
        burn_down("shpo")


def test_a_figure_fits_into_an_address(shop):
    """As a PNG that a page can hold."""
    charge("W1")
    address = data_uri(burn_down("shop"), dpi=20)
    kind, _, text = address.partition(",")
    assert kind == "data:image/png;base64"
    assert base64.b64decode(text).startswith(b"\x89PNG")


def test_matplotlib_is_an_extra(shop, monkeypatch):
    """Without it, the error says what to install."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'dpflow\[plots\]'"):
        burn_down("shop")


def test_importing_figures_loads_no_drawing_and_no_window():
    """Matplotlib is loaded by the first figure, pyplot never."""
    script = """
import json, sys
import dpflow.plots
before = "matplotlib" in sys.modules
dpflow.plots._figure_class()
print(json.dumps([before, "matplotlib.pyplot" in sys.modules]))
"""
    assert run_python(script) == [False, False]
