"""Adversaries against the first rules, computed exactly and never sampled.

The privacy loss of randomized response lives on a lattice, so what an adversary can
reach is a finite recursion; that of Gaussians has a closed form. Each audit of a rule
of dpflow stands beside a wrong rule that the same audit catches.

Neighbours are P and Q; everything here is symmetric in the two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow import ApproxDP, Cost, Gaussian, PureDP
from dpflow.accounting import Filter, make_filter
from dpflow.rounding import from_units
from tests.accounting.oracle import MP, gaussian_delta, real, zcdp_log_delta
from tests.sizes import scaled

# -- what saturating sequences really leak -----------------------------------------


def true_delta(epsilon: Fraction, costs: list[Cost]) -> Any:
    """Return the exact delta at epsilon of a fixed sequence of worst-case steps.

    Gaussians add their mu**2. A pure step is randomized response. An (e, d)-DP step
    reveals everything with probability d and is randomized response otherwise, which
    no (e, d)-DP mechanism leaks more than (Kairouz, Oh, Viswanath 2015).
    """
    mu_squared = sum(
        ((c.sensitivity / c.sigma) ** 2 for c in costs if isinstance(c, Gaussian)),
        Fraction(0),
    )
    hidden, losses = MP.mpf(1), {Fraction(0): MP.mpf(1)}
    for cost in costs:
        if isinstance(cost, Gaussian):
            continue
        hidden *= 1 - real(getattr(cost, "delta", Fraction(0)))
        chance, moved = 1 / (1 + MP.exp(-real(cost.epsilon))), {}
        for loss, weight in losses.items():
            for step, part in ((1, chance), (-1, 1 - chance)):
                place = loss + step * cost.epsilon
                moved[place] = moved.get(place, 0) + weight * part
        losses = moved
    leaks = (
        weight * gaussian_delta(real(epsilon - loss), real(mu_squared))
        for loss, weight in losses.items()
        if mu_squared or loss > epsilon
    )
    return 1 - hidden + hidden * MP.fsum(leaks)


def loosened(rule: Filter) -> Filter:
    """Return the rule with its thresholds wrongly a thousandth larger."""
    rule.thresholds = tuple(t * 1001 // 1000 for t in rule.thresholds)
    return rule


def filled(rule: Filter, costs: Iterator[Cost] | list[Cost]) -> list[Cost]:
    """Return the steps that the rule admits, offered one by one."""
    tally, kept = rule.zero(), []
    for cost in costs:
        more = tally + rule.price(cost)
        if rule.admits(more):
            tally, kept = more, [*kept, cost]
    return kept


def gaussian_filled_up(rule: Filter, sigmas: list[int]) -> list[Cost]:
    """Return Gaussians that leave no room in the rule's first component."""
    kept = filled(rule, [Gaussian(sensitivity=1, sigma=sigma) for sigma in sigmas])
    spent = sum((rule.price(cost) for cost in kept), rule.zero())
    worth = rule.price(Gaussian(sensitivity=1, sigma=1)).amounts[0]  # mu**2 = 1
    rest = Fraction(rule.limit.amounts[0] - spent.amounts[0], worth)
    # Sigma is rounded up at the twentieth digit, so the step fits.
    sigma = Fraction(math.isqrt(math.floor(10**40 / rest)) + 1, 10**20)
    complete = filled(rule, [*kept, Gaussian(sensitivity=1, sigma=sigma)])
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
def test_gaussians_that_fill_a_filter_keep_delta(epsilon, delta, sigmas):
    """A full gdp filter leaks nearly its delta, a full zcdp filter less than that."""
    for theorem, least in (("gdp", 1 - MP.mpf("1e-10")), ("zcdp", MP.mpf("0.01"))):
        rule = make_filter(theorem, epsilon=epsilon, delta=delta)
        leaked = true_delta(rule.epsilon, gaussian_filled_up(rule, sigmas))
        assert real(rule.delta) * least < leaked <= real(rule.delta)


@targets
def test_a_gdp_threshold_a_thousandth_too_large_is_caught(epsilon, delta):
    """With 0.1 % more mu**2 the same audit finds more than delta."""
    rule = loosened(make_filter("gdp", epsilon=epsilon, delta=delta))
    leaked = true_delta(rule.epsilon, gaussian_filled_up(rule, [20]))
    assert leaked > real(rule.delta)


