"""Epsilon against noise: which budget admits so many runs."""

from __future__ import annotations

import pytest

from dpflow import DiscreteGaussian, Gaussian, Laplace, PoissonSampledGaussian, PureDP
from dpflow.accounting import make_filter
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import ConfigurationError
from dpflow.show.figures import alt_text, epsilon_against_noise
from dpflow.show.figures.noise import least_noise, noise_of, with_noise


def admits(rule, cost, runs):
    """Say whether a filter admits so many runs."""
    price = rule.price(cost)
    return rule.admits(Tally(tuple(runs * amount for amount in price.amounts)))


@pytest.mark.parametrize(
    ("theorem", "cost", "runs"),
    [
        ("gaussian", Gaussian(sensitivity=1, sigma=20), 52),
        ("gaussian", Gaussian(sensitivity=100, sigma=1), 3),
        ("concentrated", DiscreteGaussian(sensitivity=1, sigma=20), 10),
        ("basic", Laplace(sensitivity=1, scale=1000), 7),
    ],
)
def test_the_least_noise_is_enough_and_no_less_is(theorem, cost, runs):
    """To a part in ten thousand, wherever the search begins."""
    rule = make_filter(theorem, epsilon=1, delta="1e-6")
    noise = least_noise(rule, cost, runs)
    assert admits(rule, with_noise(cost, noise), runs)
    assert not admits(rule, with_noise(cost, noise * 0.9999), runs)


def test_basic_needs_runs_over_epsilon():
    """The one that is known by heart: scale = runs * sensitivity / epsilon."""
    rule = make_filter("basic", epsilon=2)
    noise = least_noise(rule, Laplace(sensitivity=3, scale=1), 10)
    assert noise == pytest.approx(15, rel=1e-5)


def test_a_filter_without_a_price_has_no_noise():
    """A Gaussian has none under the sum rule."""
    rule = make_filter("basic", epsilon=1, delta="1e-6")
    assert least_noise(rule, Gaussian(sensitivity=1, sigma=1), 1) is None


def test_every_theorem_has_a_falling_curve():
    """More noise, less epsilon; the best one is furthest to the left."""
    figure = epsilon_against_noise(Gaussian(sensitivity=1, sigma=40), runs=52)
    (axes,) = figure.axes
    names = [text.get_text() for text in axes.get_legend().texts]
    drawn = dict(zip(names, axes.lines, strict=True))
    filters = {"concentrated", "gaussian", "portfolio", "renyi", "residue"}
    assert {*filters, "whitehouse"} == set(names)
    for line in drawn.values():
        noises, epsilons = list(line.get_xdata()), list(line.get_ydata())
        assert sorted(noises, reverse=True) == noises
        assert sorted(epsilons) == epsilons
    # A Gaussian is worth the same to these two.
    for name in set(names) - {"gaussian", "residue"}:
        assert drawn["gaussian"].get_xdata()[5] < drawn[name].get_xdata()[5]
    assert "sigma (95 % of the noise lies within" in axes.get_xlabel()
    assert "gaussian 30.46 at epsilon 1," in alt_text(figure)


def test_the_noise_of_a_sampled_step_is_its_multiplier():
    """In units of the sensitivity, which it does not have."""
    cost = PoissonSampledGaussian(sampling_rate="0.01", noise_multiplier=1)
    figure = epsilon_against_noise(cost, runs=100, theorems=["renyi"])
    assert "in units of the sensitivity" in figure.axes[0].get_xlabel()


def test_costs_without_noise_are_refused():
    """With what to take instead."""
    with pytest.raises(ConfigurationError, match="has no noise to vary"):
        noise_of(PureDP(epsilon=1))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"runs": 0}, "runs must be from 1 to"),
        ({"runs": 1, "theorems": ["gaussain"]}, "no filter is called gaussain"),
        ({"runs": 1, "theorems": ["basic"]}, "none of basic prices Gaussian"),
    ],
)
def test_what_cannot_be_drawn_is_refused(options, problem):
    """With the limit, or the names that there are."""
    with pytest.raises(ConfigurationError, match=problem):
        epsilon_against_noise(Gaussian(sensitivity=1, sigma=1), **options)
