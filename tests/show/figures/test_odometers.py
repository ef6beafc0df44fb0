"""The poster's figure: every odometer over 100 steps; the wrong ones as controls."""

from __future__ import annotations

import pytest

from dpflow.accounting import make_odometer
from dpflow.accounting.costs.notions import PureDP
from dpflow.show.figures import compare_odometers
from tests.wrong_odometers import wrong_readings


def test_what_the_poster_says_of_its_figure_holds():
    """Mixture and stitched improve on the original, at different points in time."""
    (axes,) = compare_odometers().axes
    names = [text.get_text().rsplit("  ", 1)[0] for text in axes.get_legend().texts]
    drawn = {n: each.get_ydata() for n, each in zip(names, axes.lines, strict=True)}
    assert drawn["mixture"][99] < drawn["rogers"][99]
    assert drawn["stitched"][99] < drawn["rogers"][99]
    assert drawn["mixture"][0] < drawn["rogers"][0] < drawn["stitched"][0]
    # What this package reads by default is below both.
    assert drawn["rdp"][99] < drawn["mixture"][99]


def test_the_posters_formulas_lack_the_drift_and_nothing_else():
    """The right reading minus V/2 is what the poster shows."""
    wrong = wrong_readings("0.1", "1e-6", 5, 100)
    for theorem, options in (("mixture", {"rho": 1}), ("stitched", {"v0": "0.01"})):
        odometer = make_odometer(theorem, delta="1e-6", form="pure", **options)
        tally = odometer.zero()
        for number, shown in enumerate(wrong[f"poster's {theorem} (no drift)"], 1):
            tally = tally + odometer.price(PureDP(epsilon="0.1"))
            drift = number * 0.1**2 / 2
            assert shown == pytest.approx(odometer.read(tally) - drift, rel=1e-9)
