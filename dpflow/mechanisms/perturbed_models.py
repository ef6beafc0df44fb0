"""A model with noise on its parameters, released only if it is of use.

Logistic regression is fitted, noise is added to the fitted parameters, and the noisy
model is tested on people it was not fitted to. If it fails the test, it is discarded:
the output is that there is no model, which costs only the test.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.accounting.costs.noise import Gaussian, Laplace
from dpflow.accounting.costs.outcomes import OutputDP
from dpflow.exceptions import PublicError, ReleaseError
from dpflow.mechanisms.drawn import Drawn, draws_for
from dpflow.mechanisms.rows import Floats
from dpflow.noise.draws import add_noise
from dpflow.people.costs import clip_rows
from dpflow.rounding import Number, exact, exact_epsilon

#: Cells of the cost.
NONE, MODEL = "none", "model"

#: What roundings and the solver may add to the sensitivity, as a part of it. The solver
#: ends at a gradient of half of it, and a mean of n terms errs by less than n 2**-53.
INEXACT = Fraction(1, 2**11)
MOST_PEOPLE = 2**19

#: Steps of the released grid in the expected length of the noise.
_GRID = 2**10
_NEWTON_STEPS, _MOST_HALVINGS = 100, 40
_UNIT = Gaussian(sensitivity=1, sigma=1)


class Recipe:
    """Public numbers of the fit and of its test.

    Args:
        train: How many people it is fitted to; the others test it.
        regularisation: The Lambda of Chaudhuri et al., positive.
        threshold: Largest mean absolute error, in [0, 2], of a model that is released.

    Raises:
        ReleaseError: If a number is out of range.
    """

    def __init__(self, train: int, regularisation: Number, threshold: float) -> None:
        low, high = Fraction(1, 10**6), Fraction(10**6)
        self.train, self.threshold = train, float(threshold)
        self.regularisation = exact(
            regularisation, name="regularisation", low=low, high=high
        )
        if type(train) is not int or not 1 <= train <= MOST_PEOPLE:
            msg = f"train must be 1 to {MOST_PEOPLE} people"
            raise PublicError(msg)
        if not math.isfinite(threshold):
            msg = "the threshold must be a finite number"
            raise PublicError(msg)

    @property
    def sensitivity(self) -> Fraction:
        """How far one person can move what the solver returns, in L2 norm."""
        return 2 * (1 + INEXACT) / (self.train * self.regularisation)

    def test_sensitivity(self, tests: int) -> Fraction:
        """Return how far one person can move the error of a model of given noise.

        Either one of the people it is tested on, or one it is fitted to, for the same
        noise. With h = tanh(score / 2) and a score that moves by s, h moves by at most
        2 tanh(s / 4).
        """
        moved = 2 * math.tanh(float(self.sensitivity) / 4)
        return Fraction(max(2 / tests, moved)) * (1 + INEXACT)


def recoverable_model(*, model: Number, test: Number) -> OutputDP:
    """Return the cost of a noisy model that comes out only if it passes a test.

    Without a model it costs the test alone, with one the larger of both epsilons; the
    model's noise makes use of the larger one.

    Source: Hartmann et al. 2022, Thm 17; docs/derivations/output-dp.md#released-or-not.

    Args:
        model: Epsilon of the model's noise.
        test: Epsilon of the test.

    Raises:
        InvalidCost: If a number is out of range.
    """
    tested = exact_epsilon(test, name="test")
    return OutputDP(
        {NONE: tested, MODEL: max(exact_epsilon(model, name="model"), tested)}
    )


@draws_for(OutputDP, relation="replace-one")
def output_perturbation(
    cost: OutputDP,
    features: NDArray[Any],
    labels: NDArray[Any],
    *,
    train: int,
    regularisation: Number,
    threshold: float,
) -> Drawn[Floats | None]:
    """Fit a logistic regression, add noise, and return it if it passes a noisy test.

    The running step must have declared `recoverable_model`, under a policy whose
    relation is replace-one. On None the noisy model is discarded, and only the test is
    charged; do not try to keep it.

    Source: noise: Chaudhuri, Monteleoni, Sarwate 2011, Alg. 1 (their sensitivity 2 / (n
    Lambda)); test: Hartmann et al. 2022, Alg. 5 and Thm 17, with the smaller scale of
    docs/derivations/output-dp.md#released-or-not.

    Assumes: neighbours differ in one person's row and label (replace-one; how many
    people there are is public); who comes first is independent of the data. Rows are
    scaled down to norm 1 here. Labels above 0 are one class, all others the other.

    The noise is exact up to floats: its direction comes from OpenDP's Gaussians and its
    length from OpenDP's Laplace draws, but their product rounds like every float. So
    the exact sum with the model is rounded to a grid of 2**-10 of the noise's expected
    length. The result is the ideal mechanism's output, rounded, unless that lies within
    the noise's rounding errors of the edge of a grid cell. The probability of that,
    about 2**-42 per parameter whatever the model's size, is in no delta.

    Rounding: sensitivities are widened by `INEXACT`, which covers the solver's error
    (by strong convexity a gradient of g moves the minimum by g / Lambda) and roundings.

    Checked by: tests/mechanisms/test_output_perturbation.py.

    Args:
        cost: The cost of the running step: cells "none" (the epsilon of the test) and
            "model" (the epsilon of the noise).
        features: number[people, parameters]; rows are scaled down to norm 1.
        labels: number[people]; above 0 is one class, all others are the other.
        train: How many people, the first ones, it is fitted to; the others test it.
            Who comes first must not depend on the data.
        regularisation: The weight of half the squared norm of the parameters.
        threshold: Largest mean absolute error, in [0, 2], that is good enough.

    Returns:
        The parameters, or None.

    Raises:
        ReleaseError: Outside a step with such a cost and relation, if the step has
            drawn noise already, or if shapes or numbers do not fit.
    """
    recipe = Recipe(train, regularisation, threshold)
    cells = dict(cost.cells)
    if set(cells) != {NONE, MODEL} or not 0 < cells[NONE] <= cells[MODEL]:
        msg = f"output_perturbation() needs cost=recoverable_model(...), not {cost!r}"
        raise PublicError(msg)
    test, model = cells[NONE], cells[MODEL]
    rows, classes = _check_rows(features, labels, recipe)
    fitted = minimum(rows[: recipe.train], classes[: recipe.train], recipe)
    noise = k_norm_noise(fitted.size, recipe.sensitivity / model)
    noisy = fitted + noise
    held_out = slice(recipe.train, None)
    error = mean_error(noisy, rows[held_out], classes[held_out])
    tests = len(rows) - recipe.train
    noisy_error: float = add_noise(
        Laplace(sensitivity=recipe.test_sensitivity(tests), epsilon=test), error
    )
    if noisy_error > recipe.threshold:
        return Drawn(None, NONE)
    length = float(recipe.sensitivity / model) * fitted.size
    return Drawn(sum_on_grid(fitted, noise, length / _GRID), MODEL)


def _check_rows(
    features: NDArray[Any], labels: NDArray[Any], recipe: Recipe
) -> tuple[Floats, Floats]:
    shapes = np.shape(features), np.shape(labels)
    fits = len(shapes[0]) == 2 and shapes[1] == shapes[0][:1] and 0 not in shapes[0]  # noqa: PLR2004
    if not fits or not recipe.train < shapes[1][0] <= recipe.train + MOST_PEOPLE:
        msg = "give features[people, parameters] and labels[people], more than train="
        raise PublicError(msg)
    # A row that is no number has no norm; as zeros it says nothing.
    rows, _ = clip_rows(np.nan_to_num(np.asarray(features, np.float64)), norm=1)
    return np.nan_to_num(rows), np.where(np.asarray(labels) > 0, 1.0, -1.0)


def minimum(rows: Floats, classes: Floats, recipe: Recipe) -> Floats:
    """Return the minimum of the regularised logistic loss, close enough.

    J = mean of log(1 + exp(-y x.w)) + Lambda |w|^2 / 2, by Newton's method, whose steps
    are halved until the loss does not grow; it ends when the gradient is as small as
    `INEXACT` allows.

    Raises:
        ReleaseError: If it does not get there.
    """
    strength, people = float(recipe.regularisation), len(rows)
    # |gradient| / Lambda is the error; the sensitivity has two of them, and roundings.
    enough = float(INEXACT) / (2 * people)
    signed = rows * classes[:, None]

    def loss(w: Floats) -> float:
        return float(np.logaddexp(0, -signed @ w).mean() + strength / 2 * w @ w)

    w: Floats = np.zeros(rows.shape[1])
    for _ in range(_NEWTON_STEPS):
        odds = np.exp(-np.logaddexp(0, signed @ w))
        slope = strength * w - signed.T @ odds / people
        if np.linalg.norm(slope) <= enough:
            return w
        curved = signed.T @ (signed * (odds * (1 - odds))[:, None]) / people
        step = np.linalg.solve(curved + strength * np.eye(w.size), slope)
        now, halvings = loss(w), 0
        # At the minimum the loss cannot tell; the gradient still can.
        while loss(w - step) > now + 1e-12 and halvings < _MOST_HALVINGS:
            step, halvings = step / 2, halvings + 1
        w = w - step
    msg = "the solver did not converge; scale the features or regularise more"
    raise ReleaseError(msg)


def k_norm_noise(size: int, scale: Fraction) -> Floats:
    """Draw a vector b of density proportional to exp(-|b| / scale), in L2 norm.

    Its direction is that of a vector of normal draws; its length, Gamma distributed
    with shape `size`, is a sum of `size` exponential draws: absolute Laplace noise.
    """
    direction = add_noise(_UNIT, np.zeros(size))
    lengths = add_noise(Laplace(sensitivity=scale, epsilon=1), np.zeros(size))
    norm = float(np.linalg.norm(direction))
    return np.asarray(direction * (float(np.abs(lengths).sum()) / norm), np.float64)


def mean_error(model: Floats, rows: Floats, classes: Floats) -> float:
    """Return the mean of |y - h(x)|, h(x) = 2 / (1 + exp(-x.w)) - 1; in [0, 2]."""
    return float(np.abs(classes - np.tanh(rows @ model / 2)).mean())


def sum_on_grid(model: Floats, noise: Floats, step: float) -> Floats:
    """Round an exact sum to multiples of the power of two at or above `step`."""
    width = Fraction(2) ** math.ceil(math.log2(step))
    pairs = zip(model.tolist(), noise.tolist(), strict=True)
    sums = [round((Fraction(a) + Fraction(b)) / width) * width for a, b in pairs]
    return np.array(sums, np.float64)
