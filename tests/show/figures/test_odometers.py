"""The poster's figure: every odometer over 100 steps; the wrong ones as controls."""

from __future__ import annotations

import pytest

from dpflow.accounting import make_odometer
from dpflow.accounting.costs.notions import PureDP
from dpflow.show.figures import compare_odometers
from tests.wrong_odometers import wrong_readings


@pytest.fixture(scope="module")
def figure():
    """Return the figure of the poster."""
    return compare_odometers()


def lines(figure):
    """Return the figure's lines by the names in its legend."""
    (axes,) = figure.axes
    names = [text.get_text().rsplit("  ", 1)[0] for text in axes.get_legend().texts]
    return dict(zip(names, axes.lines, strict=True))


def test_what_the_poster_says_of_its_figure_holds(figure):
    """Mixture and stitched improve on the original, at different points in time."""
    drawn = {name: line.get_ydata() for name, line in lines(figure).items()}
    assert drawn["mixture"][99] < drawn["rogers"][99]
    assert drawn["stitched"][99] < drawn["rogers"][99]
    assert drawn["mixture"][0] < drawn["rogers"][0] < drawn["stitched"][0]
    # What this package reads by default is below both.
    assert drawn["rdp"][99] < drawn["mixture"][99]


@pytest.mark.parametrize(
    ("theorem", "options", "wrong"),
    [
        ("mixture", {"rho": 1}, "poster's mixture (no drift)"),
        ("stitched", {"v0": "0.01"}, "poster's stitched (no drift)"),
    ],
)
def test_the_posters_formulas_lack_the_drift_and_nothing_else(theorem, options, wrong):
    """The right reading minus V/2 is what the poster shows."""
    found = wrong_readings("0.1", "1e-6", 5, 100)[wrong]
    odometer = make_odometer(theorem, delta="1e-6", form="pure", **options)
    tally = odometer.zero()
    for number in range(1, 101):
        tally = tally + odometer.price(PureDP(epsilon="0.1"))
        drift = number * 0.1**2 / 2
        assert found[number - 1] == pytest.approx(
            odometer.read(tally) - drift, rel=1e-9
        )
