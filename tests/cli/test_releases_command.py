"""`dpflow releases`: list, show, withdraw."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpflow import (
    EarlyStopping,
    Gaussian,
    Laplace,
    Refined,
    guarded,
    iterations,
    release,
)
from tests.cli.support import run_fine, run_json
from tests.projects import TENTH, make_project

pytestmark = pytest.mark.quick

SHOP = """\
dataset: shop
unit: customer
relation: add-or-remove
budget: {epsilon: 3, delta: 1e-6}
filter: auto
flows:
  weekly-report: {}
"""


def test_a_long_list_ends_with_the_number_of_all(tmp_path, monkeypatch):
    """A table has the newest only; JSON has all."""
    make_project(tmp_path, monkeypatch)

    @guarded(dataset="shop", cost=TENTH, release_key="revenue/{week}")
    def revenue(week: str) -> int:
        return 4242

    for week in ("w1", "w2", "w1"):
        revenue(week)
    assert "newest" not in run_fine("releases", "list")
    monkeypatch.setattr("dpflow.cli.releases._MOST", 1)
    text = run_fine("releases", "list")
    assert "revenue/w2" in text
    assert "revenue/w1" not in text
    assert "The newest 1 of 2; --json lists all." in text
    assert len(run_json("releases", "list")["releases"]) == 2


REFINED = [
    Refined(Gaussian(sensitivity=1, noise_multiplier=40), coarsest=200),
    Refined(Laplace(sensitivity=1, scale=40), coarsest=200),
]


@pytest.mark.parametrize("cost", REFINED)
@pytest.mark.parametrize("kept", [True, False])
def test_the_error_of_a_refined_release_is_the_released_one(
    cost, kept, tmp_path, monkeypatch
):
    """It is that of the drawn number, also where the step returns a plain float."""
    make_project(tmp_path, monkeypatch, SHOP.replace("auto", "rdp"))
    words = {
        "release_key": "aircraft",
        "ignore": ("kept", "drawn"),
        "flow": "weekly-report",
    }
    drawn = []

    @guarded(dataset="shop", cost=cost, **words)
    def aircraft() -> float:
        drawn.append(release(10_000, within="10%", confidence="90%"))
        return drawn[0] if kept else float(drawn[0])

    value = aircraft()
    (listed,) = run_json("releases", "list")["releases"]
    assert listed["known"] == run_json("releases", "show", "aircraft")["known"]
    printed = run_fine("releases", "show", "aircraft").splitlines()
    assert float(printed[0]) == float(value)
    low, high = drawn[0].interval
    assert listed["known"] == [pytest.approx((high - low) / 2), 0.9]
    assert " at 90 %" in run_fine("releases", "list")
    if kept:
        assert printed[1:] == [f"{low:.10g} to {high:.10g} at 90 %"]


KEYED = {"dataset": "shop", "flow": "weekly-report", "name": "n", "release_key": "n"}
#: Bodies whose output is the draw, and the others.
BODIES = {
    "drawn": (lambda: release(100.0), True),
    "float": (lambda: float(release(100.0)), True),
    "field": (lambda: {"n": release(100.0)}, True),
    "cents": (lambda: release(10_000) / 100, False),
    "twice": (lambda: 2 * release(100.0), False),
    "more": (lambda: [release(100.0), 1.0], False),
    "text": (lambda: f"{release(100.0):.2f}", False),
}


@pytest.mark.parametrize("name", BODIES)
def test_only_a_drawn_number_has_the_interval_of_the_draw(name, tmp_path, monkeypatch):
    """List, page, `show` and JSON say an interval, or none of them does."""
    make_project(tmp_path, monkeypatch, SHOP)
    body, is_drawn = BODIES[name]
    cost = Gaussian(sensitivity=1, sigma=30)
    guarded(**KEYED, cost=cost)(body)()
    (listed,) = run_json("releases", "list")["releases"]
    assert listed["facts"]["as_drawn"] is is_drawn
    assert (listed["known"] is not None) is is_drawn
    assert (" 58.8" in run_fine("releases", "list")) is is_drawn
    assert (len(run_fine("releases", "show", "n").splitlines()) == 2) is is_drawn
    run_fine("report", "--out", "report.html")
    assert ("58.8" in Path("report.html").read_text("utf-8")) is is_drawn


def test_a_sub_step_has_no_interval_of_the_whole(tmp_path, monkeypatch):
    """A median by bisection is no drawn number."""
    make_project(tmp_path, monkeypatch, SHOP)

    cost = EarlyStopping(Gaussian(sensitivity=1, sigma=30), stops=(2,))

    @guarded(**KEYED, cost=cost)
    def median() -> float:
        return max(step.release(1.0) for step in iterations())

    median()
    (listed,) = run_json("releases", "list")["releases"]
    assert (listed["known"], listed["facts"]["as_drawn"]) == (None, False)
