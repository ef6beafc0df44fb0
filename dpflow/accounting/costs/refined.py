"""Steps that draw coarse noise first, and finer noise until the number is good enough.

Each holds the spreads of all its draws, so that what they are is not a matter of the
code that made them: a journal says it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any, ClassVar, TypeVar

from dpflow.accounting.costs.base import Cost, Outcome, whole_number
from dpflow.accounting.costs.noise import Gaussian, Laplace
from dpflow.accounting.costs.outcomes import OutcomeCost, OutputDP
from dpflow.exceptions import InvalidCost
from dpflow.rounding import (
    RATIO_HIGH,
    RATIO_LOW,
    Number,
    bound_above,
    exact,
    number_from_text,
    number_text,
    short_up,
    to_real,
)

#: Each draw has about this share of the spread before it.
_FINER = Fraction(9, 10)
_DIGITS = 4
_MOST_DRAWS = 200

C = TypeVar("C", bound="Refined | RefinedLaplace")


@dataclass(frozen=True, init=False, repr=False)
class Refined(Cost):
    """A number with Gaussian noise, refined until it shows that it is good enough.

    `release(value, within="10%")` draws it with the coarsest noise, and again with
    further, independent noise, averaged by precision, until the target is met or the
    finest noise is reached, which is reserved. After k draws the price is that of one
    Gaussian of the noise reached, in every theorem that lets what was released decide
    what runs next.

    Source: docs/derivations/accuracy.md#refined-gaussians. The outcome is the number of
    draws.

    Assumes: whether to go on depends on the noisy numbers alone.

    Args:
        finest: The most that it may spend: a `Gaussian`.
        coarsest: Noise multiplier of the first draw, larger than that of the finest.

    Raises:
        InvalidCost: If it is not larger, or there would be more than 200 draws.

    Examples:
        >>> Refined(Gaussian(sensitivity=1, noise_multiplier=5), coarsest=80)
        Refined(Gaussian(sensitivity=1, sigma=5), coarsest=80)
    """

    settlement: ClassVar[str] = "steps"

    sensitivity: Fraction
    sigmas: tuple[Fraction, ...]

    def __init__(self, finest: Cost, *, coarsest: Number) -> None:
        if not isinstance(finest, Gaussian):
            other = "RefinedLaplace" if isinstance(finest, Laplace) else "a Gaussian"
            msg = f"Refined takes a Gaussian, got {finest!r}; declare {other}"
            raise InvalidCost(msg, name="finest", value=repr(finest))
        sigmas = _spreads(finest.sigma, coarsest, finest.sensitivity)
        _fill(self, finest.sensitivity, sigmas)

    @property
    def spreads(self) -> tuple[Fraction, ...]:
        """The sigma of the number after each draw."""
        return self.sigmas

    @property
    def finest(self) -> Gaussian:
        """What is reserved."""
        return Gaussian(sensitivity=self.sensitivity, sigma=self.sigmas[-1])

    @property
    def substeps(self) -> tuple[Cost, int]:
        """What all draws together are: one Gaussian."""
        return self.finest, 1

    def refinements(self) -> tuple[Gaussian, ...]:
        """Return what each draw adds, its noise rounded up.

        The number after k draws is the average of the first k of these, by precision.
        """
        added = _added(self.sigmas)
        return tuple(Gaussian(sensitivity=self.sensitivity, sigma=s) for s in added)

    def realised(self, outcome: Outcome) -> Gaussian:
        """Return the one Gaussian that the draws together are.

        Raises:
            InvalidCost: If there are not so many draws.
        """
        sigma = self.sigmas[_draw(outcome, self.sigmas)]
        return Gaussian(sensitivity=self.sensitivity, sigma=sigma)

    def describe(self) -> dict[str, Any]:
        """Return the cost as JSON-able data."""
        return _described(self, self.sigmas)

    @classmethod
    def from_description(cls, numbers: Mapping[str, Any]) -> Refined:
        """Build the cost from what `describe` wrote, without `mechanism`."""
        return _read(cls, numbers)

    def noisier(self, factor: Fraction) -> Refined:
        """Return the step with `factor` times the noise of each draw."""
        sigmas = (sigma * factor for sigma in self.sigmas)
        return _fill(object.__new__(Refined), self.sensitivity, sigmas)

    def for_group(self, size: int) -> Refined:
        """Return the same draws for a group of privacy units that change at once."""
        return _fill(object.__new__(Refined), self.sensitivity * size, self.sigmas)

    def __repr__(self) -> str:
        """Write the cost as it would be constructed."""
        coarsest = number_text(self.sigmas[0] / self.sensitivity)
        return f"Refined({self.finest!r}, coarsest={coarsest})"


@dataclass(frozen=True, init=False, repr=False)
class RefinedLaplace(OutcomeCost):
    """A number with Laplace noise, refined until it shows that it is good enough.

    As `Refined`, by noise that is drawn finest first and coarsened, so that all numbers
    up to the last one tell no more than the last. After k draws it costs the epsilon of
    that noise, under the filters that settle by the cell of an output.

    Source: docs/derivations/accuracy.md#refined-laplace, after Koufogiannis, Han,
    Pappas 2015 (arXiv 1504.00429). The outcome is the number of draws.

    Assumes: whether to go on depends on the noisy numbers alone.

    Args:
        finest: The most that it may spend: a `Laplace`.
        coarsest: Scale of the first draw divided by the sensitivity: 1 / epsilon.

    Raises:
        InvalidCost: If it is not larger, or there would be more than 200 draws.
    """

    sensitivity: Fraction
    scales: tuple[Fraction, ...]

    def __init__(self, finest: Cost, *, coarsest: Number) -> None:
        if not isinstance(finest, Laplace):
            msg = f"RefinedLaplace takes a Laplace, got {finest!r}"
            raise InvalidCost(msg, name="finest", value=repr(finest))
        scales = _spreads(finest.scale, coarsest, finest.sensitivity)
        _fill(self, finest.sensitivity, scales)

    @property
    def spreads(self) -> tuple[Fraction, ...]:
        """The scale of the number after each draw."""
        return self.scales

    @property
    def finest(self) -> Laplace:
        """The least noise that it may draw."""
        return Laplace(sensitivity=self.sensitivity, scale=self.scales[-1])

    def output_dp(self) -> OutputDP:
        """Return the cells: the numbers of draws."""
        epsilons = (self.sensitivity / scale for scale in self.scales)
        return OutputDP({str(k): e for k, e in enumerate(epsilons, 1)})

    def cell(self, outcome: Outcome) -> str:
        """Return the cell of a number of draws."""
        return str(_draw(outcome, self.scales) + 1)

    def describe(self) -> dict[str, Any]:
        """Return the cost as JSON-able data."""
        return _described(self, self.scales)

    @classmethod
    def from_description(cls, numbers: Mapping[str, Any]) -> RefinedLaplace:
        """Build the cost from what `describe` wrote, without `mechanism`."""
        return _read(cls, numbers)

    def noisier(self, factor: Fraction) -> RefinedLaplace:
        """Return the step with `factor` times the noise of each draw."""
        scales = (scale * factor for scale in self.scales)
        return _fill(object.__new__(RefinedLaplace), self.sensitivity, scales)

    def for_group(self, size: int) -> RefinedLaplace:
        """Return the same draws for a group of privacy units that change at once."""
        wider = self.sensitivity * size
        return _fill(object.__new__(RefinedLaplace), wider, self.scales)

    def __repr__(self) -> str:
        """Write the cost as it would be constructed."""
        coarsest = number_text(self.scales[0] / self.sensitivity)
        return f"RefinedLaplace({self.finest!r}, coarsest={coarsest})"


def _fill(cost: C, sensitivity: Fraction, spreads: Iterable[Fraction]) -> C:
    """Set the numbers of a cost, checked.

    Raises:
        InvalidCost: If the spreads do not fall, or are out of all proportion.
    """
    name = "scales" if isinstance(cost, RefinedLaplace) else "sigmas"
    kind = Laplace if isinstance(cost, RefinedLaplace) else Gaussian
    given = tuple(exact(each, name=name) for each in spreads)
    falling = all(before > after for before, after in pairwise(given))
    if not 2 <= len(given) <= _MOST_DRAWS or not falling:  # noqa: PLR2004
        msg = f"{name} must be 2 to {_MOST_DRAWS} falling numbers, got {len(given)}"
        raise InvalidCost(msg, name=name, value=len(given))
    for each in given:
        spread: dict[str, Any] = {name[:-1]: each}
        kind(sensitivity=sensitivity, **spread)
    object.__setattr__(cost, "sensitivity", exact(sensitivity, name="sensitivity"))
    object.__setattr__(cost, name, given)
    return cost


def _spreads(
    finest: Fraction, coarsest: Number, sensitivity: Fraction
) -> tuple[Fraction, ...]:
    """Return spreads from the coarsest to the finest, each about a tenth smaller."""
    first = exact(coarsest, name="coarsest", low=RATIO_LOW, high=RATIO_HIGH)
    if first * sensitivity <= finest:
        msg = (
            f"coarsest={number_text(first)} is the noise multiplier of the first draw "
            f"and must be larger than that of the last, "
            f"{number_text(finest / sensitivity)}"
        )
        raise InvalidCost(msg, name="coarsest", value=number_text(first))
    found = [first * sensitivity]
    while found[-1] * _FINER > finest and len(found) < _MOST_DRAWS:
        found.append(exact(short_up(found[-1] * _FINER, _DIGITS), name="spread"))
    return (*found, finest)


@lru_cache(maxsize=256)
def _added(sigmas: tuple[Fraction, ...]) -> tuple[Fraction, ...]:
    """Return the sigma of each draw, of which the first ones make each of these."""
    return (sigmas[0], *(_between(*both) for both in pairwise(sigmas)))


def _between(before: Fraction, after: Fraction) -> Fraction:
    """Return the sigma of what refines one sigma to another, rounded up."""
    precision = 1 / after**2 - 1 / before**2
    return bound_above(lambda mp: 1 / mp.sqrt(to_real(mp, precision)))


def _draw(outcome: Outcome, spreads: tuple[Fraction, ...]) -> int:
    return whole_number(outcome, name="draws", low=1, high=len(spreads)) - 1


def _described(
    cost: Refined | RefinedLaplace, spreads: tuple[Fraction, ...]
) -> dict[str, Any]:
    return {
        "mechanism": cost.mechanism,
        "sensitivity": number_text(cost.sensitivity),
        "spreads": [number_text(spread) for spread in spreads],
    }


def _read(kind: type[C], numbers: Mapping[str, Any]) -> C:
    rest = dict(numbers)
    sensitivity = number_from_text(rest.pop("sensitivity"))
    spreads = [number_from_text(text) for text in rest.pop("spreads")]
    if rest:
        msg = f"{kind.__name__} knows no {', '.join(rest)}"
        raise TypeError(msg)
    return _fill(object.__new__(kind), sensitivity, spreads)
