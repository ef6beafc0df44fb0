"""Who spent it: bars by week, stacked by flow."""

from __future__ import annotations

import pytest

from dpflow import guarded
from dpflow.exceptions import ConfigurationError, UnknownDataset
from dpflow.guard.project import current_project
from dpflow.show.figures import (
    Composition,
    alt_text,
    composition,
    draw_composition,
    picture,
)
from dpflow.show.figures.by_flow import _all_weeks
from tests.projects import POLICY, TENTH, make_project


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """Return the folder of a project with one dataset."""
    return make_project(tmp_path, monkeypatch)


def charge(flow):
    """Charge a tenth of the budget to a flow."""

    @guarded(dataset="shop", cost=TENTH, flow=flow)
    def count():
        return "canary-271828"

    return count()


def test_bars_are_stacked_by_flow_the_largest_below(shop):
    """Their heights add up to what was spent."""
    for flow in ("rare", "weekly", "weekly", None):
        charge(flow)
    figure = composition("shop")
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    floors = [bar.get_y() for bar in figure.axes[0].patches]
    assert heights == pytest.approx([20, 10, 10])
    assert floors == pytest.approx([0, 20, 30])
    names = [text.get_text() for text in figure.axes[0].get_legend().texts]
    assert names == ["weekly", "no flow", "rare"]
    assert alt_text(figure).endswith(
        "the budget: weekly 20.0%, no flow 10.0%, rare 10.0%."
    )
    assert "canary" not in alt_text(figure)


def test_weeks_without_charges_are_there():
    """Also over the turn of a year with 53 weeks."""
    assert _all_weeks({"2026-W52", "2027-W02"}) == [
        "2026-W52", "2026-W53", "2027-W01", "2027-W02",
    ]  # fmt: skip


def test_the_smallest_of_many_flows_are_one(shop):
    """Six colours are enough for anybody."""
    for number in range(8):
        charge(f"flow-{number}")
    data = Composition.read(current_project().ledger, "shop")
    names = [name for name, _ in data.flows]
    assert len(names) == 6
    assert names[-1] == "other flows"
    assert sum(sum(shares) for _, shares in data.flows) == pytest.approx(0.8)


def test_a_charge_on_a_part_and_on_the_whole_counts_once(tmp_path, monkeypatch):
    """The cap of all parts together is the budget then."""
    policy = POLICY.replace("unit: customer", "unit: customer-week")
    policy += "partition: {by: week}\nlifetime: {epsilon: 4}\n"
    make_project(tmp_path, monkeypatch, policy)

    @guarded(dataset="shop", cost=TENTH, partitions="{week}")
    def count(week):
        return week

    count("2026-W01")
    count("2026-W02")
    data = Composition.read(current_project().ledger, "shop")
    assert sum(sum(shares) for _, shares in data.flows) == pytest.approx(0.05)
    assert not data.divided


def test_a_year_is_drawn_with_few_labels():
    """Names with dollars and underscores included."""
    weeks = tuple(_all_weeks({"2026-W01", "2026-W53"}))
    shares = (0.01,) * len(weeks)
    flows = (("$a$", shares), ("_b", shares))
    data = Composition(dataset="shop", weeks=weeks, flows=flows, divided=False)
    figure = draw_composition(data)
    assert len(figure.axes[0].get_xticks()) <= 14
    assert picture(figure).startswith(b"\x89PNG")


def test_one_bar_of_one_colour_tells_nothing(shop):
    """Pages leave it out."""
    charge("weekly")
    assert not Composition.read(current_project().ledger, "shop").tells
    charge("rare")
    assert Composition.read(current_project().ledger, "shop").tells


def test_nothing_charged_and_no_such_dataset_are_told_apart(shop):
    """A misspelt name is not an unused budget."""
    with pytest.raises(ConfigurationError, match="nothing was charged to dataset"):
        composition("shop")
    with pytest.raises(UnknownDataset, match="shpo"):
        composition("shpo")
