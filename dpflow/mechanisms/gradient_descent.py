"""Sums of clipped rows with Gaussian noise: the steps of private gradient descent.

Rows are clipped and then cut to a grid, toward zero, and summed as integers. So one
person moves the sum by no more than the clip, to the last bit, whatever the order of
the rows; a sum of floats would round, and by how much depends on everybody.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.accounting.costs import Cost, Gaussian
from dpflow.accounting.individual import IndividualBound
from dpflow.accounting.mechanism_costs import PoissonSampledGaussian
from dpflow.exceptions import ReleaseError
from dpflow.individual.costs import clip_rows, gaussian_costs, squared_norms
from dpflow.individual.state import PrivateTally
from dpflow.mechanisms.noise import draw
from dpflow.mechanisms.sources import random_bytes
from dpflow.rounding import SCALE_HIGH, SCALE_LOW, Number, exact

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

#: Bits of the clip that the grid keeps.
_BITS = 29
#: The sum of so many people is a float without rounding.
MOST_PEOPLE = 2**23
_WORD = 2**64

#: Returns the gradient of each person's loss at a model, number[people, ...].
Gradients = Callable[[Floats], NDArray[Any]]
#: Returns the standard deviation of a step's noise from its number, counted from 1, and
#: the model so far, which is released; and from nothing else.
Schedule = Callable[[int, Floats], Number]


@dataclass(frozen=True, slots=True)
class Clip:
    """How rows are clipped and cut to the grid; public.

    Attributes:
        norm: Longest L2 norm of a person's row.
        step: Width of the grid, a power of two.
    """

    norm: Fraction
    step: float

    @classmethod
    def to(cls, norm: Number) -> Clip:
        """Check the norm and choose the grid.

        Raises:
            InvalidCost: If the norm is no positive number of sane size.
        """
        longest = exact(norm, name="norm", low=SCALE_LOW, high=SCALE_HIGH)
        return cls(longest, 2.0 ** (math.floor(math.log2(float(longest))) - _BITS))

    def rows(self, rows: NDArray[Any]) -> Rows:
        """Return clipped rows in steps of the grid; rows that are no numbers as zeros.

        Rounding: toward zero, so that no norm grows.

        Raises:
            ReleaseError: If there are no people, or more than `MOST_PEOPLE`.
        """
        values = np.asarray(rows)
        if values.ndim < 2 or not 0 < len(values) <= MOST_PEOPLE:  # noqa: PLR2004
            msg = (
                "gradients must be an array with one row for each of 1 to "
                f"{MOST_PEOPLE} people, got the shape {values.shape}"
            )
            raise ReleaseError(msg)
        clipped, _ = clip_rows(values, norm=self.norm)
        whole = np.isfinite(clipped).all(axis=tuple(range(1, clipped.ndim)))
        clipped[~whole] = 0
        clipped /= self.step
        return np.trunc(clipped, out=clipped).astype(np.int64)

    def floats(self, steps: Rows) -> Floats:
        """Return numbers of steps as the floats that they stand for, exactly."""
        return np.asarray(steps.astype(np.float64) * self.step, np.float64)


def poisson_sample(rate: Fraction, people: int) -> NDArray[np.bool_]:
    """Say of each person independently, with the system's own randomness, who is drawn.

    Rounding: the rate down to a multiple of 2**-64, which leaks no more.
    """
    if rate == 1:
        return np.ones(people, np.bool_)
    words = np.frombuffer(random_bytes(8 * people), "<u8")
    return np.asarray(words < np.uint64(int(rate * _WORD)), np.bool_)


def noisy_gradient(cost: Cost, rows: NDArray[Any], *, clip: Clip) -> Floats:
    """Return the noisy sum of clipped rows.

    Source: Abadi et al. 2016 (arXiv 1607.00133), Alg. 1, without dividing by the size
    of the sample, which is private; docs/derivations/notions.md#poisson-sampling.

    Assumes: a privacy unit has one row. Under replace-one it can change the sum by
    twice the clip: declare `Gaussian(sensitivity=2 * norm)`.

    Rounding: the sum is exact; noise as `draw`.

    Checked by: tests/mechanisms/test_gradient_descent.py.

    Args:
        cost: A `Gaussian` whose sensitivity is at least the clip, or a
            `PoissonSampledGaussian`, whose noise is a multiple of the clip.
        rows: number[people, ...], gradients before clipping.
        clip: How they are clipped.

    Raises:
        ReleaseError: If the cost declares anything else, or less than the clip.
    """
    noise, rate = _noise_of(cost, clip)
    steps = clip.rows(rows)
    if rate is not None:
        drawn = poisson_sample(rate, len(steps))
        total = np.sum(steps, axis=0, where=_along(drawn, steps))
    else:
        total = steps.sum(axis=0)
    noisy: Floats = draw(noise, clip.floats(total))
    return noisy


def _noise_of(cost: Cost, clip: Clip) -> tuple[Gaussian, Fraction | None]:
    """Return the noise of a step, and the rate at which it samples people."""
    if isinstance(cost, Gaussian) and cost.sensitivity >= clip.norm:
        return cost, None
    if isinstance(cost, PoissonSampledGaussian):
        multiplier = cost.noise_multiplier
        noise = Gaussian(sensitivity=clip.norm, noise_multiplier=multiplier)
        return noise, cost.sampling_rate
    msg = (
        "a step of gradient descent needs a Gaussian whose sensitivity is at least "
        f"the clip {float(clip.norm):g}, or a PoissonSampledGaussian, got {cost!r}"
    )
    raise ReleaseError(msg)


def _along(mask: NDArray[np.bool_], rows: NDArray[Any]) -> NDArray[np.bool_]:
    return mask.reshape(-1, *([1] * (rows.ndim - 1)))


def individual_gradient(
    tally: PrivateTally, rows: NDArray[Any], *, clip: Clip, sigma: Number
) -> Floats:
    """Return the noisy sum of the rows of those who can still afford the step.

    Everyone pays for the norm of their own row; who cannot is left out, and who that
    is stays inside of this function.

    Source: Feldman, Zrnic 2021 (arXiv 2008.11193) Alg. 1;
    docs/derivations/individual.md#individual-filter.

    Assumes: add-or-remove; the bound of the tally is reserved; `sigma` and the model
    that the gradients are of depend on released outputs only.

    Rounding: costs up, from the norms of the rows that are summed; the sum is exact.

    Checked by: tests/mechanisms/test_gradient_descent.py.
    """
    steps = clip.rows(rows)
    squares = squared_norms(clip.floats(steps))
    active = tally.admit(gaussian_costs(tally.bound, squares, sigma=sigma))
    total = clip.floats(active.sum(steps))
    noisy: Floats = draw(Gaussian(sensitivity=clip.norm, sigma=sigma), total)
    return noisy


def individual_descent(
    bound: IndividualBound,
    start: Floats,
    gradients: Gradients,
    *,
    clip: Clip,
    rate: float,
    sigma: Number | Schedule,
    steps: int,
) -> Floats:
    """Descend with a budget of their own for every person.

    Args:
        bound: What no person may exceed; reserved in the ledger.
        start: The first model; public.
        gradients: Returns each person's gradient at a model, in the same order always.
        clip: How gradients are clipped.
        rate: What the noisy sum is multiplied with before it is subtracted.
        sigma: Standard deviation of the noise, or a schedule of it.
        steps: How many steps there are.

    Returns:
        The last model. Every one of them is released: the schedule has seen them.
    """
    model: Floats = np.array(start, np.float64)
    tally: PrivateTally | None = None
    for number in range(1, steps + 1):
        rows = np.asarray(gradients(model.copy()))
        tally = PrivateTally(bound, people=len(rows)) if tally is None else tally
        spread = sigma(number, model.copy()) if callable(sigma) else sigma
        model = model - rate * individual_gradient(tally, rows, clip=clip, sigma=spread)
    return model
