"""Optimal composition of fixed sequences, against formulas and enumeration."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow import ZCDP, ApproxDP, Cost, Gaussian, PureDP
from dpflow.accounting.fixed.optimal import (
    MOST_LOSSES,
    fixed_delta,
    fixed_epsilon,
    shortest_improvable,
)
from dpflow.exceptions import InvalidCost, UnsupportedCost
from tests.accounting.oracle import (
    MP,
    assert_just_above,
    gaussian_delta,
    real,
    response,
)
from tests.sizes import scaled

pytestmark = pytest.mark.quick

TENTH = PureDP(epsilon="0.1")
TWENTY = Gaussian(sensitivity=1, sigma=20)


def decimals(low: float, high: float) -> st.SearchStrategy[Fraction]:
    """Draw numbers of few digits, evenly on a log scale."""
    exponents = st.floats(float(MP.log10(low)), float(MP.log10(high)))
    return exponents.map(lambda x: Fraction(f"{10**x:.6g}"))


@settings(max_examples=scaled(12), deadline=None)
@given(
    decimals(1e-9, 20),
    st.integers(1, 60),
    st.data(),
    st.one_of(st.just(Fraction(0)), decimals(1e-30, 0.01)),
)
def test_kov_theorem(epsilon, count, data, own):
    """On the lattice, delta is KOV's sum, for steps with and without a delta."""
    i = data.draw(st.integers(1, count // 2)) if count > 1 else 0
    eps = real(epsilon)
    terms = (
        MP.binomial(count, low)
        * (MP.exp((count - low) * eps) - MP.exp((count - 2 * i + low) * eps))
        for low in range(i)
    )
    with MP.workdps(400):
        lattice = MP.fsum(terms) / (1 + MP.exp(eps)) ** count
        true = 1 - (1 - real(own)) ** count * (1 - lattice)
    parts = ((ApproxDP(epsilon=epsilon, delta=own), count),)
    found = fixed_delta(parts, (count - 2 * i) * epsilon)
    if true > MP.mpf(10) ** -300:
        assert_just_above(found, true)


@settings(max_examples=scaled(8), deadline=None)
@given(
    st.lists(
        st.tuples(decimals(0.001, 5), st.sampled_from(["0", "1e-9", "0.01", "0.2"])),
        min_size=1,
        max_size=5,
    ),
    decimals(0.0001, 6),
)
def test_unequal_steps_by_enumeration(steps, epsilon):
    """Delta equals the sum over all outcomes of four-valued randomized responses."""
    pairs = []
    for size, lost in steps:
        share = MP.mpf(lost)
        shown = [((1 - share) * p, (1 - share) * q) for p, q in response(real(size))]
        pairs.append([(share, MP.mpf(0)), *shown, (MP.mpf(0), share)])
    true = MP.mpf(0)
    for outcome in itertools.product(*pairs):
        one = MP.fprod(pair[0] for pair in outcome)
        other = MP.fprod(pair[1] for pair in outcome)
        true += max(one - MP.exp(real(epsilon)) * other, MP.mpf(0))
    parts = tuple((ApproxDP(epsilon=e, delta=d), 1) for e, d in steps)
    found = fixed_delta(parts, epsilon)
    if true > MP.mpf(10) ** -40:
        assert_just_above(found, true)


@settings(max_examples=scaled(12), deadline=None)
@given(decimals(1e-3, 1e6), st.integers(1, 1000), decimals(1e-30, 0.5))
def test_gaussians_are_inverted_exactly(sigma, count, delta):
    """The epsilon of Gaussians is the root of their delta, from above."""
    found = fixed_epsilon(((Gaussian(sensitivity=1, sigma=sigma), count),), delta)
    mu_squared = count / real(sigma) ** 2
    assert gaussian_delta(real(found), mu_squared) <= real(delta)
    if found:
        less = real(found) * (1 - MP.mpf("1e-11"))
        assert gaussian_delta(less, mu_squared) > real(delta)


def test_gaussian_and_responses_by_mixture() -> None:
    """A Gaussian among responses: over their outputs, its delta at what remains."""
    laws, epsilon = [response(real(e)) for e in ("0.3", "0.7", "0.7")], MP.mpf("0.9")
    true = MP.mpf(0)
    for outcome in itertools.product(*laws):
        p, q = (MP.fprod(pair[side] for pair in outcome) for side in (0, 1))
        true += p * gaussian_delta(epsilon - MP.log(p / q), MP.mpf("0.16"))
    parts = (Gaussian(sensitivity=2, sigma=5), 1), (PureDP(epsilon="0.3"), 1)
    found = fixed_delta((*parts, (PureDP(epsilon="0.7"), 2)), Fraction("0.9"))
    assert_just_above(found, true)


@settings(max_examples=scaled(8), deadline=None)
@given(
    decimals(1e-6, 2),
    st.integers(1, 30),
    st.one_of(st.none(), decimals(0.5, 1e3)),
    decimals(1e-25, 0.4),
)
def test_epsilon_inverts_delta(epsilon, count, sigma, delta):
    """The epsilon at delta is sound, and nothing smaller is."""
    parts: tuple[tuple[Cost, int], ...] = ((PureDP(epsilon=epsilon), count),)
    if sigma is not None:
        parts = (*parts, (Gaussian(sensitivity=1, sigma=sigma), 1))
    found = fixed_epsilon(parts, delta)
    assert fixed_delta(parts, found) <= delta * (1 + Fraction(1, 10**25))
    if found:
        smaller = found * (1 - Fraction(1, 10**9))
        assert fixed_delta(parts, smaller) > delta


def test_minimal_lengths_of_hartmann_table_1() -> None:
    """The shortest sequences that optimal composition improves are Table 1's."""
    table = {
        "0.01": [5, 8, 12, 15, 18, 22, 25, 28],
        "0.1": [9, 12, 16, 19, 23, 26, 30, 34],
        "0.2": [10, 14, 18, 22, 26, 29, 33, 37],
        "0.5": [14, 19, 24, 29, 34, 38, 43, 48],
        "1": [22, 29, 37, 44, 51, 59, 66, 74],
        "2": [55, 73, 91, 109, 127, 145, 164, 182],
        "3": [143, 190, 237, 285, 332, 380, 427, 474],
        "5": [1029, 1372, 1715, 2058, 2401, 2744, 3086, 3429],
    }
    for epsilon, row in table.items():
        for places, length in enumerate(row, start=3):
            delta = Fraction(1, 10**places)
            assert length == shortest_improvable(Fraction(epsilon), delta)


def test_what_cannot_be_composed_is_refused() -> None:
    """Too small a delta, too many epsilons and unknown notions raise."""
    with pytest.raises(InvalidCost, match="deltas come to"):
        fixed_epsilon(((ApproxDP(epsilon=1, delta="0.01"), 2),), Fraction(1, 100))
    many = tuple((PureDP(epsilon=i + 1), 1) for i in range(15))
    assert MOST_LOSSES < 2**15
    with pytest.raises(InvalidCost, match="combinations"):
        fixed_delta(many, Fraction(1))
    with pytest.raises(UnsupportedCost):
        fixed_delta(((ZCDP(rho=1), 1),), Fraction(1))
