"""Sums of clipped rows with Gaussian noise: the steps of private gradient descent."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.noise import Gaussian, PoissonSampledGaussian
from dpflow.accounting.rules.individual import IndividualBound
from dpflow.exceptions import PublicError
from dpflow.guard.charge import current_execution
from dpflow.guard.iterations import SubStep, iterations
from dpflow.mechanisms.drawn import claimed, is_replace_one
from dpflow.mechanisms.rows import Floats, Gradient, NormClip
from dpflow.noise.draws import add_noise
from dpflow.noise.sources import random_bytes
from dpflow.people.costs import gaussian_costs, sampled_gaussian_costs
from dpflow.people.state import PrivateMask, PrivateTally
from dpflow.rounding import Number, exact

#: Returns the gradient of each person's loss at a model: number[people, ...], or the
#: products of `dpflow.mechanisms.rows.Factors`, for each layer of a network if need be.
Gradients = Callable[[Floats], Gradient]
#: Returns the standard deviation of a step's noise from its number, counted from 1, and
#: the model so far, which is released; and from nothing else.
Schedule = Callable[[int, Floats], Number]


def gradient_descent(
    start: Floats,
    gradients: Gradients,
    *,
    norm: Number,
    rate: float,
    good_enough: Callable[[SubStep, Floats], bool] | None = None,
    sigma: Number | Schedule | None = None,
    steps: int | None = None,
    sampling_rate: Number = 1,
) -> Floats:
    """Descend along noisy sums of clipped gradients, as the step's cost says.

    Under `EarlyStopping` of a `Gaussian` or a `PoissonSampledGaussian`, alone or the
    first part of a `Composed`, it runs `iterations` and may stop early. Under an
    `IndividualBound` every person has a budget of their own, the noise of each step may
    be chosen anew, and people may be sampled.

    Args:
        start: The first model; public.
        gradients: Returns the gradient of each person's loss at a model, one row for
            each person, in the same order always: an array, or for a linear model
            with many parameters the products of `dpflow.mechanisms.rows.Factors`.
        norm: Longest L2 norm of a person's gradient; longer ones are scaled down.
        rate: What the noisy sum is multiplied with before it is subtracted: a learning
            rate over a public number of people.
        good_enough: For `EarlyStopping`: whether to end after a sub-step, called where
            it may stop. It may use the released model and `SubStep.test`, which is
            paid by a part of the sub-step, and nothing else that is private.
        sigma: For `IndividualBound`: standard deviation of the noise, or a function of
            the step's number and the model so far, and nothing private, that returns
            it.
        steps: For `IndividualBound`: how many steps there are.
        sampling_rate: For `IndividualBound` in the RDP measure: the chance with which
            each person is drawn into a step, secretly and anew. Everyone pays for every
            step, drawn or not. Elsewhere the cost says it: `PoissonSampledGaussian`.

    Returns:
        The last model.

    Raises:
        ReleaseError: Outside a step with such a cost, or if it does not fit the clip.
        UnsupportedCost: If people are sampled under a bound in the gdp measure.
    """
    who = "gradient_descent()"
    clip = NormClip.to(norm)
    execution = current_execution(who)
    individual = isinstance(execution.cost, IndividualBound)
    choices = {sigma is not None, steps is not None, individual or sampling_rate != 1}
    if choices != {individual}:
        msg = (
            f"{who} takes sigma= and steps= under IndividualBound, and only there may "
            "sampling_rate= stand. Elsewhere declare PoissonSampledGaussian("
            "sampling_rate=..., noise_multiplier=...)"
        )
        raise PublicError(msg)
    if individual:
        execution, bound = claimed(who, IndividualBound, relation="add-or-remove")
        own: Any = {"sigma": sigma, "steps": steps, "sampling_rate": sampling_rate}
        with execution.drawing():
            return individual_descent(
                bound, start, gradients, clip=clip, rate=rate, **own
            )
    model = 1.0 * start
    for step in iterations():
        cost = step.claim(who, step.parts[0])
        short = isinstance(cost, Gaussian) and cost.sensitivity < 2 * clip.norm
        if short and is_replace_one(execution):
            msg = (
                f"{who} under replace-one changes by up to twice the norm; declare "
                "Gaussian(sensitivity=...) of twice the norm"
            )
            raise PublicError(msg)
        rows = gradients(model.copy())
        with execution.drawing():
            noisy = noisy_gradient(cost, rows, clip=clip)
        model = model - rate * noisy
        if step.may_stop and good_enough and good_enough(step, model.copy()):
            break
    return model


def poisson_sample(rate: Fraction, people: int) -> NDArray[np.bool_]:
    """Say of each person independently, with the system's own randomness, who is drawn.

    Rounding: the rate down to a multiple of 2**-64, which leaks no more.
    """
    if rate == 1:
        return np.ones(people, np.bool_)
    words = np.frombuffer(random_bytes(8 * people), "<u8")
    return np.asarray(words < np.uint64(int(rate * 2**64)), np.bool_)


def noisy_gradient(cost: Cost, rows: Gradient, *, clip: NormClip) -> Floats:
    """Return the noisy sum of clipped rows.

    Source: Abadi et al. 2016 (arXiv 1607.00133), Alg. 1, without dividing by the size
    of the sample, which is private; docs/derivations/notions.md#poisson-sampling.

    Assumes: a privacy unit has one row. Under replace-one it can change the sum by
    twice the clip: declare `Gaussian(sensitivity=2 * norm)`.

    Rounding: the sum is exact; noise as `add_noise`.

    Checked by: tests/mechanisms/test_gradient_descent.py.

    Args:
        cost: A `Gaussian` whose sensitivity is at least the clip, or a
            `PoissonSampledGaussian`, whose noise is a multiple of the clip.
        rows: number[people, ...] or products of factors: gradients before clipping.
        clip: How they are clipped.

    Raises:
        ReleaseError: If the cost declares anything else, or less than the clip.
    """
    noise, drawn, clipped = cost, None, clip.apply(rows)
    if isinstance(cost, PoissonSampledGaussian):
        multiplier = cost.noise_multiplier
        noise = Gaussian(sensitivity=clip.norm, noise_multiplier=multiplier)
        drawn = PrivateMask(poisson_sample(cost.sampling_rate, clipped.people))
    if not isinstance(noise, Gaussian) or noise.sensitivity < clip.norm:
        msg = (
            "a step of gradient descent needs a Gaussian whose sensitivity is at least "
            f"the clip, or a PoissonSampledGaussian, got {cost!r}"
        )
        raise PublicError(msg)
    noisy: Floats = add_noise(noise, clipped.total(drawn))
    return noisy


def individual_sum(
    tally: PrivateTally,
    rows: Gradient,
    *,
    clip: NormClip,
    sigma: Number,
    sampling_rate: Number = 1,
) -> Floats:
    """Return the sum of the rows of those who can still afford the step: private data.

    Everyone pays for the norm of their own row; who cannot does not count, and who that
    is stays inside of this function. Under Poisson sampling everyone pays the smaller
    price of a sampled step, drawn into the sample or not, and the sum is over those
    who can pay and were drawn.

    Source: Feldman, Zrnic 2021 (arXiv 2008.11193) Alg. 1;
    docs/derivations/individual.md#individual-filter,
    docs/derivations/individual.md#sampled-steps.

    Assumes: add-or-remove; the bound of the tally is reserved; noise of standard
    deviation `sigma` is added before anybody sees it; `sigma`, the rate and the model
    that the gradients are of depend on released outputs only.

    Rounding: costs up, from the norms of the rows that are summed; the sum is exact.

    Checked by: tests/mechanisms/test_gradient_descent.py,
    tests/adversaries/test_individual_sampling.py.

    Raises:
        UnsupportedCost: If people are sampled under a bound in the gdp measure,
            or of an order that is too large.
    """
    rate = exact(sampling_rate, name="sampling_rate", low=Fraction(0), high=Fraction(1))
    clipped = clip.apply(rows)
    squares = clipped.squares()
    costs = gaussian_costs(tally.bound, squares, sigma=sigma)
    if rate != 1:
        costs = sampled_gaussian_costs(tally.bound, squares, sigma=sigma, rate=rate)
    drawn = poisson_sample(rate, clipped.people)
    return clipped.total(tally.admit(costs).among(drawn))


def individual_descent(
    bound: IndividualBound,
    start: Floats,
    gradients: Gradients,
    *,
    clip: NormClip,
    rate: float,
    sigma: Number | Schedule,
    steps: int,
    sampling_rate: Number = 1,
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
        sampling_rate: Chance with which a person is drawn into a step; public.

    Returns:
        The last model. Every one of them is released: the schedule has seen them.
    """
    model: Floats = np.array(start, np.float64)
    tally: PrivateTally | None = None
    for number in range(1, steps + 1):
        rows = gradients(model.copy())
        tally = PrivateTally(bound, people=len(rows)) if tally is None else tally
        spread = sigma(number, model.copy()) if callable(sigma) else sigma
        total = individual_sum(
            tally, rows, clip=clip, sigma=spread, sampling_rate=sampling_rate
        )
        noise = Gaussian(sensitivity=clip.norm, sigma=spread)
        model = model - rate * add_noise(noise, total)
    return model
