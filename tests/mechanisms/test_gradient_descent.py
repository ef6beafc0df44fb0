"""Noisy sums of clipped rows and products: exact sensitivity, sampling, early stops."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dpflow import Composed, EarlyStopping, Gaussian, Laplace, guarded
from dpflow.accounting import make_filter
from dpflow.accounting.costs.noise import PoissonSampledGaussian
from dpflow.accounting.rules.individual import IndividualBound
from dpflow.mechanisms import gradient_descent
from dpflow.mechanisms import gradients as mechanism
from dpflow.mechanisms import rows as module
from dpflow.mechanisms.rows import MOST_PEOPLE, Factors, LayerRows, NormClip
from dpflow.people import PrivateTally, sampled_gaussian_costs
from dpflow.people.state import PrivateMask
from tests.mechanisms.projects import make_shop
from tests.projects import account
from tests.sizes import scaled, spread

wild = st.floats(allow_nan=True, allow_infinity=True)
NORMS = ["1", "0.1", "7.3", "1e-9", "1e9"]


def exact_rows(products):
    """Return each person's row as it is summed, exactly: factors are whole numbers."""
    unit = Fraction(module._FACTOR_STEP) * Fraction(products.step)
    steps, right = products.left.steps, products.right
    assert (steps == np.floor(steps)).all()
    assert (right == np.floor(right)).all()
    pairs = zip(steps.tolist(), right.tolist(), strict=True)
    return [
        [int(a) * int(b) * unit for a in one for b in other] for one, other in pairs
    ]


@given(
    arrays(np.float64, (4, 3), elements=wild),
    arrays(np.float64, (4, 2), elements=wild),
    arrays(np.float64, (4, 2), elements=wild),
    st.sampled_from(NORMS),
)
@settings(max_examples=scaled(30, push=15), deadline=None)
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
    for some in ((), (mask,)):
        assert np.allclose(products.total(*some), plain.total(*some), atol=200 * 3e-4)
    assert np.allclose(products.squares(), plain.squares(), rtol=2e-3, atol=1e-3)
    assert not np.allclose(products.total(mask), products.total(), atol=0.5)


def test_the_largest_sum_is_a_float_without_rounding():
    """With one more bit of both factors it would not be."""
    # Products of one factor of so many bits, and one of a bit more.
    largest, more = (2 ** (2 * module._FACTOR_BITS + bits) for bits in (1, 3))
    assert MOST_PEOPLE * largest <= 2**53 < MOST_PEOPLE * more
    for norm in (*NORMS, "1.9999999999999999", "2"):
        factors = Factors(np.ones((3, 1))).outer(np.full(3, 1e9))
        (layer,) = NormClip.to(norm).apply(factors).layers
        assert np.abs(layer.left.steps).max() * np.abs(layer.right).max() <= largest


def test_a_person_moves_the_sum_by_their_own_row_alone():
    """Features or errors of other people do not change the cut of a row."""
    rng = np.random.default_rng(3)
    left, right = rng.normal(size=(50, 4)), rng.normal(size=(50, 2))
    clip = NormClip.to(1)
    total = clip.apply(Factors(left).outer(right)).total()
    for person in spread(range(50), 10):
        others = np.arange(50) != person
        rest = clip.apply(Factors(left[others]).outer(right[others])).total()
        assert Fraction(1) >= sum(
            (Fraction(a) - Fraction(b)) ** 2
            for a, b in itertools.zip_longest(total.flat, rest.flat)
        )


@given(
    st.lists(st.tuples(wild, wild, wild), min_size=1, max_size=5),
    st.sampled_from(NORMS),
)
@settings(max_examples=scaled(30, push=15))
def test_no_row_is_longer_than_the_clip(rows, norm):
    """In exact arithmetic, whatever the row holds; the sum adds such rows exactly."""
    clip = NormClip.to(norm)
    steps, step = clip.rows(np.array(rows)), Fraction(clip.step)
    for row in steps:
        assert sum((int(k) * step) ** 2 for k in row) <= Fraction(norm) ** 2
    total = clip.apply(np.array(rows)).total()
    exact = [sum(int(k) for k in column) * step for column in steps.T]
    assert [Fraction(value) for value in total.tolist()] == exact


def test_the_noise_is_the_declared_one():
    """Its spread, within six standard errors."""
    cost = Gaussian(sensitivity=2, sigma=3)
    sample = mechanism.noisy_gradient(cost, np.zeros((1, 4000)), clip=NormClip.to(1))
    assert abs(sample.std() - 3) < 6 * 3 / math.sqrt(2 * 4000)
    sampled = PoissonSampledGaussian(sampling_rate="0.5", noise_multiplier=4)
    sample = mechanism.noisy_gradient(
        sampled, np.zeros((1, 4000)), clip=NormClip.to("0.5")
    )
    assert abs(sample.std() - 2) < 6 * 2 / math.sqrt(2 * 4000)


