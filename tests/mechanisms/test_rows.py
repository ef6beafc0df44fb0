"""Products of two factors, clipped and summed without being written down."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dpflow.mechanisms import rows as module
from dpflow.mechanisms.rows import MOST_PEOPLE, Factors, LayerRows, NormClip
from dpflow.people.state import PrivateMask
from tests.sizes import scaled

pytestmark = pytest.mark.quick

wild = st.floats(allow_nan=True, allow_infinity=True)
NORMS = ["1", "0.1", "7.3", "1e-9", "1e9"]


def whole(values):
    """Return rows of floats that are whole numbers as integers."""
    assert (values == np.floor(values)).all()
    return [[int(x) for x in row] for row in values]


def exact_rows(products):
    """Return each person's row as it is summed, exactly."""
    unit = Fraction(module._FACTOR_STEP) * Fraction(products.step)
    pairs = zip(whole(products.left.steps), whole(products.right), strict=True)
    return [[a * b * unit for a in left for b in right] for left, right in pairs]


@given(
    arrays(np.float64, (4, 3), elements=wild),
    arrays(np.float64, (4, 2), elements=wild),
    arrays(np.float64, (4, 2), elements=wild),
    st.sampled_from(NORMS),
)
@settings(max_examples=scaled(30), deadline=None)
def test_no_row_of_layers_is_longer_than_the_clip(inner, errors, last, norm):
    """All layers of a person together, in exact arithmetic; and sums are exact."""
    layers = LayerRows((Factors(inner).outer(errors), Factors(errors).outer(last)))
    assert amiss(NormClip.to(norm).apply(layers), norm) == []


def amiss(clipped, norm):
    """Return what is wrong with clipped layers, in exact arithmetic."""
    pairs = zip(*map(exact_rows, clipped.layers), strict=True)
    rows = [first + second for first, second in pairs]
    squares = [sum(x * x for x in row) for row in rows]
    charged = [Fraction(value) for value in clipped.squares().tolist()]
    total = [Fraction(x) for x in clipped.total().tolist()]
    holds = {
        "longer than the clip": max(squares) <= Fraction(norm) ** 2,
        "charged less": all(a >= b for a, b in zip(charged, squares, strict=True)),
        "rounded": total == [sum(column) for column in zip(*rows, strict=True)],
    }
    return [name for name, held in holds.items() if not held]


def test_layers_that_are_clipped_or_charged_one_by_one_are_caught():
    """By the look that finds nothing in the right ones."""
    rng = np.random.default_rng(4)
    inner, errors, last = (rng.normal(size=(4, n)) for n in (3, 2, 2))
    layers = LayerRows((Factors(inner).outer(errors), Factors(errors).outer(last)))
    clip = NormClip.to("0.1")
    right = clip.apply(layers)
    assert amiss(right, "0.1") == []
    alone = tuple(clip.apply(each).layers[0] for each in layers.layers)
    assert amiss(module.Clipped(alone, (-1,)), "0.1") == ["longer than the clip"]
    # A person who pays for the norm of one layer only.
    last_alone = {"squares": lambda clipped: clipped.layers[-1].squares()}
    charged = type("LastLayerCharged", (module.Clipped,), last_alone)
    assert amiss(charged(right.layers, (-1,)), "0.1") == ["charged less"]


@pytest.mark.parametrize("columns", [(), (3,)])
def test_products_are_the_rows_that_they_stand_for(columns):
    """Up to the grid: of the rows written down, clipped and summed."""
    rng, clip = np.random.default_rng(2), NormClip.to(1)
    left, right = rng.normal(size=(200, 5)), rng.normal(size=(200, *columns))
    written = np.einsum("pi,p...->pi...", left, right)
    products, plain = clip.apply(Factors(left).outer(right)), clip.apply(written)
    assert products.people == plain.people == 200
    mask = PrivateMask(rng.random(200) < 0.5)
    for one, other in (
        (products.total(), plain.total()),
        (products.total(mask), plain.total(mask)),
    ):
        assert np.allclose(one, other, atol=200 * 3e-4)
    assert np.allclose(products.squares(), plain.squares(), rtol=2e-3, atol=1e-3)
    assert not np.allclose(products.total(mask), products.total(), atol=0.5)


def largest_sum(bits, people=MOST_PEOPLE):
    """Return the largest partial sum of so many people's products, in steps."""
    return people * 2**bits * 2 ** (bits + 1)


def test_the_largest_sum_is_a_float_without_rounding():
    """With one more bit of both factors it would not be."""
    assert largest_sum(module._FACTOR_BITS) <= 2**53
    assert largest_sum(module._FACTOR_BITS + 1) > 2**53
    for norm in (*NORMS, "1.9999999999999999", "2"):
        factors = Factors(np.ones((3, 1))).outer(np.full(3, 1e9))
        (layer,) = NormClip.to(norm).apply(factors).layers
        assert largest_sum(module._FACTOR_BITS, 1) >= (
            np.abs(layer.left.steps).max() * np.abs(layer.right).max()
        )


def test_a_person_moves_the_sum_by_their_own_row_alone():
    """Features or errors of other people do not change the cut of a row."""
    rng = np.random.default_rng(3)
    left, right = rng.normal(size=(50, 4)), rng.normal(size=(50, 2))
    clip = NormClip.to(1)
    total = clip.apply(Factors(left).outer(right)).total()
    for person in range(50):
        others = np.arange(50) != person
        rest = clip.apply(Factors(left[others]).outer(right[others])).total()
        assert Fraction(1) >= sum(
            (Fraction(a) - Fraction(b)) ** 2
            for a, b in itertools.zip_longest(total.flat, rest.flat)
        )
