"""Least mu and rho of responses and of Laplace noise, continuous and discrete.

Each price is compared with 50-digit numbers, with the exact laws of the mechanism, and
with a smaller price that the same comparison refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import mpmath
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dpflow.accounting import make_filter
from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.noise import (
    DiscreteLaplace,
    Gaussian,
    Laplace,
    RandomizedResponse,
)
from dpflow.accounting.costs.notions import PureDP
from dpflow.accounting.curves.prices import approx_zcdp, gdp_mu_squared, renyi
from tests.sizes import scaled

MP = mpmath.mp.clone()
MP.dps = 120

#: Pairs (P, Q) of the probabilities of each output.
Law = list[tuple[object, object]]


def real(value: Fraction | int | str) -> object:
    """Return an exact number in 120-digit arithmetic."""
    fraction = Fraction(value)
    return MP.mpf(fraction.numerator) / fraction.denominator


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


# 50 digits, by inverse error functions and by golden section over the orders.
@pytest.mark.parametrize(
    ("cost", "mu_squared", "rho"),
    [
        (
            RandomizedResponse(epsilon=1, categories=3),
            "0.98341325231875327687639212179230042695439200133819",
            "0.36417532714874366478747838545775052861890693750172",
        ),
        (
            RandomizedResponse(epsilon=1, categories=100),
            "0.16115710610583179875492277813564441436705117002124",
            "0.061138212222597666312847386206495627229221661274014",
        ),
        (
            RandomizedResponse(epsilon="0.1", categories=10),
            "0.0033180377467741286618614946469406868573866083690902",
            "0.0011806219118668718431738815611525827716601772917354",
        ),
        (
            DiscreteLaplace(sensitivity=2, scale=2),
            "1.1111763410520841283698658638253202200871245536458",
            "0.39346934028736657639620046500881954655808186451281",
        ),
        (
            DiscreteLaplace(sensitivity=10, scale=5),
            "3.2587591884969845046907603651355748504461020790299",
            "1.1410729269973425487477663374883800606427494016998",
        ),
        (
            Laplace(sensitivity=1, epsilon="0.1"),
            "0.01496363292638561955245581830774543000076540100357",
            "0.004837418035959573164249059446436621194705360980401",
        ),
        (
            Laplace(sensitivity=1, epsilon=2),
            "3.2432595151669566127373280481022044248289422440969",
            "1.1353352832366126918939994949724844034076315459096",
        ),
    ],
)
def test_vectors(cost: Cost, mu_squared: str, rho: str) -> None:
    """To 28 digits, from above."""
    for price, text in ((gdp_mu_squared(cost), mu_squared), (rho_of(cost), rho)):
        assert 0 <= price / Fraction(text) - 1 < Fraction(1, 10**28)


def rho_of(cost: Cost) -> Fraction:
    """Return the rho that a step is charged."""
    rho, delta = approx_zcdp(cost)
    assert delta == 0
    return rho


@pytest.mark.parametrize("cost", [*RESPONSES, *SHIFTS], ids=repr)
def test_the_mu_is_what_the_best_tests_need(cost: Cost) -> None:
    """Every test of the exact law is within the Gaussians', one just so."""
    mu = MP.sqrt(real(gdp_mu_squared(cost)))
    needed = needed_mu(law_of(cost))
    assert needed <= mu * (1 + MP.mpf("1e-35"))
    assert mu <= needed * (1 + MP.mpf("1e-25"))


@pytest.mark.parametrize("cost", [*RESPONSES, *SHIFTS], ids=repr)
def test_the_rho_is_what_the_worst_order_needs(cost: Cost) -> None:
    """No order diverges more; one nearly as much."""
    rho = real(rho_of(cost))
    needed = needed_rho(law_of(cost))
    assert needed <= rho
    assert rho <= needed * (1 + MP.mpf("3e-4"))


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


