"""Mechanisms that add noise, described by the numbers that their code takes.

A mechanism that is private for one neighbouring relation only says so in `relations`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Literal, overload

from dpflow.accounting.costs.base import Cost, whole_number
from dpflow.accounting.costs.notions import WithEpsilon
from dpflow.accounting.costs.planned import Plannable
from dpflow.exceptions import InvalidCost
from dpflow.rounding import (
    RATIO_HIGH,
    RATIO_LOW,
    SCALE_HIGH,
    SCALE_LOW,
    Number,
    bound_above,
    exact,
    exact_epsilon,
    exact_scale,
    number_text,
    to_real,
)

_RATE_LOW = Fraction(1, 10**12)
_MOST_CATEGORIES = 10**12
_EPSILON_STEP = 10**30
_MOST_SENSITIVE = 10**15


def _one_of(first: tuple[str, object], second: tuple[str, object], cost: str) -> str:
    """Return the name of the one keyword that was given."""
    present = [name for name, value in (first, second) if value is not None]
    if len(present) != 1:
        msg = (
            f"{cost} takes exactly one of {first[0]}= and {second[0]}=, "
            f"got {' and '.join(present) or 'neither'}"
        )
        raise InvalidCost(msg, name=first[0], value=None)
    return present[0]


def _deviation(
    cost: Cost, bound: Fraction, sigma: Number | None, multiplier: Number | None
) -> Fraction:
    """Return the standard deviation that was given, or a multiple of the bound."""
    choices = ("sigma", sigma), ("noise_multiplier", multiplier)
    if _one_of(*choices, cost.mechanism) == "sigma":
        deviation = _spread(sigma, "sigma")
    else:
        deviation = exact_scale(multiplier, name="noise_multiplier") * bound
    return _in_proportion(deviation, bound, "sigma")


def _scale(
    cost: Cost, bound: Fraction, scale: Number | None, epsilon: Number | None
) -> Fraction:
    """Return the scale that was given, or the one of an epsilon."""
    choices = ("scale", scale), ("epsilon", epsilon)
    if _one_of(*choices, cost.mechanism) == "scale":
        spread = _spread(scale, "scale")
    else:
        spread = bound / exact_epsilon(epsilon)
    return _in_proportion(spread, bound, "scale")


def _in_proportion(spread: Fraction, sensitivity: Fraction, name: str) -> Fraction:
    label = f"{name} divided by sensitivity"
    exact(spread / sensitivity, name=label, low=RATIO_LOW, high=RATIO_HIGH)
    return spread


def _spread(value: object, name: str) -> Fraction:
    """Read a spread of noise; every sensitivity times every ratio is in range."""
    low, high = SCALE_LOW * RATIO_LOW, SCALE_HIGH * RATIO_HIGH
    return exact(value, name=name, low=low, high=high)


@dataclass(frozen=True, init=False, repr=False)
class Gaussian(Plannable, Cost):
    """The Gaussian mechanism: normal noise added to a number or a vector.

    Args:
        sensitivity: How much one privacy unit can change the value, in L2 norm.
        sigma: Standard deviation of the noise, in the units of the value.
        noise_multiplier: `sigma / sensitivity`; give this or `sigma`.
        noise: "planned" in place of both: the policy's plan for the flow sets it.

    Raises:
        InvalidCost: If a number is not finite, not positive or out of all proportion.

    Examples:
        >>> Gaussian(sensitivity=100, noise_multiplier=20)
        Gaussian(sensitivity=100, sigma=2000)
    """

    noise_powers = (("sigma", 1),)

    sensitivity: Fraction
    sigma: Fraction

    @overload
    def __init__(self, *, sensitivity: Number, sigma: Number) -> None: ...
    @overload
    def __init__(self, *, sensitivity: Number, noise_multiplier: Number) -> None: ...
    @overload
    def __init__(self, *, sensitivity: Number, noise: Literal["planned"]) -> None: ...
    def __init__(
        self,
        *,
        sensitivity: Number,
        sigma: Number | None = None,
        noise_multiplier: Number | None = None,
        noise: Literal["planned"] | None = None,  # noqa: ARG002 (`Plannable` reads it)
    ) -> None:
        bound = exact_scale(sensitivity, name="sensitivity")
        deviation = _deviation(self, bound, sigma, noise_multiplier)
        self._set(sensitivity=bound, sigma=deviation)


@dataclass(frozen=True, init=False, repr=False)
class Laplace(Plannable, Cost):
    """The Laplace mechanism: double-exponential noise.

    Args:
        sensitivity: How much one privacy unit can change the value, in L1 norm.
        scale: Scale of the noise (its standard deviation is sqrt(2) times that).
        epsilon: `sensitivity / scale`; give this or `scale`.
        noise: "planned" in place of both: the policy's plan for the flow sets it.

    Raises:
        InvalidCost: If a number is not finite, not positive or out of all proportion.
    """

    noise_powers = (("scale", 1),)

    sensitivity: Fraction
    scale: Fraction

    @overload
    def __init__(self, *, sensitivity: Number, scale: Number) -> None: ...
    @overload
    def __init__(self, *, sensitivity: Number, epsilon: Number) -> None: ...
    @overload
    def __init__(self, *, sensitivity: Number, noise: Literal["planned"]) -> None: ...
    def __init__(
        self,
        *,
        sensitivity: Number,
        scale: Number | None = None,
        epsilon: Number | None = None,
        noise: Literal["planned"] | None = None,  # noqa: ARG002 (`Plannable` reads it)
    ) -> None:
        bound = exact_scale(sensitivity, name="sensitivity")
        self._set(sensitivity=bound, scale=_scale(self, bound, scale, epsilon))


@dataclass(frozen=True, init=False, repr=False)
class DiscreteLaplace(Cost):
    """The discrete Laplace (two-sided geometric) mechanism for whole numbers.

    The noise takes the whole number x with probability proportional to
    exp(-abs(x) / scale). For data on another lattice, count in its steps.

    Args:
        sensitivity: How much one privacy unit can change the value, in L1 norm; a
            whole number.
        scale: Scale of the noise.
        epsilon: `sensitivity / scale`; give this or `scale`.

    Raises:
        InvalidCost: If a number is not finite, not positive, out of all proportion,
            or the sensitivity is not whole.
    """

    noise_powers = (("scale", 1),)

    sensitivity: Fraction
    scale: Fraction

    @overload
    def __init__(self, *, sensitivity: Number, scale: Number) -> None: ...
    @overload
    def __init__(self, *, sensitivity: Number, epsilon: Number) -> None: ...
    def __init__(
        self,
        *,
        sensitivity: Number,
        scale: Number | None = None,
        epsilon: Number | None = None,
    ) -> None:
        integer = whole_number(
            sensitivity, name="sensitivity", low=1, high=_MOST_SENSITIVE
        )
        bound = Fraction(integer)
        self._set(sensitivity=bound, scale=_scale(self, bound, scale, epsilon))


@dataclass(frozen=True, init=False, repr=False)
class DiscreteGaussian(Cost):
    """The discrete Gaussian mechanism for whole numbers, one or a vector of them.

    Each coordinate gets independent noise that takes the whole number x with
    probability proportional to exp(-x**2 / (2 sigma**2)).

    Args:
        sensitivity: How much one privacy unit can change the value, in L2 norm.
        sigma: The sigma above (the standard deviation is slightly smaller).
        noise_multiplier: `sigma / sensitivity`; give this or `sigma`.

    Raises:
        InvalidCost: If a number is not finite, not positive or out of all proportion.
    """

    noise_powers = (("sigma", 1),)

    sensitivity: Fraction
    sigma: Fraction

    @overload
    def __init__(self, *, sensitivity: Number, sigma: Number) -> None: ...
    @overload
    def __init__(self, *, sensitivity: Number, noise_multiplier: Number) -> None: ...
    def __init__(
        self,
        *,
        sensitivity: Number,
        sigma: Number | None = None,
        noise_multiplier: Number | None = None,
    ) -> None:
        bound = exact_scale(sensitivity, name="sensitivity")
        deviation = _deviation(self, bound, sigma, noise_multiplier)
        self._set(sensitivity=bound, sigma=deviation)


@dataclass(frozen=True, init=False, repr=False)
class RandomizedResponse(Cost):
    """Randomized response: the true answer, or else one of the others at random.

    With k categories, the true one is released with probability `truth` and each of
    the others with probability (1 - truth) / (k - 1); epsilon is the logarithm of
    truth (k - 1) / (1 - truth).

    Args:
        epsilon: The logarithm above; give this or `truth`.
        truth: Probability of the true answer, above 1 / categories. The cost keeps
            the epsilon of it, rounded up to 30 decimals.
        categories: The number of answers, fixed and public.

    Raises:
        InvalidCost: If a number is out of range.
    """

    #: Without a person's answer there is nothing to randomize.
    relations: ClassVar[tuple[str, ...]] = ("replace-one",)

    noise_powers = (("epsilon", -1),)

    epsilon: Fraction
    categories: int

    @overload
    def __init__(self, *, epsilon: Number, categories: Number = 2) -> None: ...
    @overload
    def __init__(self, *, truth: Number, categories: Number = 2) -> None: ...
    def __init__(
        self,
        *,
        epsilon: Number | None = None,
        truth: Number | None = None,
        categories: Number = 2,
    ) -> None:
        answers = whole_number(
            categories, name="categories", low=2, high=_MOST_CATEGORIES
        )
        choices = ("epsilon", epsilon), ("truth", truth)
        if _one_of(*choices, self.mechanism) == "truth":
            epsilon = _epsilon_of_truth(truth, answers)
        self._set(epsilon=exact_epsilon(epsilon))
        object.__setattr__(self, "categories", answers)


def _epsilon_of_truth(truth: object, categories: int) -> Fraction:
    probability = exact(truth, name="truth", low=Fraction(0), high=Fraction(1))
    if not Fraction(1, categories) < probability < 1:
        msg = (
            f"truth must lie between 1/{categories} (an answer without information) "
            f"and 1 (no privacy), got {number_text(probability)}"
        )
        raise InvalidCost(msg, name="truth", value=number_text(probability))
    odds = probability * (categories - 1) / (1 - probability)
    value = bound_above(lambda mp: mp.log(to_real(mp, odds)))
    return Fraction(-((-value.numerator * _EPSILON_STEP) // value.denominator)) / (
        _EPSILON_STEP
    )


@dataclass(frozen=True, init=False, repr=False)
class ExponentialMechanism(WithEpsilon):
    """The exponential mechanism: a choice with probability growing with its utility.

    A choice r has probability proportional to exp(epsilon u(r) / (2 D)), where one
    privacy unit changes every utility u(r) by at most D. If it can only move all
    utilities the same way (monotone utilities: counts under add-or-remove), the same
    epsilon already holds for exp(epsilon u(r) / D). The report of a noisy maximum
    with Gumbel noise is the same mechanism; other noises are not.

    Args:
        epsilon: The epsilon above: the range of its loss, and its epsilon as
            (epsilon, 0)-DP.
        relation: The neighbouring relation that the epsilon holds for. Default: the
            policy's, whichever it is.

    Raises:
        InvalidCost: If epsilon is not a positive finite number of sane size.
    """


@dataclass(frozen=True, init=False, repr=False)
class PoissonSampledGaussian(Cost):
    """A Gaussian sum over a random sample of the people: one step of DP-SGD.

    Every person enters the sample independently with probability `sampling_rate`;
    each contribution has an L2 norm of at most C; the noise has standard deviation
    `noise_multiplier` times C. The sample is drawn anew in each step; the sample and
    its size stay secret. Batches of a fixed size, or from a shuffle, are another
    mechanism.

    Args:
        sampling_rate: Probability with which a person enters the sample, in (0, 1];
            fixed before the draw.
        noise_multiplier: Standard deviation of the noise divided by C.

    Raises:
        InvalidCost: If a number is out of range.
    """

    #: The bound on its divergence covers adding or removing one person only.
    relations: ClassVar[tuple[str, ...]] = ("add-or-remove",)

    noise_powers = (("noise_multiplier", 1),)

    sampling_rate: Fraction
    noise_multiplier: Fraction

    def __init__(self, *, sampling_rate: Number, noise_multiplier: Number) -> None:
        self._set(
            sampling_rate=exact(
                sampling_rate, name="sampling_rate", low=_RATE_LOW, high=Fraction(1)
            ),
            noise_multiplier=exact(
                noise_multiplier,
                name="noise_multiplier",
                low=RATIO_LOW,
                high=RATIO_HIGH,
            ),
        )
