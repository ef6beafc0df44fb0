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
from tests.cli.support import POLICIES, run_fine, run_json
from tests.projects import TENTH, make_project

pytestmark = pytest.mark.quick

SHOP = POLICIES["shop"]


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


COST = Gaussian(sensitivity=1, sigma=30)
#: Bodies with their costs; the output of some is the draw. A median by bisection is no
#: drawn number.
BODIES = {
    "drawn": (COST, lambda: release(100.0), True),
    "float": (COST, lambda: float(release(100.0)), True),
    "field": (COST, lambda: {"n": release(100.0)}, True),
    "cents": (COST, lambda: release(10_000) / 100, False),
    "twice": (COST, lambda: 2 * release(100.0), False),
    "more": (COST, lambda: [release(100.0), 1.0], False),
    "text": (COST, lambda: f"{release(100.0):.2f}", False),
    "median": (
        EarlyStopping(COST, stops=(2,)),
        lambda: max(step.release(1.0) for step in iterations()),
        False,
    ),
}


def test_only_a_drawn_number_has_the_interval_of_the_draw(tmp_path, monkeypatch):
    """List, page, `show` and JSON say an interval, or none of them does."""
    make_project(tmp_path, monkeypatch, SHOP)
    for name, (cost, body, _) in BODIES.items():
        keyed = {"flow": "weekly-report", "name": name, "release_key": name}
        guarded(dataset="shop", cost=cost, **keyed)(body)()
    lines = run_fine("releases", "list").splitlines()
    run_fine("report", "--out", "report.html")
    page = Path("report.html").read_text("utf-8").partition('<h2 id="releases">')[2]
    rows = page.partition("<h3>")[0].split("<tr")
    releases = run_json("releases", "list")["releases"]
    assert {listed["key"] for listed in releases} == BODIES.keys()
    for listed in releases:
        key = listed["key"]
        is_drawn = BODIES[key][2]
        (line,) = (text for text in lines if f" {key} " in text)
        (row,) = (text for text in rows if f">{key}<" in text)
        assert listed["facts"]["as_drawn"] is is_drawn
        assert (listed["known"] is not None) is is_drawn
        assert (" 58.8" in line) is is_drawn
        assert ("58.8" in row) is is_drawn
        shown = run_fine("releases", "show", key).splitlines()
        assert (len(shown) == 2) is is_drawn
