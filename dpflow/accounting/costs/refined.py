"""Steps that draw coarse noise first, and finer noise until it is good enough.

A cost holds the spreads of all its draws, so that the journal records them and other
versions of the code cannot change them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any, ClassVar, overload

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
    number_text,
    short_up,
    to_real,
)

#: Each draw has about this share of the spread before it.
_FINER = Fraction(9, 10)
_DIGITS = 4
_MOST_DRAWS = 200


@dataclass(frozen=True, init=False, repr=False)
class Refined(Cost):
    """Numbers with noise that is refined until they are good enough.

    `release(value, within="10%")` draws one number with the coarsest noise, and with
    finer noise until the number shows that the target is met, or the finest noise is
    reached, which is reserved. `release(values, until=...)` does so with whole numbers
    until a function of the released answers ends it.

    Of a `Gaussian`, each draw adds independent noise and all draws are averaged by
    precision. After k draws the price is that of one Gaussian of the noise reached, in
    every theorem under which releases may decide about the next step.

    Of a `Laplace`, the finest number is drawn first and coarsened, so that all numbers
    up to the last one reveal no more than the last. After k draws it costs the epsilon
    of that noise, under the filters that settle by the cell of an output. Under the
    others it costs one draw of the finest noise.

    Source: docs/derivations/accuracy.md#refined-gaussians and #refined-laplace, after
    Koufogiannis, Han, Pappas 2015 (arXiv 1504.00429). The outcome is the number of
    draws.

    Assumes: whether to go on depends on the released numbers alone.

    Args:
        finest: The most that it may spend: a `Gaussian` or a `Laplace`.
        coarsest: Noise multiplier of the first draw (of a Laplace 1 / epsilon), larger
            than that of the finest. Each draw has about a tenth less noise.
        spreads: In its place the sigmas or scales of all draws before the finest.

    Raises:
        InvalidCost: If the spreads do not fall, or there would be more than 200 draws.

    Examples:
        >>> Refined(Gaussian(sensitivity=1, noise_multiplier=5), coarsest=80)
        Refined(Gaussian(sensitivity=1, sigma=5), coarsest=80)
        >>> Refined(Laplace(sensitivity=1, epsilon=1), spreads=[10, 4])
        Refined(Laplace(sensitivity=1, scale=1), spreads=[10, 4])
    """

    finest: Gaussian | Laplace
    spreads: tuple[Fraction, ...]

    def __new__(cls, finest: Cost | None = None, **_: Any) -> Refined:  # noqa: PYI034
        """Choose the class by the noise: prices and settlements differ."""
        kind = LaplaceDraws if isinstance(finest, Laplace) else GaussianDraws
        return object.__new__(kind if cls is Refined else cls)

    @overload
    def __init__(self, finest: Cost, *, coarsest: Number) -> None: ...
    @overload
    def __init__(self, finest: Cost, *, spreads: Sequence[Number]) -> None: ...
    def __init__(
        self,
        finest: Cost,
        *,
        coarsest: Number | None = None,
        spreads: Sequence[Number] | None = None,
    ) -> None:
        if not isinstance(finest, Gaussian | Laplace):
            msg = f"Refined takes a Gaussian or a Laplace, got {finest!r}."
            raise InvalidCost(msg, name="finest", value=repr(finest))
        if (coarsest is None) == (spreads is None):
            msg = "Refined takes exactly one of coarsest= and spreads=."
            raise InvalidCost(msg, name="coarsest", value=None)
        last, unit = _spread(finest), finest.sensitivity
        if coarsest is not None:
            first = exact(coarsest, name="coarsest", low=RATIO_LOW, high=RATIO_HIGH)
            earlier = _falling(first * unit, last)
        else:
            earlier = tuple(exact(spread, name="spreads") for spread in spreads or ())
        every = (*earlier, last)
        falling = all(before > after for before, after in pairwise(every))
        if not 2 <= len(every) <= _MOST_DRAWS or not falling:  # noqa: PLR2004
            texts = ", ".join(number_text(spread / unit) for spread in every[:3])
            msg = (
                f"the draws of Refined need noise that falls down to the finest, in 2 "
                f"to {_MOST_DRAWS} draws; the noise multipliers start with {texts}. "
                "Give a larger coarsest= or falling spreads=."
            )
            raise InvalidCost(msg, name="spreads", value=len(every))
        for spread in earlier:
            finest.but(**{_noise_of(finest): spread})
        object.__setattr__(self, "finest", finest)
        object.__setattr__(self, "spreads", every)

    @property
    def mechanism(self) -> str:
        """Name of the mechanism, as journals record it."""
        return Refined.__name__

    def draw(self, outcome: Outcome) -> Fraction:
        """Return the spread of the numbers after some draws.

        Raises:
            InvalidCost: If the cost has fewer draws.
        """
        most = len(self.spreads)
        return self.spreads[whole_number(outcome, name="draws", low=1, high=most) - 1]

    def _numbers(self) -> Iterator[tuple[str, Any]]:
        yield "finest", self.finest
        yield "spreads", self.spreads[:-1]

    def noisier(self, factor: Fraction) -> Refined:
        """Return the step with `factor` times the noise of each draw."""
        spreads = [spread * factor for spread in self.spreads[:-1]]
        return self.but(finest=self.finest.noisier(factor), spreads=spreads)

    def __repr__(self) -> str:
        """Write the cost as it would be constructed."""
        first = self.spreads[0]
        if self.spreads[:-1] == _falling(first, self.spreads[-1]):
            noise = f"coarsest={number_text(first / self.finest.sensitivity)}"
        else:
            noise = f"spreads=[{', '.join(map(number_text, self.spreads[:-1]))}]"
        return f"Refined({self.finest!r}, {noise})"


class GaussianDraws(Refined, named=False):
    """Independent Gaussian draws, each a sub-step of its own."""

    settlement: ClassVar[str] = "steps"

    @property
    def substeps(self) -> tuple[Cost, int]:
        """The one Gaussian that equals all draws together."""
        return self.finest, 1

    def refinements(self) -> tuple[Gaussian, ...]:
        """Return the added Gaussian of each draw, its noise rounded up.

        The number after k draws is the average of the first k of these, by precision.
        """
        return _split(self.finest.sensitivity, self.spreads)

    def realised(self, outcome: Outcome) -> Gaussian:
        """Return the one Gaussian that equals the draws together.

        Raises:
            InvalidCost: If the cost has fewer draws.
        """
        return Gaussian(sensitivity=self.finest.sensitivity, sigma=self.draw(outcome))


class LaplaceDraws(Refined, OutcomeCost, named=False):
    """Laplace draws, of which each is a blur of the next; the cell is their number."""

    def output_dp(self) -> OutputDP:
        """Return the cells: the numbers of draws."""
        epsilons = (self.finest.sensitivity / scale for scale in self.spreads)
        return OutputDP({str(k): e for k, e in enumerate(epsilons, 1)})

    def cell(self, outcome: Outcome) -> str:
        """Return the cell of a number of draws."""
        return str(self.spreads.index(self.draw(outcome)) + 1)


def _noise_of(finest: Gaussian | Laplace) -> str:
    return "sigma" if isinstance(finest, Gaussian) else "scale"


def _spread(finest: Gaussian | Laplace) -> Fraction:
    return finest.sigma if isinstance(finest, Gaussian) else finest.scale


def _falling(first: Fraction, finest: Fraction) -> tuple[Fraction, ...]:
    """Return spreads down to the finest, without it, each about a tenth smaller."""
    spreads = [first]
    while spreads[-1] * _FINER > finest and len(spreads) < _MOST_DRAWS:
        spreads.append(exact(short_up(spreads[-1] * _FINER, _DIGITS), name="spread"))
    return tuple(spreads)


@lru_cache(maxsize=256)
def _split(bound: Fraction, sigmas: tuple[Fraction, ...]) -> tuple[Gaussian, ...]:
    """Return the draws, of which the first ones make each of these sigmas."""
    draw_sigmas = (sigmas[0], *(_between(*both) for both in pairwise(sigmas)))
    return tuple(Gaussian(sensitivity=bound, sigma=sigma) for sigma in draw_sigmas)


def _between(before: Fraction, after: Fraction) -> Fraction:
    """Return the sigma of the draw that refines one sigma to another, rounded up."""
    precision = 1 / after**2 - 1 / before**2
    return bound_above(lambda mp: 1 / mp.sqrt(to_real(mp, precision)))
