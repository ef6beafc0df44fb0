"""Least mu and rho of responses and of Laplace noise, continuous and discrete.

Each price is compared with 50-digit numbers, with the exact laws of the mechanism, and
with a smaller price that the same comparison refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import pytest

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.noise import DiscreteLaplace, Laplace, RandomizedResponse
from dpflow.accounting.curves.prices import approx_zcdp, gdp_mu_squared
from tests.accounting.oracle import arithmetic

MP, real = arithmetic(120)

#: Pairs (P, Q) of the probabilities of each output.
Law = list[tuple[object, object]]


def response(epsilon: object, categories: int) -> Law:
    """Return the law of a randomized response, all ties in one output."""
    other = 1 / (MP.exp(epsilon) + categories - 1)
    truth = MP.exp(epsilon) * other
    ties = (categories - 2) * other
    tied = [(ties, ties)] if ties else []
    return [(truth, other), *tied, (other, truth)]


def discrete_laplace(shift: int, decay: object) -> Law:
    """Return the law of discrete Laplace noise, each tail in one output."""
    whole, inner = 1 / (1 + decay), (1 - decay) / (1 + decay)
    law = [(inner * decay**i, inner * decay ** (shift - i)) for i in range(1, shift)]
    return [(whole, decay**shift * whole), *law, (decay**shift * whole, whole)]


def law_of(cost: Cost) -> Law:
    """Return the exact law of a mechanism with finitely many losses."""
    if isinstance(cost, RandomizedResponse):
        return response(real(cost.epsilon), cost.categories)
    assert isinstance(cost, DiscreteLaplace)
    return discrete_laplace(int(cost.sensitivity), MP.exp(-real(1 / cost.scale)))


def quantile(mp: object, probability: object, rest: object) -> object:
    """Return where the normal law reaches a probability; the rest is 1 less it."""
    small = min(probability, rest)
    # erfinv of 1 less something small needs its digits.
    x = mp.findroot(
        lambda y: mp.log(mp.erfc(y / mp.sqrt(2)) / 2) - mp.log(small),
        mp.sqrt(-2 * mp.log(2 * small)) if small < 0.4 else mp.mpf(1) / 10,
    )
    return -x if probability <= rest else x


def needed_mu(law: Law) -> object:
    """Return the mu that the best tests of a law need."""
    with MP.workdps(40):
        ordered = sorted(law, key=lambda pair: pair[0] / pair[1], reverse=True)
        needed = MP.mpf(0)
        for end in range(1, len(ordered)):
            kept, left = ordered[:end], ordered[end:]
            p, q = MP.fsum(x for x, _ in kept), MP.fsum(x for _, x in kept)
            not_p, not_q = MP.fsum(x for x, _ in left), MP.fsum(x for _, x in left)
            needed = max(needed, quantile(MP, p, not_p) - quantile(MP, q, not_q))
        return needed


def moment(law: Law, order: object) -> object:
    """Return the divergence of an order, by its definition."""
    total = MP.fsum(p * (p / q) ** (order - 1) for p, q in law)
    return MP.log(total) / (order - 1)


def orders() -> Iterator[object]:
    """Yield orders from next to 1 to ten thousand."""
    for power in range(-300, 200):
        yield 1 + MP.mpf(10) ** (MP.mpf(power) / 50)


def needed_rho(law: Law) -> object:
    """Return the largest divergence over its order, on a fine grid of orders."""
    return max(moment(law, order) / order for order in orders())


RESPONSES = [
    RandomizedResponse(epsilon="0.01", categories=50),
    RandomizedResponse(epsilon="0.1", categories=10),
    RandomizedResponse(epsilon=1),
    RandomizedResponse(epsilon=1, categories=3),
    RandomizedResponse(epsilon=1, categories=100),
    RandomizedResponse(epsilon=3, categories=7),
    RandomizedResponse(epsilon=9, categories=10**6),
]
SHIFTS = [
    DiscreteLaplace(sensitivity=1, epsilon="0.1"),
    DiscreteLaplace(sensitivity=2, scale=2),
    DiscreteLaplace(sensitivity=3, scale="0.2"),
    DiscreteLaplace(sensitivity=10, scale=5),
    DiscreteLaplace(sensitivity=7, scale=100),
]


def rho_of(cost: Cost) -> Fraction:
    """Return the rho that a step is charged."""
    rho, delta = approx_zcdp(cost)
    assert delta == 0
    return rho


@pytest.mark.parametrize("cost", [*RESPONSES, *SHIFTS], ids=repr)
def test_the_mu_and_rho_are_what_the_best_tests_and_orders_need(cost: Cost) -> None:
    """Every test of the exact law is within the Gaussians', one just so."""
    mu = MP.sqrt(real(gdp_mu_squared(cost)))
    needed = needed_mu(law_of(cost))
    assert needed <= mu * (1 + MP.mpf("1e-35"))
    assert mu <= needed * (1 + MP.mpf("1e-25"))
    # No order diverges more than the rho; one nearly as much.
    rho, needed = real(rho_of(cost)), needed_rho(law_of(cost))
    assert needed <= rho <= needed * (1 + MP.mpf("3e-4"))


def test_cheaper_prices_are_noticed() -> None:
    """The mean loss of many categories; continuous noise for discrete; a smaller mu."""
    many = law_of(RandomizedResponse(epsilon="0.1", categories=100))
    mean_loss = MP.fsum(p * MP.log(p / q) for p, q in many)
    assert needed_rho(many) > 5 * mean_loss
    whole, smooth = (
        DiscreteLaplace(sensitivity=2, scale=2),
        Laplace(sensitivity=2, scale=2),
    )
    assert needed_rho(law_of(whole)) > 1.05 * real(rho_of(smooth))
    assert needed_mu(law_of(whole)) ** 2 > 1.04 * real(gdp_mu_squared(smooth))
    for cost in (*RESPONSES, *SHIFTS):
        less = MP.sqrt(real(gdp_mu_squared(cost)) * MP.mpf("0.999"))
        assert needed_mu(law_of(cost)) > less


# -- vectors -----------------------------------------------------------------------


def product(first: Law, second: Law) -> Law:
    """Return the law of two independent outputs."""
    return [(p * r, q * s) for p, q in first for r, s in second]


def deltas(law: Law, decay: Fraction, reach: int) -> list[Fraction]:
    """Return delta exactly, at whole multiples of 1 / scale and in between."""
    found = []
    for double in range(-2 * reach - 2, 2 * reach + 3):
        low = decay ** (-(double // 2))
        grown = low if double % 2 == 0 else low * (1 + 1 / decay) / 2
        found.append(sum(max(p - grown * q, 0) for p, q in law))
    return found


@pytest.mark.parametrize("decay", [Fraction(1, 50), Fraction(2, 3), Fraction(99, 100)])
@pytest.mark.parametrize("shifts", [(1, 1), (2, 1), (3, 3), (5, 2), (2, 2, 1)])
def test_no_vector_is_worse_than_one_number(shifts, decay):
    """In whole numbers and fractions of them; a shift by one less would be too few."""
    law = discrete_laplace(shifts[0], decay)
    for shift in shifts[1:]:
        law = product(law, discrete_laplace(shift, decay))
    whole = sum(shifts)
    found = deltas(law, decay, whole)
    for one, other in zip(
        found, deltas(discrete_laplace(whole, decay), decay, whole), strict=True
    ):
        assert one <= other
    less = deltas(discrete_laplace(whole - 1, decay), decay, whole)
    assert any(one > other for one, other in zip(found, less, strict=True))
