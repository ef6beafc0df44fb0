"""Medians, trimmed means and interquartile ranges: distances, laws and cells."""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpflow import guarded
from dpflow.costs import ProposeTestRelease
from dpflow.mechanisms import interquartile_range
from dpflow.mechanisms import trimming as mechanism
from dpflow.mechanisms.propose_test_release import Bins, passing, spread_of
from dpflow.mechanisms.propose_test_release import distance as bin_distance
from dpflow.mechanisms.trimming import Span, distance
from tests.accounting.oracle import MP, real
from tests.mechanisms.projects import make_shop
from tests.projects import account
from tests.sizes import scaled

WINDOWS = [Span(2, 2), Span(1, 3)]


def ordered(values):
    """Return sorted values."""
    return np.sort(np.array(values, np.int64))


def neighbours(values, targets):
    """Yield what one replacement makes of the values."""
    for place, target in itertools.product(range(len(values)), targets):
        yield tuple(sorted([*values[:place], target, *values[place + 1 :]]))


def least_replacements(values, far, jumps):
    """Return the distance by walking over all replacements by values that matter.

    A replacement matters by its order among the others only; ends are far out.
    """
    targets = sorted({*values, -far, far})
    layer = {tuple(sorted(values))}
    for count in range(1, len(values) + 1):
        pairs = [(one, other) for one in layer for other in neighbours(one, targets)]
        if any(jumps(*pair) for pair in pairs):
            return count
        layer = {other for _, other in pairs}
    raise AssertionError


@pytest.mark.parametrize("window", WINDOWS)
@given(st.lists(st.integers(0, 9), min_size=5, max_size=5), st.integers(0, 12))
@settings(max_examples=scaled(8, push=4), deadline=None)
def test_the_distance_to_a_jump_is_exact(window, values, width):
    """Against all replacements of up to all people."""
    total = cache(lambda people: window.total(ordered(people)))
    jumps = lambda one, other: abs(total(other) - total(one)) > width
    result = distance(ordered(values), window, width)
    assert result == least_replacements(values, 2**45, jumps)


@given(
    st.lists(st.integers(-50, 50), min_size=5, max_size=30),
    st.integers(0, 4),
    st.integers(-(10**6), 10**6),
    st.integers(0, 60),
)
@settings(max_examples=scaled(60))
def test_one_person_moves_a_jump_by_at_most_one(values, place, new, width):
    """And a sum that jumps beyond the width has distance one on both sides."""
    other = list(values)
    other[place] = new
    pair = [ordered(values), ordered(other)]
    for window in (Span.middle(len(values)), Span.without("0.21", len(values))):
        one, two = (distance(each, window, width) for each in pair)
        assert abs(one - two) <= 1
        if abs(window.total(pair[0]) - window.total(pair[1])) > width:
            assert one == two == 1


# ---- the law of the output, exactly


STEPS = np.arange(-400, 401)


def law(cost, values, width, far):
    """Return the probability of "none", and those of the noisy sums of a median."""
    data, window = ordered(values), WINDOWS[0]
    epsilon = float(cost.epsilon)
    above = passing(cost) - far(data, window, width)
    passes = stats.laplace.sf(above, scale=1 / epsilon)
    ratio = math.exp(-epsilon / width)
    noise = (1 - ratio) / (1 + ratio) * ratio ** np.abs(STEPS - window.total(data))
    return 1 - passes, passes * noise


def worst(cost, width, far):
    """Return the largest delta that the cells need, over all small pairs."""
    once, twice = math.exp(cost.epsilon), math.exp(2 * cost.epsilon)
    people = list(itertools.combinations_with_replacement((0, 2, 9), 5))
    laws = {each: law(cost, each, width, far) for each in people}
    needed = []
    for one in people:
        for two in set(neighbours(one, [0, 2, 9])):
            (none, sums), (other, others) = laws[one], laws[two]
            # Sums that are off the grid of the sum are as likely as near ones.
            excess = np.maximum(sums - twice * others, 0).sum()
            needed.append(max(none - once * other, 0) + excess)
    return max(needed)


LOUD = ProposeTestRelease(epsilon="0.7", delta="0.3")


def test_no_pair_loses_more_than_its_cells_and_delta():
    """None costs epsilon, an answer twice that, and delta covers wrong proposals."""
    needed = worst(LOUD, 3, distance)
    assert float(LOUD.delta) / 4 < needed <= float(LOUD.delta)


def test_wrong_distances_and_noise_are_caught():
    """The own jump only; the distance of a bound of 7 with the noise of one of 3."""
    own = lambda *data: 1 if distance(*data) == 1 else 100
    wider = lambda data, window, width: distance(data, window, 3 * width)
    assert worst(LOUD, 3, own) > float(LOUD.delta)
    low = ProposeTestRelease(epsilon="0.7", delta="1e-9")
    mild = ProposeTestRelease(epsilon="0.7", delta="0.1")
    assert worst(low, 3, distance) <= float(low.delta)
    assert worst(low, 3, lambda *_: 100) > 0.01
    assert worst(mild, 3, distance) <= float(mild.delta) < worst(mild, 3, wider)


# ---- the mechanism


def test_the_sum_is_the_one_of_the_window():
    """With next to no noise, and negative values, to the grid."""
    quiet = ProposeTestRelease(epsilon=1000, delta="1e-6")
    values = np.array([-7.0, -5.0, -5.0, -4.0, -3.5, -3.0, 1e9])
    odd = np.concatenate([values, [np.nan, np.inf, -np.inf, 1e308]])
    assert mechanism._middle(quiet, odd, 3, None).output is not None
    for trim, true in ((None, -4.0), ("0.3", -12.5 / 3)):
        drawn = mechanism._middle(quiet, values, 3, trim)
        assert drawn.output == pytest.approx(true, abs=0.1)


BINS = Bins(2, 0)


@pytest.mark.parametrize("shift", [0.0, 0.5])
@given(st.lists(st.integers(0, 40), min_size=4, max_size=6))
@settings(max_examples=scaled(12, push=6))
def test_the_distance_is_exact(shift, values):
    """Against all replacements of up to all people."""
    bins = Bins(2, shift)
    home = lambda people: bins.bin(spread_of(np.sort(np.array(people, float))))
    jumps = lambda _, other: home(other) != home(values)
    result = bin_distance(np.sort(np.array(values, float)), bins)
    assert result == least_replacements(values, 1e90, jumps)


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
    first, second = bin_distance(one, BINS), bin_distance(two, BINS)
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
    assert bin_distance(np.sort(EDGE), BINS) > 100
    assert draw(SINGLE, EDGE, base=2).cell == "answer"
    assert bin_distance(RAMP, BINS) <= 2
    assert draw(SINGLE, RAMP, base=2).output is None
    assert draw(SINGLE, RAMP, base=2, shift=0.5).cell == "answer"
    assert draw(DOUBLE, RAMP, base=2).cell == "answer"
    assert draw(DOUBLE, EDGE, base=2).cell == "first answer"
    # No error shows that a value is not a number.
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
