"""`dpflow plot` writes pictures, and says in words what is on them."""

from __future__ import annotations

import pytest

from tests.cli.support import Shop, run, run_fine, run_json, without_colour


def test_a_burn_down_is_written_and_told(shop: Shop) -> None:
    """As a PNG or an SVG, by the name; folders are made."""
    shop.charge(key="revenue/W1")
    text = run_fine("plot", "burndown", "cdnow", "--out", "pictures/b.png")
    assert text.startswith("Wrote pictures/b.png.\n")
    assert "Burn-down of cdnow (epsilon 3 at delta 1e-6, gdp filter)" in text
    picture = (shop.root / "pictures" / "b.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    run_fine("plot", "burndown", "cdnow", "--out", "b.svg", "--over", "dates")
    assert "<svg" in (shop.root / "b.svg").read_text("utf-8")


def test_odometers_need_no_ledger(empty: Shop) -> None:
    """The poster's figure is about theorems only."""
    found = run_json("plot", "odometers", "--out", "t.svg", "--steps", "10")
    assert "after 10 steps of (0.1, 0)-DP" in found["alt"]
    assert (empty.root / "t.svg").is_file()


@pytest.mark.parametrize("name", ["x.gif", "x", ".png.jpg"])
def test_what_is_no_picture_is_wrong_usage(empty: Shop, name: str) -> None:
    """Found before anything is read or drawn."""
    result = run("plot", "odometers", "--out", name)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "must end in .png or .svg" in without_colour(result.stderr)
    assert list(empty.root.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("odometers", "--out", "x.png", "--steps", "1"), "from 2 to 10000, got 1"),
        (("odometers", "--out", "x.png", "--epsilon", "nan"), "nan"),
        (("odometers", "--out", "/proc/x/y.png"), "cannot write /proc/x/y.png"),
    ],
)
def test_what_cannot_be_drawn_is_refused(
    empty: Shop, options: tuple[str, ...], problem: str
) -> None:
    """With the value, and nothing is written."""
    result = run("plot", *options)
    assert (result.exit_code, result.stdout) == (1, "")
    assert problem in result.stderr
    assert list(empty.root.iterdir()) == []
