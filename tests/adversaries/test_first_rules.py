"""Adversaries against the first rules, computed exactly and never sampled.

The privacy loss of randomized response lives on a lattice, so what an adversary can
reach is a finite recursion; that of Gaussians has a closed form. Each audit of a rule
of dpflow stands beside a wrong rule that the same audit catches.

Neighbours are P and Q; everything here is symmetric in the two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow import ApproxDP, Gaussian, PureDP
from dpflow.accounting import Filter, make_filter
from dpflow.accounting.costs.base import Cost
from dpflow.rounding import UNITS, from_units
from tests.adversaries.loosened import MP, loosened, real, true_delta
from tests.sizes import scaled

# -- odometers: the loss must stay below the reading at every time -----------------


def filled(rule: Filter, costs: Iterator[Cost] | list[Cost]) -> list[Cost]:
    """Return the steps that the rule admits, offered one by one."""
    tally, kept = rule.zero(), []
    for cost in costs:
        more = tally + rule.price(cost)
        if rule.admits(more):
            tally, kept = more, [*kept, cost]
    return kept


def last_gaussian(rule: Filter, kept: list[Cost], worth: int) -> Gaussian:
    """Return the Gaussian that uses up the rest of the first component.

    Args:
        rule: The rule whose limit it fills.
        kept: What was admitted so far.
        worth: Units of the component that mu**2 = 1 costs.
    """
    spent = sum((rule.price(cost) for cost in kept), rule.zero())
    rest = Fraction(rule.limit.amounts[0] - spent.amounts[0], worth)
    # Sigma is rounded up at the twentieth digit, so the step fits.
    digits = math.isqrt(math.floor(10**40 / rest)) + 1
    return Gaussian(sensitivity=1, sigma=Fraction(digits, 10**20))


def gaussian_filled_up(rule: Filter, sigmas: list[int], worth: int) -> list[Cost]:
    """Return Gaussians that leave no room in the rule's first component."""
    kept = filled(rule, [Gaussian(sensitivity=1, sigma=sigma) for sigma in sigmas])
    complete = filled(rule, [*kept, last_gaussian(rule, kept, worth)])
    assert len(complete) == len(kept) + 1
    return complete


TARGETS = [
    ("1", "1e-6"),
    ("5", "1e-6"),
    ("0.1", "1e-9"),
    ("20", "0.01"),
    ("1", "1e-30"),
]
targets = pytest.mark.parametrize(("epsilon", "delta"), TARGETS)
sigma_lists = st.lists(st.integers(2, 300), max_size=30)


@targets
@settings(max_examples=scaled(5))
@given(sigmas=sigma_lists)
def test_gaussians_that_fill_the_gdp_filter_keep_delta(epsilon, delta, sigmas):
    """The exact delta of a full filter is at most the budget, and nearly all of it."""
    rule = make_filter("gdp", epsilon=epsilon, delta=delta)
    leaked = true_delta(rule.epsilon, gaussian_filled_up(rule, sigmas, UNITS))
    assert leaked <= real(rule.delta)
    assert leaked > real(rule.delta) * (1 - MP.mpf(10) ** -10)


@targets
def test_a_gdp_threshold_a_thousandth_too_large_is_caught(epsilon, delta):
    """With 0.1 % more mu**2 the same audit finds more than delta."""
    rule = make_filter("gdp", epsilon=epsilon, delta=delta)
    loosened(rule, Fraction(1001, 1000))
    assert true_delta(rule.epsilon, gaussian_filled_up(rule, [20], UNITS)) > real(
        rule.delta
    )


