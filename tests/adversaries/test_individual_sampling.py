"""The individual filter with Poisson sampling, against an adversary, by quadrature.

One person may be there. Each step publishes their row, if the sample drew them, plus
Gaussian noise: laws (1 - q) N(0, s^2) + q N(c, s^2) and N(0, s^2). The adversary sees
whether the outcome was high or low and chooses the next row's length c and noise s. The
tally decides whether the person can pay. Given the past, the outcomes above and below
the cut have moments of the density ratio that are integrals in one dimension; along the
tree of highs and lows they multiply, so the divergence of the whole transcript is
computed without sampling. It must not pass the bound, in either direction, on any tree.

The classic mistakes go through the same audit and fail it: charging the first term of
the price's expansion only, and paying the sampled price without sampling.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pytest
from scipy import integrate

from dpflow.accounting.rules.individual import IndividualBound
from dpflow.people import PrivateTally, gaussian_costs, sampled_gaussian_costs
from tests.sizes import spread

ORDER = 8
ROUNDING = 1 + 1e-7
#: High or low, so far.
Path = tuple[bool, ...]
#: Chooses (length of the row, noise) of the next step.
Adversary = Callable[[Path], tuple[float, float]]


def shipped(bound, squares, sigma, rate):
    """Charge what dpflow charges."""
    return sampled_gaussian_costs(bound, squares, sigma=sigma, rate=rate)


def first_term(bound, squares, sigma, rate):
    """Charge rate^2 times the price without sampling: the mistake of small rates."""
    return gaussian_costs(bound, squares, sigma=sigma) * rate**2


@lru_cache(maxsize=4096)
def moments(c: float, s: float, rate: float) -> dict[tuple[bool, bool], float]:
    """Return integrals of there^a absent^(1-a) (or turned) above and below the cut.

    Keys: (whether the person's law is on top, high). The cut is half of the row.
    """
    cut = c / 2

    def ratio(y: float) -> float:
        return 1 - rate + rate * math.exp((2 * c * y - c * c) / (2 * s * s))

    def density(y: float) -> float:
        return math.exp(-y * y / (2 * s * s)) / (s * math.sqrt(2 * math.pi))

    # ratio^a times the density has its mass up to a * c, ratio^(1-a) below it.
    far = ORDER * c + 14 * s
    result = {}
    for top, power in ((True, ORDER), (False, 1 - ORDER)):
        for high, ends in ((True, (cut, far)), (False, (-far, cut))):
            value, error = integrate.quad(
                lambda y, power=power: density(y) * ratio(y) ** power,
                *ends,
                epsabs=0,
                epsrel=1e-11,
                limit=400,
            )
            assert error <= 1e-9 * value
            result[top, high] = value
    return result


def divergence(bound, adversary, rounds, rate, price, *, drawn=None):
    """Return the larger divergence of the transcripts with and without the person.

    Args:
        bound: What the person may lose, at `ORDER`.
        adversary: Chooses the steps.
        rounds: How many there are.
        rate: The rate that is paid for.
        price: What a step costs.
        drawn: The rate at which the person is really drawn; default: the rate.
    """
    public = IndividualBound(measure="rdp", order=ORDER, bound=bound)

    def active(path: Path) -> bool:
        tally = PrivateTally(public, people=1)
        for t in range(len(path) + 1):
            c, s = adversary(path[:t])
            mask = tally.admit(price(public, np.array([c * c]), s, rate))
        return bool(mask.apply(np.ones(1))[0])

    def total(path: Path, top: bool) -> float:
        if len(path) == rounds:
            return 1.0
        c, s = adversary(path)
        there = active(path)
        parts = moments(c if there else 0.0, s, rate if drawn is None else drawn)
        # Without the person's row both laws are one, cut at c / 2 all the same.
        if not there:
            high = 0.5 * math.erfc(c / 2 / (s * math.sqrt(2)))
            parts = {(top, True): high, (top, False): 1 - high}
        return sum(
            parts[top, high] * total((*path, high), top) for high in (True, False)
        )

    return max(math.log(total((), top)) / (ORDER - 1) for top in (True, False))


def steady(c: float, s: float) -> Adversary:
    """The same step again and again."""
    return lambda _: (c, s)


def chosen(seed: int) -> Adversary:
    """Rows and noise that depend on everything published so far."""

    def choose(path: Path) -> tuple[float, float]:
        generator = np.random.default_rng([seed, len(path), *map(int, path)])
        return float(generator.uniform(0.2, 1)), float(generator.uniform(1.5, 4))

    return choose


def cost_of(c: float, s: float, rate: float) -> float:
    """Return the price of one step."""
    one = IndividualBound(measure="rdp", order=ORDER, bound=1)
    return float(shipped(one, np.array([c * c]), s, rate)[0])


@pytest.mark.parametrize("seed", spread(range(5), 2))
@pytest.mark.parametrize("rate", [0.05, 0.3])
def test_no_adversary_exceeds_the_bound(seed: int, rate: float) -> None:
    """Five steps whose rows and noise follow what was published."""
    bound = 2.5 * cost_of(0.8, 2, rate)
    assert 0 < divergence(bound, chosen(seed), 5, rate, shipped) <= bound * ROUNDING


@pytest.mark.parametrize(("rate", "s"), [(0.1, 1.5), (0.3, 2), (0.02, 2)])
def test_the_bound_is_spent_to_the_last(rate: float, s: float) -> None:
    """Equal steps that fill it lose all of it; more steps lose no more."""
    bound = 3 * cost_of(1, s, rate) * (1 + 1e-12)
    exact = divergence(bound, steady(1, s), 3, rate, shipped)
    assert 0.999999 * bound < exact <= bound * ROUNDING
    more = divergence(bound, steady(1, s), 6, rate, shipped)
    assert more == pytest.approx(exact, rel=1e-6)


def test_the_first_term_alone_is_caught() -> None:
    """Negative control: rate^2 times the price without sampling is too little."""
    rate, s = 0.1, 1.0
    public = IndividualBound(measure="rdp", order=ORDER, bound=1)
    little = float(first_term(public, np.array([1.0]), s, rate)[0])
    assert little < cost_of(1, s, rate)
    bound = 3 * little * (1 + 1e-12)
    assert divergence(bound, steady(1, s), 3, rate, first_term) > 1.2 * bound


def test_paying_for_a_sample_without_one_is_caught() -> None:
    """Negative control: all rows are summed, but the sampled price is paid."""
    rate, s = 0.3, 2.0
    bound = 3 * cost_of(1, s, rate) * (1 + 1e-12)
    assert divergence(bound, steady(1, s), 3, rate, shipped, drawn=1.0) > 2 * bound
