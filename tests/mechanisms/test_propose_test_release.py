"""The interquartile range: its distance to the edge of a bin, its test, its cells."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow import guarded
from dpflow.costs import ProposeTestRelease
from dpflow.mechanisms import interquartile_range
from dpflow.mechanisms.propose_test_release import Bins, distance, passing, spread_of
from tests.accounting.oracle import MP, real
from tests.mechanisms.projects import make_shop
from tests.projects import account
from tests.sizes import scaled

pytestmark = pytest.mark.quick

BINS = Bins(2, 0)


def brute_force(values, bins):
    """Return the distance by trying all replacements by all values that matter."""
    home = bins.bin(spread_of(np.sort(np.array(values, float))))
    # A replacement matters by its order among the others only; ends are far out.
    targets = sorted({*values, -1e90, 1e90})
    for count in range(1, len(values) + 1):
        for places in itertools.combinations(range(len(values)), count):
            for new in itertools.combinations_with_replacement(targets, count):
                changed = list(values)
                for place, value in zip(places, new, strict=True):
                    changed[place] = value
                if bins.bin(spread_of(np.sort(np.array(changed, float)))) != home:
                    return count
    raise AssertionError


@pytest.mark.parametrize("shift", [0.0, 0.5])
@given(st.lists(st.integers(0, 40), min_size=4, max_size=6))
@settings(max_examples=scaled(12))
def test_the_distance_is_exact(shift, values):
    """Against all replacements of up to all people."""
    bins = Bins(2, shift)
    assert distance(np.sort(np.array(values, float)), bins) == brute_force(
        tuple(values), bins
    )


@given(
    st.lists(st.floats(-100, 100), min_size=8, max_size=40),
    st.integers(0, 7),
    st.floats(-1e6, 1e6),
)
@settings(max_examples=scaled(40))
def test_one_person_moves_the_distance_by_at_most_one(values, place, new):
    """Within a bin; a person that moves the range to another bin is at distance one."""
    other = list(values)
    other[place] = new
    one, two = np.sort(np.array(values)), np.sort(np.array(other))
    first, second = distance(one, BINS), distance(two, BINS)
    if BINS.bin(spread_of(one)) == BINS.bin(spread_of(two)):
        assert abs(first - second) <= 1
    else:
        assert first == second == 1


def test_logarithms_of_one_bin_are_at_most_one_apart():
    """Whatever the rounding, and for a range of zero."""
    for spread in (0.0, 5e-324, 1e-100, 1.0, 1.9999999, 8.0, 1e100, 1e300):
        for bins in (BINS, Bins(1.1, 0.5)):
            start = bins.first - 1 + bins.bin(spread)
            assert start <= bins.logarithm(spread) <= start + 1
    assert BINS.logarithm(3.0) == pytest.approx(math.log2(3))


def test_a_wrong_proposal_passes_with_probability_delta_at_most():
    """At distance one, by the law of the noise in 120 digits: next to all of delta."""
    for epsilon, delta in ((1, "1e-6"), ("0.3", "0.01"), (7, "1e-35"), (2, "0.5")):
        cost = ProposeTestRelease(epsilon=epsilon, delta=delta)
        least = passing(cost)

        # A sum that floats round up to more than the threshold is counted, too.
        below, at, low = (
            MP.exp((1 - real(threshold)) * real(cost.epsilon)) / 2
            for threshold in (math.nextafter(least, 0), least, least - 0.01)
        )
        assert below < real(delta) < low
        assert at > real(delta) * (1 - MP.mpf("1e-12"))
    # The noise is below zero as often as above: no threshold is below the distance.
    assert passing(ProposeTestRelease(epsilon=1, delta="0.9")) == pytest.approx(1)


draw = interquartile_range.__wrapped__
RAMP = np.linspace(0, 16, 1001)
EDGE = np.concatenate([np.zeros(500), np.full(500, 8.0), np.linspace(0, 8, 4)])
SINGLE = ProposeTestRelease(epsilon=10, delta="1e-9")
DOUBLE = ProposeTestRelease(epsilon=10, delta="1e-9", tries=2)


def test_at_an_edge_the_second_try_answers():
    """The first says none for sure, the second, half a bin away, an answer."""
    # At an edge one value below it is enough; here five hundred must go.
    assert distance(np.sort(EDGE), BINS) > 100
    assert draw(SINGLE, EDGE, base=2).cell == "answer"
    assert distance(RAMP, BINS) <= 2
    assert draw(SINGLE, RAMP, base=2).output is None
    assert draw(SINGLE, RAMP, base=2, shift=0.5).cell == "answer"
    assert draw(DOUBLE, RAMP, base=2).cell == "answer"
    assert draw(DOUBLE, EDGE, base=2).cell == "first answer"
    # No error tells that a value is not a number.
    odd = np.concatenate([EDGE, [np.nan, np.inf, -np.inf, 1e308]])
    assert draw(DOUBLE, odd, base=2).cell == "first answer"


# ---- in a step


def test_two_steps_and_two_tries_cost_what_the_analyses_say(tmp_path, monkeypatch):
    """None then answer: 3 epsilon; the deltas are 2 delta, or 2 delta - delta^2.

    An answer of the first of two tries: 2 epsilon.
    """

    def ask(cost, values, **options):
        body = lambda: interquartile_range(values, base=2, **options)
        return guarded(dataset="shop", cost=cost, name="spread")(body)()

    make_shop(tmp_path, monkeypatch, "output-dp")
    assert ask(SINGLE, RAMP) is None
    assert account().spent == {"epsilon": "10", "delta": "1e-9"}
    assert ask(SINGLE, RAMP, shift=0.5) > 0
    assert account().spent == {"epsilon": "30", "delta": "2e-9"}
    (tmp_path / "tries").mkdir()
    make_shop(tmp_path / "tries", monkeypatch, "output-dp")
    assert ask(DOUBLE, RAMP) > 0
    assert account().spent == {"epsilon": "30", "delta": "1.999999999e-9"}
    assert ask(DOUBLE, EDGE) > 0
    assert account().spent["epsilon"] == "50"