@targets
@settings(max_examples=scaled(5))
@given(sigmas=sigma_lists)
def test_gaussians_that_fill_the_zcdp_filter_keep_delta(epsilon, delta, sigmas):
    """The exact delta of a full filter is below the budget, which zCDP never fills."""
    rule = make_filter("zcdp", epsilon=epsilon, delta=delta)
    leaked = true_delta(rule.epsilon, gaussian_filled_up(rule, sigmas, UNITS // 2))
    assert real(rule.delta) / 100 < leaked <= real(rule.delta)


def zcdp_delta(epsilon: Fraction, rho: Fraction) -> Any:
    """Return the least delta that any order of CKS Prop. 12 proves for rho-zCDP."""
    eps, r = real(epsilon), real(rho)

    def log_delta(log_excess: Any) -> Any:
        a = 1 + MP.exp(log_excess)
        return (a - 1) * (a * r - eps) - log_excess + a * MP.log1p(-1 / a)

    # In the order the logarithm is convex: bisection on its derivative.
    low, high = MP.mpf(-100), MP.mpf(100)
    for _ in range(260):
        middle = (low + high) / 2
        a = 1 + MP.exp(middle)
        if (2 * a - 1) * r - eps + MP.log1p(-1 / a) > 0:
            high = middle
        else:
            low = middle
    return MP.exp(log_delta(low))


@targets
def test_a_zcdp_threshold_a_thousandth_too_large_is_caught(epsilon, delta):
    """A full filter proves delta at its best order; with 0.1 % more no order does."""
    rule = make_filter("zcdp", epsilon=epsilon, delta=delta)
    spent = sum(
        (rule.price(c) for c in gaussian_filled_up(rule, [20, 30], UNITS // 2)),
        rule.zero(),
    )
    proved = zcdp_delta(rule.epsilon, from_units(spent.amounts[0]))
    assert real(rule.delta) * (1 - MP.mpf(10) ** -12) < proved <= real(rule.delta)
    more = from_units(spent.amounts[0]) * Fraction(1001, 1000)
    assert zcdp_delta(rule.epsilon, more) > real(rule.delta)


@pytest.mark.parametrize("theorem", ["basic", "gdp", "zcdp"])
@pytest.mark.parametrize(
    ("epsilon", "delta", "step"),
    [
        ("5", "1e-6", "0.1"),
        ("1", "1e-6", "0.1"),
        ("3", "0.05", "1"),
        ("2", "1e-3", "0.3"),
    ],
)
def test_randomized_responses_that_fill_a_filter_keep_delta(
    theorem, epsilon, delta, step
):
    """The worst pure steps, as many as fit, leak at most delta at epsilon."""
    rule = make_filter(theorem, epsilon=epsilon, delta=delta)
    kept = filled(rule, [PureDP(epsilon=step)] * 200)
    assert 0 < len(kept) < 200
    assert true_delta(rule.epsilon, kept) <= real(rule.delta)


def basic_filled_up(rule: Filter) -> list[Cost]:
    """Return worst-case steps of several sizes that leave no room in a basic filter."""
    sizes = [("0.3", "3e-7"), ("0.25", "3e-7"), ("0.3", "0"), ("0.1", "3e-7")]
    ends = [("0.05", "1e-7"), ("0.001", "1e-9")]
    return filled(rule, [ApproxDP(epsilon=e, delta=d) for e, d in [*sizes, *ends]])


def test_steps_that_fill_the_basic_filter_keep_delta():
    """Leaks add up to at most delta and no path of answers exceeds epsilon."""
    rule = make_filter("basic", epsilon=1, delta="1e-6")
    kept = basic_filled_up(rule)
    assert sum(cost.epsilon for cost in kept) == 1
    assert sum(cost.delta for cost in kept) == rule.delta
    leaked = true_delta(rule.epsilon, kept)
    assert real(rule.delta) * (1 - MP.mpf(10) ** -6) < leaked <= real(rule.delta)


def test_a_basic_threshold_a_thousandth_too_large_is_caught():
    """With 0.1 % more the same audit finds more than delta."""
    rule = loosened(make_filter("basic", epsilon=1, delta="1e-6"), Fraction(1001, 1000))
    assert true_delta(rule.epsilon, basic_filled_up(rule)) > real(rule.delta)


# -- sums in floats ----------------------------------------------------------------


@dataclass
class FloatSums:
    """A filter that adds up floats, as many accountants do.

    Args:
        limits: Threshold of each component.
    """

    limits: tuple[float, ...]

    def admitted(self, steps: list[tuple[float, ...]]) -> int:
        """Count how many steps fit, refusing only those that do not."""
        sums, count = [0.0] * len(self.limits), 0
        for step in steps:
            after = [a + b for a, b in zip(sums, step, strict=True)]
            if all(a <= b for a, b in zip(after, self.limits, strict=True)):
                sums, count = after, count + 1
        return count


def test_float_sums_of_deltas_are_caught():
    """A full float budget admits crumbs for ever; the audit finds more than delta."""
    full = ApproxDP(epsilon="0.5", delta="1e-6")
    crumb = ApproxDP(epsilon="1e-12", delta="1e-23")
    steps = [(0.5, 1e-6)] + [(1e-12, 1e-23)] * 10_000
    assert FloatSums((1.0, 1e-6)).admitted(steps) == len(steps)
    leaked = 1 - (1 - real(full.delta)) * (1 - real(crumb.delta)) ** 10_000
    assert leaked > real(Fraction("1e-6"))
    rule = make_filter("basic", epsilon=1, delta="1e-6")
    assert filled(rule, [full, crumb, crumb]) == [full]


def test_float_sums_of_mus_are_caught():
    """The same crumbs as Gaussians of sigma 1e9 exceed delta under float sums."""
    rule = make_filter("gdp", epsilon=1, delta="1e-6")
    full = gaussian_filled_up(rule, [20, 7], UNITS)
    crumb = Gaussian(sensitivity=1, sigma=10**9)
    prices = [float(from_units(rule.price(cost).amounts[0])) for cost in full]
    limit = math.fsum(prices)
    steps = [(price,) for price in prices] + [(1e-18,)] * 10_000
    assert FloatSums((limit,)).admitted(steps) == len(steps)
    assert true_delta(rule.epsilon, [*full, *[crumb] * 10_000]) > real(rule.delta)
    assert filled(rule, [*full, crumb]) == full