@targets
def test_a_zcdp_threshold_a_thousandth_too_large_is_caught(epsilon, delta):
    """A full filter proves delta at its best order; with 0.1 % more no order does."""
    for loose in (False, True):
        rule = make_filter("zcdp", epsilon=epsilon, delta=delta)
        costs = gaussian_filled_up(loosened(rule) if loose else rule, [20, 30])
        spent = sum((rule.price(cost) for cost in costs), rule.zero())
        log_delta = zcdp_log_delta(rule.epsilon, from_units(spent.amounts[0]))
        assert (log_delta > MP.log(real(rule.delta))) == loose
        assert loose or log_delta > MP.log(real(rule.delta)) - MP.mpf("1e-12")


@pytest.mark.parametrize("theorem", ["basic", "gdp", "zcdp"])
def test_randomized_responses_that_fill_a_filter_keep_delta(theorem):
    """The worst pure steps, as many as fit, leak at most delta at epsilon."""
    for epsilon, delta, step in (
        ("5", "1e-6", "0.1"),
        ("1", "1e-6", "0.1"),
        ("3", "0.05", "1"),
        ("2", "1e-3", "0.3"),
    ):
        rule = make_filter(theorem, epsilon=epsilon, delta=delta)
        kept = filled(rule, [PureDP(epsilon=step)] * 200)
        assert 0 < len(kept) < 200
        assert true_delta(rule.epsilon, kept) <= real(rule.delta)


def test_a_basic_threshold_a_thousandth_too_large_is_caught():
    """A full filter leaks at most delta; with 0.1 % more the audit finds more."""
    sizes = [("0.3", "3e-7"), ("0.25", "3e-7"), ("0.3", "0"), ("0.1", "3e-7")]
    sizes += [("0.05", "1e-7"), ("0.001", "1e-9")]
    steps = [ApproxDP(epsilon=e, delta=d) for e, d in sizes]
    rule = make_filter("basic", epsilon=1, delta="1e-6")
    kept = filled(rule, steps)
    assert sum(cost.epsilon for cost in kept) == 1
    assert sum(cost.delta for cost in kept) == rule.delta
    leaked = true_delta(rule.epsilon, kept)
    assert real(rule.delta) * (1 - MP.mpf("1e-6")) < leaked <= real(rule.delta)
    assert true_delta(rule.epsilon, filled(loosened(rule), steps)) > real(rule.delta)


# -- sums in floats ----------------------------------------------------------------


def admitted_by_floats(
    limits: tuple[float, ...], steps: list[tuple[float, ...]]
) -> int:
    """Count the steps that a filter admits which adds up floats."""
    sums, count = [0.0] * len(limits), 0
    for step in steps:
        after = [a + b for a, b in zip(sums, step, strict=True)]
        if all(a <= b for a, b in zip(after, limits, strict=True)):
            sums, count = after, count + 1
    return count


def test_float_sums_of_deltas_are_caught():
    """A full float budget admits any number of crumbs, and leaks more than delta."""
    full = ApproxDP(epsilon="0.5", delta="1e-6")
    crumb = ApproxDP(epsilon="1e-12", delta="1e-23")
    steps = [(0.5, 1e-6)] + [(1e-12, 1e-23)] * 10_000
    assert admitted_by_floats((1.0, 1e-6), steps) == len(steps)
    leaked = 1 - (1 - real(full.delta)) * (1 - real(crumb.delta)) ** 10_000
    assert leaked > real(Fraction("1e-6"))
    rule = make_filter("basic", epsilon=1, delta="1e-6")
    assert filled(rule, [full, crumb, crumb]) == [full]


def test_float_sums_of_mus_are_caught():
    """The same crumbs as Gaussians of sigma 1e9 exceed delta under float sums."""
    rule = make_filter("gdp", epsilon=1, delta="1e-6")
    full = gaussian_filled_up(rule, [20, 7])
    crumb = Gaussian(sensitivity=1, sigma=10**9)
    prices = [float(from_units(rule.price(cost).amounts[0])) for cost in full]
    limit = math.fsum(prices)
    steps = [(price,) for price in prices] + [(1e-18,)] * 10_000
    assert admitted_by_floats((limit,), steps) == len(steps)
    assert true_delta(rule.epsilon, [*full, *[crumb] * 10_000]) > real(rule.delta)
    assert filled(rule, [*full, crumb]) == full
