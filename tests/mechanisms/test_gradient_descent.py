"""Noisy sums of clipped rows: exact sensitivity, sampling, who pays, early stops."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow import (
    Composed,
    EarlyStopping,
    Gaussian,
    Laplace,
    PoissonSampledGaussian,
    guarded,
)
from dpflow.accounting import make_filter
from dpflow.accounting.rules.individual import IndividualBound
from dpflow.mechanisms import gradient_descent
from dpflow.mechanisms import gradients as mechanism
from dpflow.mechanisms.gradients import (
    individual_descent,
    individual_sum,
    noisy_gradient,
    poisson_sample,
)
from dpflow.mechanisms.rows import NormClip
from dpflow.people import PrivateTally, sampled_gaussian_costs
from tests.mechanisms.projects import make_shop
from tests.projects import account
from tests.sizes import scaled

wild = st.floats(allow_nan=True, allow_infinity=True)


@given(
    st.lists(st.tuples(wild, wild, wild), min_size=1, max_size=5),
    st.sampled_from(["1", "0.1", "7.3", "1e-9", "1e9"]),
)
@settings(max_examples=scaled(30))
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
    sample = noisy_gradient(cost, np.zeros((1, 4000)), clip=NormClip.to(1))
    assert abs(sample.std() - 3) < 6 * 3 / math.sqrt(2 * 4000)
    sampled = PoissonSampledGaussian(sampling_rate="0.5", noise_multiplier=4)
    sample = noisy_gradient(sampled, np.zeros((1, 4000)), clip=NormClip.to("0.5"))
    assert abs(sample.std() - 2) < 6 * 2 / math.sqrt(2 * 4000)


def test_people_are_sampled_independently_at_the_rate():
    """Within Hoeffding's bound at 1e-9, and neighbours are not drawn together."""
    people = 200_000
    first, second = (poisson_sample(Fraction(1, 5), people) for _ in range(2))
    limit = math.sqrt(math.log(2e9) / (2 * people))
    assert abs(first.mean() - 0.2) < limit
    assert abs((first & second).mean() - 0.04) < limit
    assert abs((first[1:] & first[:-1]).mean() - 0.04) < limit
    assert poisson_sample(Fraction(1), 5).all()


def test_only_the_sampled_are_summed(monkeypatch):
    """The system's randomness has a word for each person; low words are drawn."""
    words = np.array([0, 2**63, 2**64 - 1, 2**62], "<u8").tobytes()
    monkeypatch.setattr(mechanism, "random_bytes", lambda count: words[:count])
    cost = PoissonSampledGaussian(sampling_rate="0.5", noise_multiplier="0.001")
    rows = np.diag([1.0, 1.0, 1.0, 1.0])
    noisy = noisy_gradient(cost, rows, clip=NormClip.to(1))
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
    final = individual_descent(bound, np.zeros(2), lambda _: rows, **words)
    assert [number for number, _ in calls] == [1, 2, 3]
    assert (calls[0][1] == 0).all()
    assert (calls[1][1] != 0).all()
    assert not (final == 99).any()


# ---- in a step

CHECK = Laplace(sensitivity=1, scale="0.002")
STOPS = (2, 4, 8)
TARGET = np.array([0.3, -0.2])


def pull(model):
    """Return gradients of ten people who all want the model at the target."""
    return np.tile(model - TARGET, (10, 1))


def descend(cost, **options):
    """Run a guarded descent."""

    @guarded(dataset="shop", cost=cost)
    def fit():
        return gradient_descent(np.zeros(2), pull, norm=1, rate=0.05, **options)

    return fit()


def test_it_descends_and_stops_where_a_paid_test_says(tmp_path, monkeypatch):
    """The test runs at stops only; the steps that ran are charged."""
    words = {"epsilon": "10000", "relation": "add-or-remove"}
    make_shop(tmp_path, monkeypatch, "zcdp", **words)
    tested = []

    def good(step, model):
        tested.append(step.number)
        return step.test(-np.abs(model - TARGET).max(), at_least=-0.05, cost=CHECK)

    loud = Gaussian(sensitivity=1, sigma="0.05")
    cost = EarlyStopping(Composed(loud, CHECK), stops=STOPS)
    model = descend(cost, good_enough=good)
    assert np.allclose(model, TARGET, atol=0.06)
    assert tested == [2, 4]
    rule = make_filter("zcdp", epsilon=1, delta="1e-6")
    once = rule.price(cost.step)
    assert account().spent == rule.named(once + once + once + once)


def test_each_person_may_have_a_budget_of_their_own(tmp_path, monkeypatch):
    """The bound is reserved and charged once, in full, however many steps there are."""
    words = {"epsilon": "5", "relation": "add-or-remove"}
    make_shop(tmp_path, monkeypatch, "{theorem: individual, measure: gdp}", **words)
    rule = make_filter("individual", epsilon=5, delta="1e-6", measure="gdp")
    model = descend(rule.opening(), sigma=20, steps=30)
    assert model.shape == (2,)
    assert account().spent == rule.named(rule.price(rule.opening()))


# ---- budgets of people, with a sample


def test_a_sampled_step_charges_all_people_and_sums_the_drawn(monkeypatch):
    """People that are never drawn run out of budget like the others."""
    one = IndividualBound(measure="rdp", order=8, bound=1)
    (cost,) = sampled_gaussian_costs(one, np.ones(1), sigma=2, rate=0.5)
    bound = IndividualBound(measure="rdp", order=8, bound=2.5 * float(cost))
    tally, seen = PrivateTally(bound, people=3), []
    low, high = 0, 2**64 - 1
    drawings = [(low, high, low), (low, high, high), (low, low, low)]
    for drawing in drawings:
        words = np.array(drawing, "<u8").tobytes()
        monkeypatch.setattr(mechanism, "random_bytes", lambda _, words=words: words)
        rows = np.diag([1.0, 1.0, 0.1])
        options = {"clip": NormClip.to(1), "sigma": 2, "sampling_rate": 0.5}
        seen.append(individual_sum(tally, rows, **options))
    assert np.allclose(seen, [[1, 0, 0.1], [1, 0, 0], [0, 0, 0.1]], atol=1e-6)
