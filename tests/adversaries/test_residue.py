"""The best adaptive adversary against the filter residue, by exact backward induction.

Before each step the adversary sees all outputs and takes a randomized response of its
menu, or a last Gaussian that uses up what is left, or stops. The value of the game is
the mean of max(0, 1 - exp(epsilon - loss)): the true delta of the whole at epsilon.
"""

from __future__ import annotations

import math
import random
from fractions import Fraction
from functools import cache, partial

import numpy as np
import pytest
from scipy.special import log_ndtr, ndtr

from dpflow import ExponentialMechanism, PureDP, RandomizedResponse
from dpflow.accounting import make_filter
from dpflow.accounting.rules.residue import ResidueFilter
from dpflow.accounting.rules.residue_charge import RESPONSE, residue_charge
from dpflow.accounting.rules.tally import Tally
from dpflow.rounding import UNITS
from tests.sizes import scaled
from tests.tables import read_tables

#: Of the hundred menus, and of each how deep a tree may become.
MENUS, MOST_NODES = 100, 400_000


class TooLittle(ResidueFilter):
    """Negative control: charges 5 % too small."""

    def price(self, cost, used=None):
        """Return 95 % of the charge."""
        return Tally(tuple(19 * n // 20 for n in super().price(cost, used).amounts))


def divergence(m, x):
    """Return the hockey-stick divergence of a Gaussian of mu**2 = m at x."""
    if m <= 0:
        return max(-math.expm1(x), 0.0) if x < 0 else 0.0
    mu = math.sqrt(m)
    upper = float(ndtr(mu / 2 - x / mu))
    return upper - math.exp(x + float(log_ndtr(-mu / 2 - x / mu)))


def response(size, x):
    """Return the hockey-stick divergence of a randomized response at x."""
    up = 1 / (1 + math.exp(-size))
    gains = [max(0.0, -math.expm1(x - loss)) for loss in (size, -size)]
    return up * gains[0] + (1 - up) * gains[1]


def mean_after_gaussian(after, m, epsilon):
    """Return the mean of what follows a Gaussian of mu**2 = m, by a sum."""
    losses = np.linspace(-6, 6, 4001) * math.sqrt(m) + m / 2
    weights = np.exp(-((losses - m / 2) ** 2) / (2 * m))
    weights /= weights.sum()
    return float(weights @ [after(epsilon - loss) for loss in losses])


def true_delta(rule, menu, *, gaussian=True):
    """Return the value of the game; losses are kept in millionths, exactly.

    Args:
        rule: What must admit each step.
        menu: Epsilons of randomized responses, or costs with the chance and the loss of
            each output.
        gaussian: Whether the last step may be a Gaussian that uses up the rest.
    """
    moves = [each if isinstance(each, tuple) else response_of(each) for each in menu]
    epsilon, most = float(rule.epsilon), rule.thresholds[0]

    @cache
    def value(used, loss):
        spare = epsilon - loss / 10**6
        best = max(0.0, -math.expm1(spare))
        if gaussian:
            # The remainder is a budget; what is taken of it is one Gaussian.
            best = max(best, divergence((most - used) / UNITS, spare))
        for cost, *outputs in moves:
            after = Tally((used, 0)) + rule.price(cost, Tally((used, 0)))
            if not rule.admits(after):
                continue
            mean = math.fsum(p * value(after.amounts[0], loss + x) for p, x in outputs)
            best = max(best, mean)
            assert value.cache_info().currsize < MOST_NODES
        return best

    return value(0, 0)


def response_of(epsilon, categories=2):
    """Return a randomized response, whose other categories tell nothing."""
    size, top = int(Fraction(epsilon) * 10**6), math.exp(float(Fraction(epsilon)))
    total = top + categories - 1
    chances = (top / total, 1 / total, (categories - 2) / total)
    cost = PureDP(epsilon=epsilon)
    if categories > 2:
        cost = RandomizedResponse(epsilon=epsilon, categories=categories)
    return cost, *zip(chances, (size, -size, 0), strict=True)


def windows_of(eta, parts):
    """Return an exponential mechanism with its range at several places."""
    windows, size = [], int(Fraction(eta) * 10**6)
    for top in (size * n // parts for n in range(1, parts)):
        low, high = (math.exp(-loss / 10**6) for loss in (top, top - size))
        up = (high - 1) / (high - low)
        cost = ExponentialMechanism(epsilon=eta)
        windows.append((cost, (up, top), (1 - up, top - size)))
    return windows


def ratio(rule, menu, **options):
    """Return the true delta over the claimed one."""
    return true_delta(rule, menu, **options) / float(rule.delta)


def menus(count, seed=2602):
    """Draw budgets and menus of two or three randomized responses."""
    draw = random.Random(seed)
    result = []
    for _ in range(count):
        epsilon = Fraction(draw.randint(20, 150), 100)
        delta = Fraction(draw.randint(1, 9), draw.choice((100, 1000)))
        rule = make_filter("residue", epsilon=epsilon, delta=delta)
        # A few of each fit, so that trees stay small and choices matter.
        mu = math.sqrt(rule.thresholds[0] / UNITS)
        count = draw.choice((2, 3))
        sizes = {round(mu / math.sqrt(draw.uniform(1.5, 5)), 3) for _ in range(count)}
        result.append((rule, [Fraction(str(e)) for e in sorted(sizes)]))
    return result


TABLES = read_tables(__file__)


@pytest.mark.parametrize(("epsilon", "delta", "menu"), TABLES["menus"])
def test_stated_menus(epsilon, delta, menu):
    """With a Gaussian for the remainder the game nearly reaches delta, not more."""
    rule = make_filter("residue", epsilon=epsilon, delta=delta)
    reached = ratio(rule, menu)
    assert 0.9 < reached <= 1 + 1e-9
    assert ratio(rule, menu, gaussian=False) <= reached


def test_a_range_whose_place_is_chosen_at_each_step():
    """By the outputs so far; 5 % less than the charge is more than delta."""
    menu, budget = windows_of("0.2", 4), {"epsilon": "0.5", "delta": "0.02"}
    assert 0.9 < ratio(make_filter("residue", **budget), menu) <= 1 + 1e-9
    assert ratio(TooLittle(**budget), menu) > 1.001


@pytest.mark.parametrize(("epsilon", "delta", "menu"), TABLES["categories"])
def test_responses_of_many_categories_cost_their_own_mu(epsilon, delta, menu):
    """Less than that of two categories, and not too little: 5 % less would be."""
    moves = [response_of(*each) for each in menu]
    rule = make_filter("residue", epsilon=epsilon, delta=delta)
    for cost, *_ in moves:
        two = rule.price(PureDP(epsilon=cost.epsilon)).amounts[0]
        assert 2 * rule.price(cost).amounts[0] < two
    assert ratio(rule, moves) <= 1 + 1e-9
    if len(moves) == 1:
        assert ratio(TooLittle(epsilon=epsilon, delta=delta), moves) > 1.001


def test_random_menus():
    """No strategy on any menu has more than the claimed delta."""
    for rule, menu in menus(scaled(MENUS, push=8)):
        assert ratio(rule, menu) <= 1 + 1e-9, menu


def test_charges_that_are_too_small_are_caught():
    """Negative control: the same game against charges of 95 %."""
    for delta, size in (("0.01", "0.1"), ("0.001", "0.06")):
        rule = TooLittle(epsilon="1", delta=delta)
        assert ratio(rule, [size]) > 1.001


def test_a_refund_after_a_later_draw_would_break_the_promise():
    """Draw a Gaussian, then choose: the response that was held, or its charge anew.

    Each alone keeps the divergence of the budget at every epsilon; the choice does not.
    So the ledger returns nothing then (docs/derivations/residue.md#refunds).
    """
    budget, size = Fraction(1, 4), 0.3
    rest = int(budget * UNITS)
    charge = residue_charge(RESPONSE, Fraction("0.3"), rest)
    m, c = float(budget), charge / UNITS

    one, other = partial(response, size), partial(divergence, c)
    for epsilon in (0.0, 0.2):
        limit = divergence(m, epsilon)
        for after in (one, other):
            assert mean_after_gaussian(after, m - c, epsilon) < limit + 1e-4
    reached = mean_after_gaussian(lambda x: max(one(x), other(x)), m - c, 0.0)
    assert reached > divergence(m, 0.0) + 1e-3
