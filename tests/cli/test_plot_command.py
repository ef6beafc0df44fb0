"""`dpflow plot` writes pictures, and says in words what is on them."""

from __future__ import annotations

import pytest

from tests.cli.support import STEP, Shop, run, run_fine, run_json, without_colour


def test_a_burn_down_is_written_and_told(shop: Shop) -> None:
    """As a PNG or an SVG, by the name; folders are made."""
    shop.charge(key="revenue/W1")
    text = run_fine("plot", "burndown", "cdnow", "--out", "pictures/b.png")
    assert text.startswith("Wrote pictures/b.png.\n")
    assert "Burn-down of cdnow (epsilon 3 at delta 1e-6, gaussian filter)" in text
    picture = (shop.root / "pictures" / "b.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    run_fine("plot", "burndown", "cdnow", "--out", "b.svg", "--over", "dates")
    assert "<svg" in (shop.root / "b.svg").read_text("utf-8")


def test_odometers_need_no_ledger(empty: Shop) -> None:
    """The poster's figure is about theorems only."""
    found = run_json("plot", "odometers", "--out", "t.svg", "--steps", "10")
    assert "after 10 steps of (0.1, 0)-DP" in found["alt"]
    assert (empty.root / "t.svg").is_file()


@pytest.mark.parametrize("kind", ["burndown"])
def test_nothing_charged_and_no_such_dataset_are_told_apart(
    shop: Shop, kind: str
) -> None:
    """An empty ledger says what comes next; a misspelt name what it may mean."""
    result = run("plot", kind, "cdnow", "--out", "x.png")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "nothing was charged to dataset 'cdnow' yet" in result.stderr
    assert "@dp_task" in result.stderr
    result = run("plot", kind, "cdnwo", "--out", "x.png")
    assert result.exit_code == 1
    assert "did you mean 'cdnow'" in result.stderr.lower()
    assert not (shop.root / "x.png").exists()


def test_without_a_ledger_it_fails_and_says_how_to_make_one(empty: Shop) -> None:
    """A missing ledger is never made by itself."""
    result = run("plot", "burndown", "cdnow", "--out", "x.png")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "dpflow ledger init" in result.stderr


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


def test_wrong_usage_is_told_apart(shop: Shop) -> None:
    """By the exit code 2, as everywhere."""
    assert run("plot", "burndown", "cdnow").exit_code == 2
    assert run("plot", "pie", "--out", "x.png").exit_code == 2
    over = ("--over", "moons", "--out", "x.png")
    assert run("plot", "burndown", "cdnow", *over).exit_code == 2


def test_a_broken_policy_file_hides_no_burn_down(shop: Shop) -> None:
    """The ledger's copy governs; only the alerts are missing."""
    shop.charge(STEP)
    shop.write("dataset: [")
    found = run_json("plot", "burndown", "cdnow", "--out", "b.png")
    assert "alerts" not in found["alt"]