def test_people_are_sampled_independently_at_the_rate():
    """Within Hoeffding's bound at 1e-9, and neighbours are not drawn together."""
    people = 200_000
    first, second = (mechanism.poisson_sample(Fraction(1, 5), people) for _ in range(2))
    limit = math.sqrt(math.log(2e9) / (2 * people))
    assert abs(first.mean() - 0.2) < limit
    assert abs((first & second).mean() - 0.04) < limit
    assert abs((first[1:] & first[:-1]).mean() - 0.04) < limit


def test_only_the_sampled_are_summed(monkeypatch):
    """The system's randomness has a word for each person; low words are drawn."""
    fifth = 2**64 // 5
    words = np.array([fifth - 1, fifth, 2**64 - 1, 0], "<u8").tobytes()
    monkeypatch.setattr(mechanism, "random_bytes", lambda count: words[:count])
    drawn = mechanism.poisson_sample(Fraction(1, 5), 4)
    assert drawn.tolist() == [True, False, False, True]
    assert mechanism.poisson_sample(Fraction(1), 5).all()
    words = np.array([0, 2**63, 2**64 - 1, 2**62], "<u8").tobytes()
    cost = PoissonSampledGaussian(sampling_rate="0.5", noise_multiplier="0.001")
    rows = np.diag([1.0, 1.0, 1.0, 1.0])
    noisy = mechanism.noisy_gradient(cost, rows, clip=NormClip.to(1))
    assert np.allclose(noisy, [1, 0, 0, 1], atol=0.02)


def test_the_schedule_sees_released_models_only():
    """Its arguments are the step's number and a copy of the model."""
    bound = make_filter("individual", epsilon=5, delta="1e-6", measure="gdp").opening()
    calls = []

    def sigma(number, model):
        calls.append((number, model.copy()))
        model[:] = 99
        return 10 * number

    rows = np.ones((3, 2))
    words = {"clip": NormClip.to(1), "rate": 1.0, "sigma": sigma, "steps": 3}
    final = mechanism.individual_descent(bound, np.zeros(2), lambda _: rows, **words)
    assert [number for number, _ in calls] == [1, 2, 3]
    assert (calls[0][1] == 0).all()
    assert (calls[1][1] != 0).all()
    assert not (final == 99).any()


def test_it_descends_and_stops_where_a_paid_test_says(tmp_path, monkeypatch):
    """The test runs at stops only; the steps that ran are charged.

    All ten people want the model at the target.
    """
    words = {"epsilon": "10000", "relation": "add-or-remove"}
    make_shop(tmp_path, monkeypatch, "zcdp", **words)
    check = Laplace(sensitivity=1, scale="0.002")
    target, tested = np.array([0.3, -0.2]), []

    def good(step, model):
        tested.append(step.number)
        return step.test(-np.abs(model - target).max(), at_least=-0.05, cost=check)

    loud = Gaussian(sensitivity=1, sigma="0.05")
    cost = EarlyStopping(Composed(loud, check), stops=(2, 4, 8))

    @guarded(dataset="shop", cost=cost)
    def fit():
        pull = lambda model: np.tile(model - target, (10, 1))
        words = {"norm": 1, "rate": 0.05, "good_enough": good}
        return gradient_descent(np.zeros(2), pull, **words)

    assert np.allclose(fit(), target, atol=0.06)
    assert tested == [2, 4]
    rule = make_filter("zcdp", epsilon=1, delta="1e-6")
    once = rule.price(cost.step)
    assert account().spent == rule.label(once + once + once + once)


# ---- budgets of people, with a sample


def test_a_sampled_step_charges_all_people_and_sums_the_drawn(monkeypatch):
    """People that are never drawn run out of budget like the others."""
    one = IndividualBound(measure="rdp", order=8, bound=1)
    (cost,) = sampled_gaussian_costs(one, np.ones(1), sigma=2, rate=0.5)
    bound = IndividualBound(measure="rdp", order=8, bound=2.5 * float(cost))
    tally, seen = PrivateTally(bound, people=3), []
    low, high = 0, 2**64 - 1
    for drawing in ((low, high, low), (low, high, high), (low, low, low)):
        words = np.array(drawing, "<u8").tobytes()
        monkeypatch.setattr(mechanism, "random_bytes", lambda _, words=words: words)
        rows = np.diag([1.0, 1.0, 0.1])
        options = {"clip": NormClip.to(1), "sigma": 2, "sampling_rate": 0.5}
        seen.append(mechanism.individual_sum(tally, rows, **options))
    assert np.allclose(seen, [[1, 0, 0.1], [1, 0, 0], [0, 0, 0.1]], atol=1e-6)
