"""Output perturbation with a test: its law in one dimension, exactly, and its noise.

With one parameter the noise is Laplace noise, so the law of (model, released) is a
density that can be written down from the functions that the mechanism itself uses, and
integrated. Wrong scales go through the same function and are caught.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from unittest import mock

import numpy as np
import pytest
from scipy import special, stats

from dpflow import Laplace, guarded
from dpflow.exceptions import InvalidCost
from dpflow.mechanisms import output_perturbation, recoverable_model
from dpflow.mechanisms import perturbed_models as mechanism
from dpflow.mechanisms.perturbed_models import Recipe, minimum
from tests.mechanisms.projects import make_shop
from tests.projects import account
from tests.sizes import scaled, spread

GRID = np.linspace(-400, 400, 80_001)


def law(recipe, e1, e2, rows, labels, *, noise=1.0, test=1.0):
    """Return the density of released models on a grid, and the mass of none.

    Args:
        recipe: What is fitted and tested.
        e1: Epsilon of the noise.
        e2: Epsilon of the test.
        rows: One feature per person.
        labels: One per person.
        noise: Factor on the noise's scale; 1 is right.
        test: The sensitivity of the test, or a factor of 1 for the right one.
    """
    rows, labels = np.asarray(rows, float)[:, None], np.asarray(labels, float)
    n = recipe.train
    fitted = minimum(rows[:n], labels[:n], recipe)[0]
    scale = noise * float(recipe.sensitivity) / e1
    density = stats.laplace.pdf(GRID, loc=fitted, scale=scale)
    spread = float(recipe.test_sensitivity(len(rows) - n)) if test == 1.0 else test
    errors = np.abs(labels[n:, None] - np.tanh(rows[n:] * GRID / 2)).mean(axis=0)
    passes = stats.laplace.cdf(recipe.threshold - errors, scale=spread / e2)
    width = GRID[1] - GRID[0]
    return density * passes, float(((1 - passes) * density).sum() * width)


def worst(recipe, e1, e2, **wrong):
    """Return the largest losses (none, model) over neighbours."""
    rng, people = np.random.default_rng(7), recipe.train + 4
    none = model = 0.0
    # All agree: then one person's change has the largest pull; or people at random.
    agreed = np.ones((2, people))
    mixed = rng.uniform(-1, 1, people), np.where(rng.random(people) < 0.5, -1.0, 1.0)
    for data in (agreed, np.array(mixed)):
        first = law(recipe, e1, e2, *data, **wrong)
        for person in (0, people - 1):
            other = data.copy()
            other[:, person] = 1.0, -data[1, person]
            second = law(recipe, e1, e2, *other, **wrong)
            none = max(none, abs(math.log(first[1] / second[1])))
            seen = (first[0] > 1e-200) & (second[0] > 1e-200)
            losses = np.log(first[0][seen] / second[0][seen])
            model = max(model, float(np.abs(losses).max()))
    return none, model


RECIPES = [Recipe(3, "0.2", 0.8), Recipe(2, "0.05", 0.5), Recipe(20, 1, 1.0)]
BUDGETS = ((1.0, 0.5), (0.5, 0.5), (2.0, 0.1))


def test_no_cell_loses_more_than_it_costs():
    """None costs the test, a model the larger epsilon."""
    for recipe, (e1, e2) in spread(itertools.product(RECIPES, BUDGETS), 5):
        none, model = worst(recipe, e1, e2)
        assert none <= e2 * (1 + 1e-3)
        assert model <= max(e1, e2) * (1 + 1e-3)


def test_wrong_scales_are_caught():
    """Half the noise; a test scaled for the people tested on alone."""
    assert worst(RECIPES[0], 1.0, 0.5, noise=0.2)[1] > 1.1
    assert worst(RECIPES[1], 50.0, 2.0, test=2 / 40)[0] > 2.1


def test_the_test_scale_is_the_tighter_one():
    """The two documented numbers, at n 700, m 300, Lambda 0.01."""
    recipe = Recipe(700, "0.01", 1.0)
    paper = 2 * (math.exp(2 / (700 * 0.01)) - 1)
    assert paper == pytest.approx(0.6614, abs=1e-4)
    assert float(recipe.test_sensitivity(300)) == pytest.approx(0.1426, abs=2e-4)
    assert float(Recipe(700, 1, 1.0).test_sensitivity(300)) == pytest.approx(
        2 / 300, rel=1e-3
    )


def unit_rows(rng, people, columns):
    """Return rows of at most unit length."""
    rows = rng.normal(size=(people, columns))
    return rows / np.maximum(1, np.linalg.norm(rows, axis=1))[:, None]


def test_one_person_moves_the_minimum_no_farther_than_declared():
    """Real fits of random neighbours; the bound is approached, never passed."""
    rng, recipe, moved = np.random.default_rng(3), Recipe(12, "0.5", 1.0), 0.0
    for _ in range(scaled(60, push=20)):
        rows = unit_rows(rng, 12, 3)
        classes = np.where(rng.random(12) < 0.5, -1.0, 1.0)
        other = rows.copy()
        other[0] = -rows[0] / np.linalg.norm(rows[0])
        step = minimum(rows, classes, recipe) - minimum(other, classes, recipe)
        moved = max(moved, float(np.linalg.norm(step)))
    assert 0.1 * float(recipe.sensitivity) < moved <= float(recipe.sensitivity)


def test_the_solver_reaches_its_tolerance():
    """The gradient, computed apart, is as small as the sensitivity assumes."""
    rng = np.random.default_rng(5)
    for people, strength in [(50, "0.001"), (3000, "0.01"), (5, "1")]:
        rows = unit_rows(rng, people, 8)
        classes = np.where(rows[:, 0] > 0, 1.0, -1.0)
        w = minimum(rows, classes, Recipe(people, strength, 1.0))
        pulls = special.expit(-(rows @ w) * classes) * classes
        slope = float(Fraction(strength)) * w - (rows * pulls[:, None]).mean(axis=0)
        assert np.linalg.norm(slope) <= float(mechanism.INEXACT) / people


def test_the_noise_is_k_norm_noise():
    """Gamma distributed length, and a direction without preference."""
    sample = np.array([mechanism.k_norm_noise(3, Fraction(2)) for _ in range(300)])
    lengths = np.linalg.norm(sample, axis=1)
    limit = math.sqrt(math.log(2e9) / (2 * len(lengths)))
    statistic = stats.kstest(lengths, stats.gamma(3, scale=2).cdf).statistic
    assert statistic < limit
    heights = sample[:, 0] / lengths
    assert stats.kstest(heights, stats.uniform(-1, 2).cdf).statistic < limit
    assert stats.kstest(lengths, stats.gamma(2, scale=2).cdf).statistic > limit


def test_models_lie_on_a_grid():
    """A power of two, at or above the requested step; the sum is not rounded before."""
    model, noise = np.array([0.3, -1.26, 2.0**51 + 1]), np.array([0.0, 0.0, 0.49])
    rounded = mechanism.sum_on_grid(model, noise, 0.2)
    assert rounded.tolist() == [0.25, -1.25, 2.0**51 + 1.5]
    assert mechanism.sum_on_grid(model, noise, 0.7)[2] == 2.0**51 + 1
    # The control: the sum of floats lies half a cell on, and comes out in the next.
    assert np.rint(model + noise)[2] == 2.0**51 + 2


def people(count=400):
    """Return people whose first feature decides their class."""
    rng = np.random.default_rng(11)
    rows = rng.uniform(-1, 1, (count, 3)) / 2
    return rows, rows[:, 0] > 0


draw = output_perturbation.__wrapped__
RECIPE = {"train": 300, "regularisation": "0.1"}
COST = recoverable_model(model=5, test=1)


def test_a_good_model_is_released_and_a_bad_one_is_not():
    """By thresholds that no noise reaches."""
    rows, labels = people()
    drawn = draw(COST, rows, labels, **RECIPE, threshold=50.0)
    assert drawn.cell == "model"
    assert drawn.output.shape == (3,)
    # The noise is 3 * sensitivity / 5 long on average, 0.04: the grid is 2**-14.
    assert (drawn.output * 2**14 == np.rint(drawn.output * 2**14)).all()
    assert draw(COST, rows, labels, **RECIPE, threshold=-50.0) == (
        mechanism.Drawn(None, "none")
    )


def test_the_parts_are_put_together_as_the_law_above_says(monkeypatch):
    """Fitted to the first people; both noises as declared; tested on the others."""
    rows, labels = people()
    recipe, seen = Recipe(300, "0.1", 50.0), {}
    # The noisy error decides, not the true one, which is at most 2.
    for name, result in (
        ("k_norm_noise", lambda size, _: np.ones(size)),
        ("add_noise", lambda *_: 50.5),
        ("minimum", minimum),
    ):
        seen[name] = mock.Mock(side_effect=result)
        monkeypatch.setattr(mechanism, name, seen[name])
    assert draw(COST, rows, labels, **RECIPE, threshold=50.0).cell == "none"
    classes = np.where(labels, 1.0, -1.0)
    assert (seen["minimum"].call_args.args[0] == rows[:300]).all()
    assert (seen["minimum"].call_args.args[1] == classes[:300]).all()
    assert seen["k_norm_noise"].call_args.args == (3, recipe.sensitivity / 5)
    cost, error = seen["add_noise"].call_args.args
    assert cost == Laplace(sensitivity=recipe.test_sensitivity(100), epsilon=1)
    noisy = minimum(rows[:300], classes[:300], recipe) + 1
    assert error == pytest.approx(
        mechanism.mean_error(noisy, rows[300:], classes[300:])
    )


def test_rows_are_scaled_and_bad_numbers_are_zeros():
    """No row is refused: an error would tell that there is such a person."""
    rows, labels = people(20)
    rows[0] = [1e300, np.inf, np.nan]
    rows[1] *= 1e9
    scaled, classes = mechanism._check_rows(rows, labels, Recipe(10, 1, 1.0))
    assert np.isfinite(scaled).all()
    assert np.linalg.norm(scaled, axis=1).max() <= 1
    assert set(classes) == {-1.0, 1.0}


def test_a_step_without_a_model_returns_the_rest(tmp_path, monkeypatch):
    """The test alone is charged; a model costs the larger epsilon."""
    make_shop(tmp_path, monkeypatch, "output-dp", epsilon="10", delta="0")
    rows, labels = people()

    @guarded(dataset="shop", cost=COST)
    def fit(threshold):
        return output_perturbation(rows, labels, **RECIPE, threshold=threshold)

    assert fit(-50.0) is None
    assert account().spent["epsilon"] == "1"
    assert fit(50.0).shape == (3,)
    assert account().spent["epsilon"] == "6"


def test_the_cost_takes_the_larger_epsilon():
    """A test that costs more than the model is what a model costs."""
    cells = dict(recoverable_model(model="0.1", test="0.5").cells)
    assert cells == {"none": Fraction(1, 2), "model": Fraction(1, 2)}
    with pytest.raises(InvalidCost):
        recoverable_model(model=0, test=1)