@settings(max_examples=scaled(15), deadline=None)
@given(
    epsilon=st.fractions("1/1000", 20, max_denominator=1000),
    categories=st.integers(2, 10**9),
)
@example(epsilon=Fraction(1, 10**12), categories=10**12)
@example(epsilon=Fraction(10**4), categories=10**12)
@example(epsilon=Fraction(10**4), categories=2)
def test_more_categories_never_cost_more(epsilon: Fraction, categories: int) -> None:
    """Two are the pure step; divergences of single orders stay below the rho."""
    cost = RandomizedResponse(epsilon=epsilon, categories=categories)
    fewer = RandomizedResponse(epsilon=epsilon, categories=max(categories // 2, 2))
    slack = 1 + Fraction(3, 10**30)
    for price in (rho_of, gdp_mu_squared):
        assert 0 < price(cost) <= price(fewer) * slack
        assert price(cost) <= price(PureDP(epsilon=epsilon))
    assert rho_of(cost) <= gdp_mu_squared(cost) / 2 * slack
    for order in (Fraction("1.001"), Fraction(2), Fraction(30), Fraction(10**5)):
        assert renyi(cost, order) <= order * rho_of(cost) * slack


@settings(max_examples=scaled(15), deadline=None)
@given(
    shift=st.integers(1, 10**6), epsilon=st.fractions("1/90", 200, max_denominator=99)
)
@example(shift=10**15, epsilon=Fraction(1, 10**9))
@example(shift=10**15, epsilon=Fraction(10**6))
@example(shift=1, epsilon=Fraction(10**4))
def test_discrete_noise_lies_between_its_relatives(
    shift: int, epsilon: Fraction
) -> None:
    """Above continuous noise, below a pure step; divergences stay below the rho."""
    cost = DiscreteLaplace(sensitivity=shift, scale=shift / epsilon)
    smooth = Laplace(sensitivity=shift, scale=shift / epsilon)
    slack = 1 + Fraction(3, 10**30)
    for price in (rho_of, gdp_mu_squared):
        assert price(smooth) <= price(cost) * slack
    if epsilon <= 10**4:
        for price in (rho_of, gdp_mu_squared):
            assert price(cost) <= price(PureDP(epsilon=epsilon)) * slack
    assert rho_of(cost) <= gdp_mu_squared(cost) / 2 * slack
    for order in (Fraction("1.001"), Fraction(2), Fraction(30), Fraction(10**5)):
        assert renyi(cost, order) <= order * rho_of(cost) * slack


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
def test_no_vector_is_worse_than_one_number(
    shifts: tuple[int, ...], decay: Fraction
) -> None:
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


@pytest.mark.parametrize("shifts", [(1, 1), (2, 1), (5, 2)])
@pytest.mark.parametrize("scale", ["0.2", "1", "30"])
def test_a_vector_keeps_the_mu_of_one_number(
    shifts: tuple[int, int], scale: str
) -> None:
    """Though mu squared of its parts may sum to more than that of the whole."""
    cost = DiscreteLaplace(sensitivity=sum(shifts), scale=scale)
    decay = MP.exp(-real(1 / cost.scale))
    law = product(*(discrete_laplace(shift, decay) for shift in shifts))
    assert needed_mu(law) ** 2 <= real(gdp_mu_squared(cost)) * (1 + MP.mpf("1e-30"))


# -- continuous Laplace noise ------------------------------------------------------


def laplace_needs(epsilon: object, at: object) -> object:
    """Return the mu that the test "loss of at least `at`" needs."""
    with MP.workdps(40):
        p = MP.exp((at - epsilon) / 2) / 2
        q = MP.exp(-(at + epsilon) / 2) / 2
        return -quantile(MP, p, 1 - p) - quantile(MP, q, 1 - q)


@pytest.mark.parametrize("epsilon", ["0.01", "0.5", "1", "5", "60"])
def test_laplace_noise_needs_its_mu(epsilon: str) -> None:
    """At the middle test just so, at all others less."""
    eps = real(epsilon)
    mu = MP.sqrt(real(gdp_mu_squared(Laplace(sensitivity=1, epsilon=epsilon))))
    for part in range(-9, 10):
        assert laplace_needs(eps, eps * part / 10) <= mu * (1 + MP.mpf("1e-30"))
    assert mu <= laplace_needs(eps, MP.mpf(0)) * (1 + MP.mpf("1e-25"))


def test_what_exact_prices_win() -> None:
    """More steps under the rules that use them; Gaussians as before."""
    rule = make_filter("gdp", epsilon=5, delta="1e-6")

    def steps(cost: Cost) -> int:
        return rule.thresholds[0] // rule.price(cost).amounts[0]

    assert steps(PureDP(epsilon=1)) == 0
    assert steps(RandomizedResponse(epsilon=1, categories=10)) == 2
    assert steps(PureDP(epsilon="0.5")) == 2
    assert steps(Laplace(sensitivity=1, epsilon="0.5")) == 3
    assert steps(Gaussian(sensitivity=1, sigma=20)) == 416
