"""What a step costs each person, for sums of clipped rows with Gaussian noise.

All results are upper bounds: they start from the numbers that are really summed, and
every rounding is covered by widening.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.accounting.rules.individual import IndividualBound
from dpflow.exceptions import InvalidCost, UnsupportedCost
from dpflow.rounding import SCALE_HIGH, SCALE_LOW, Number, exact, float_up

Floats = NDArray[np.float64]

#: Unit roundoff of float64 times four: covers a handful of roundings each.
_ROUNDINGS = 2.0**-51
#: Added to every square that is not zero. Parts of a square that underflow are far
#: below it, and its product with a factor from 2**-101 upwards is a normal number.
_TINY = 2.0**-900
#: numpy's expm1 and log1p are good to a few 1e-16, and expm1 loses a factor of its
#: argument, at most 710: in all below 1e-12 for up to _TERMS terms.
_WIDENED = 1 + 4e-12
_TERMS = 512
_BLOCK = 32_768


def squared_norms(rows: NDArray[Any]) -> Floats:
    """Return the squared L2 norm of each row, rounded up; zero for rows of zeros.

    Rounding: a sum of d squares in any order errs by less than (d + 1) * 2**-53
    relative; the result is widened by more.

    Args:
        rows: number[people, ...].

    Returns:
        float64[people]: NaN or inf where a row cannot be used.
    """
    flat = np.asarray(rows, np.float64).reshape(len(rows), -1)
    with np.errstate(all="ignore"):
        squares: Floats = np.einsum("ij,ij->i", flat, flat)
        squares *= 1 + (flat.shape[1] + 4) * _ROUNDINGS
        squares += np.where((flat != 0).any(axis=1), _TINY, 0.0)
    return squares


def clip_rows(rows: NDArray[Any], *, norm: Number) -> tuple[Floats, Floats]:
    """Scale each row down to an L2 norm of at most `norm`.

    The squares returned are those of the scaled rows as they are, roundings included,
    so that what is charged covers what is summed.

    Args:
        rows: number[people, ...].
        norm: The bound, positive and public.

    Returns:
        The rows, float64[people, ...], and their squared norms rounded up,
        float64[people]. Rows that cannot be clipped (NaN, inf) have squares that no
        tally admits.
    """
    longest = exact(norm, name="norm", low=SCALE_LOW, high=SCALE_HIGH)
    values = np.array(rows, np.float64)
    with np.errstate(all="ignore"):
        factors = np.minimum(1.0, float(longest) / np.sqrt(squared_norms(values)))
        values *= factors.reshape(-1, *([1] * (values.ndim - 1)))
    return values, squared_norms(values)


def gaussian_costs(bound: IndividualBound, squares: Floats, *, sigma: Number) -> Floats:
    """Return what a sum with Gaussian noise costs each person.

    Source: Feldman, Zrnic 2021 (arXiv 2008.11193), order * norm**2 / (2 sigma**2);
    gaussian: mu**2 = norm**2 / sigma**2. Proof:
    docs/derivations/individual.md#individual-filter.

    Assumes: the step releases the sum of rows over those who take part, plus Gaussian
    noise of standard deviation `sigma` per coordinate.

    Rounding: up, within a relative 1e-14.

    Checked by: tests/people/test_costs.py.

    Args:
        bound: Says in which measure, and at which order.
        squares: float64[people] from `clip_rows` or `squared_norms`.
        sigma: Standard deviation of the noise, public.
    """
    factor = _rate(bound) / _deviation(sigma) ** 2
    with np.errstate(all="ignore"):
        return np.asarray(squares * (float_up(factor) * (1 + _ROUNDINGS)), np.float64)


def sampled_gaussian_costs(
    bound: IndividualBound, squares: Floats, *, sigma: Number, rate: Number
) -> Floats:
    """Return what a Poisson-sampled sum with Gaussian noise costs each person.

    Everyone is charged, whether the sample took them or not, so everyone's squared
    norm is needed. The sample is drawn afresh and stays secret, its size included.

    Source: Mironov, Talwar, Zhang 2019 (arXiv 1908.10530) for whole orders;
    docs/derivations/notions.md#poisson-sampling. Between whole orders (order - 1) *
    divergence is convex, so it is interpolated. Never more than without sampling.

    Assumes: each person is sampled with probability `rate`, independently; rate and
    sigma are fixed before the draw.

    Rounding: up, within a relative 1e-11 at whole orders while the exponents stay
    below 709; beyond, the unsampled cost is charged.

    Checked by: tests/people/test_costs.py.

    Args:
        bound: In the RDP measure.
        squares: float64[people] from `clip_rows` or `squared_norms`.
        sigma: Standard deviation of the noise, public.
        rate: Sampling probability, in (0, 1), public.

    Raises:
        UnsupportedCost: In the gdp measure, where sampling has no sound price,
            and for orders above 512.
    """
    if bound.order is None or bound.order > _TERMS:
        msg = (
            "a Poisson-sampled Gaussian step needs a bound in the rdp measure, of "
            f"an order up to {_TERMS}; this is {bound!r}. Sampled Gaussians are not "
            "Gaussian DP."
        )
        raise UnsupportedCost(msg, theorem="individual", mechanism="sampled Gaussian")
    chance = exact(rate, name="rate", low=Fraction(0), high=Fraction(1))
    if chance in (0, 1):
        msg = f"rate must lie strictly between 0 and 1, got {rate!r}"
        raise InvalidCost(msg, name="rate", value=repr(rate))
    per_square = float_up(1 / _deviation(sigma) ** 2)
    pieces = _pieces(bound.order, chance)
    costs = gaussian_costs(bound, squares, sigma=sigma)
    scale = float_up(1 / (bound.order - 1)) * _WIDENED
    with np.errstate(all="ignore"):
        for start in range(0, costs.size, _BLOCK):
            block = slice(start, start + _BLOCK)
            ratio = squares[block] * per_square
            total = sum(share * _log_moment(ratio, terms) for share, terms in pieces)
            # minimum, not fmin: a square that is no number stays none.
            np.minimum(costs[block], total * scale, out=costs[block])
    return costs


def _rate(bound: IndividualBound) -> Fraction:
    return Fraction(1) if bound.order is None else bound.order / 2


def _deviation(sigma: Number) -> Fraction:
    return exact(sigma, name="sigma", low=SCALE_LOW, high=SCALE_HIGH)


def _pieces(order: Fraction, rate: Fraction) -> list[tuple[float, list[float]]]:
    """Return the whole orders around the order, by their share, with binomial terms."""
    below = math.floor(order)
    above_share = order - below
    shares = [(1 - above_share, below), (above_share, below + 1)]
    # Order one has (order - 1) * divergence = 0.
    return [
        (float_up(share), _binomial(integer, rate))
        for share, integer in shares
        if share and integer > 1
    ]


def _binomial(order: int, rate: Fraction) -> list[float]:
    """Return C(order, k) rate**k (1 - rate)**(order - k) for k from 2, rounded up."""
    return [
        float_up(math.comb(order, k) * rate**k * (1 - rate) ** (order - k))
        for k in range(2, order + 1)
    ]


def _log_moment(ratio: Floats, terms: list[float]) -> Floats:
    """Return log(1 + sum of terms[k] * (exp(k (k-1) ratio / 2) - 1))."""
    total = np.zeros_like(ratio)
    for k, term in enumerate(terms, start=2):
        total += term * np.expm1(ratio * (k * (k - 1) / 2))
    return np.log1p(total)
