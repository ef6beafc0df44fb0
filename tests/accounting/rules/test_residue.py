"""The filter residue: charges that provably leave a Gaussian budget, and no larger."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import pytest

from dpflow import ApproxDP, Composed, EarlyStopping, Gaussian, PureDP, Repeated
from dpflow.accounting import make_filter
from dpflow.accounting.curves.conversions import gdp_budget
from dpflow.accounting.curves.prices import pure_mu_squared
from dpflow.accounting.rules.residue import MOST_ALONE, breakpoint_below
from dpflow.accounting.rules.residue_charge import (
    LAPLACE,
    RANGE,
    RESPONSE,
    residue_charge,
)
from dpflow.accounting.rules.tally import Tally
from dpflow.costs import ProposeTestRelease
from dpflow.exceptions import InvalidCost, UnsupportedCost
from dpflow.rounding import UNITS, units_up

TENTH = PureDP(epsilon="0.1")
G20 = Gaussian(sensitivity=1, sigma=20)


def rule_of(epsilon="5", delta="1e-6", **options):
    """Make a filter."""
    return make_filter("residue", epsilon=epsilon, delta=delta, **options)


def admitted(rule, costs):
    """Count steps in turn until one is refused."""
    used, count = rule.zero(), 0
    while rule.admits(after := used + rule.price(costs[count % len(costs)], used)):
        used, count = after, count + 1
    return count


# A charge is a certificate: 50 digits, by integration, at many epsilons


def normal(x):
    """Return the normal distribution function."""
    return mpmath.erfc(-x / mpmath.sqrt(2)) / 2


def gaussian_curve(m, x):
    """Return the hockey-stick divergence of G(m) at x."""
    if m == 0:
        return max(-mpmath.expm1(x), 0)
    mu = mpmath.sqrt(m)
    return normal(mu / 2 - x / mu) - mpmath.exp(x) * normal(-mu / 2 - x / mu)


def two_points(top, bottom):
    """Return the losses and probabilities of a pair of two outcomes."""
    top, bottom = mpmath.mpf(top), mpmath.mpf(bottom)
    p = mpmath.expm1(-bottom) / (mpmath.exp(-bottom) - mpmath.exp(-top))
    return [(top, p), (bottom, 1 - p)]


def curve(kind, size, h, x, window=0.5):
    """Return the divergence of a step beside G(h), from its definition."""
    e = mpmath.mpf(size.numerator) / size.denominator
    if kind == LAPLACE:
        ends = gaussian_curve(h, x - e) / 2
        ends += mpmath.exp(-e) / 2 * gaussian_curve(h, x + e)
        inner = mpmath.quad(
            lambda s: mpmath.exp(-(e - s) / 2) / 4 * gaussian_curve(h, x - s),
            [-e, 0, e],
        )
        return ends + inner
    pair = two_points(e, -e) if kind == RESPONSE else two_points(*shifted(e, window))
    return sum(p * gaussian_curve(h, x - loss) for loss, p in pair)


def shifted(eta, window):
    """Return both losses of a window of a range."""
    top = mpmath.mpf(window) * eta
    return top, top - eta


def margins(kind, size, rest, charge, points, *, window=0.5):
    """Return by how much the budget is above step and remainder, point by point."""
    with mpmath.workdps(50):
        m, h = mpmath.mpf(rest) / UNITS, mpmath.mpf(rest - charge) / UNITS
        reach = 3 * mpmath.sqrt(m) + m
        xs = mpmath.linspace(-reach, reach, points)
        return [gaussian_curve(m, x) - curve(kind, size, h, x, window) for x in xs]


CASES = [
    (RESPONSE, "0.1", "0.06"),
    (RESPONSE, "0.1", "0.016"),
    (RESPONSE, "0.1", "1.04"),
    (RESPONSE, "0.01", "0.05"),
    (RESPONSE, "0.5", "0.42"),
    (RESPONSE, "2", "6"),
    (RESPONSE, "2", "40"),
    (LAPLACE, "0.1", "0.06"),
    (LAPLACE, "0.5", "1"),
    (LAPLACE, "1.5", "4"),
    (RANGE, "0.1", "0.06"),
    (RANGE, "0.1", "0.012"),
    (RANGE, "1", "2"),
    (RANGE, "3", "40"),
]
WINDOWS = (0.02, 0.2, 0.4, 0.48, 0.5, 0.55, 0.9)


@pytest.mark.parametrize(("kind", "size", "rest"), CASES)
def test_a_charge_holds_at_all_epsilons(kind, size, rest):
    """50 digits, from the definitions: no epsilon where step and remainder exceed it.

    Negative control: 5 % less does exceed it, for the pairs that one test decides.
    """
    size, rest = Fraction(size), units_up(Fraction(rest))
    charge = residue_charge(kind, size, rest)
    windows = WINDOWS if kind == RANGE else (0.5,)
    points = 5 if kind == LAPLACE else 41
    for window in windows:
        assert min(margins(kind, size, rest, charge, points, window=window)) > -1e-30
    if (kind, str(size)) != (RANGE, "3"):
        assert min(margins(kind, size, rest, charge * 95 // 100, points)) < 0


@pytest.mark.parametrize(("kind", "size", "rest"), [c for c in CASES if c[0] != RANGE])
def test_no_smaller_charge_holds(kind, size, rest):
    """At epsilon 0 the charge is tight: a billionth less exceeds the budget there."""
    size, rest = Fraction(size), units_up(Fraction(rest))
    charge = residue_charge(kind, size, rest)
    assert 0 <= margins(kind, size, rest, charge, 3)[1] < 1e-12
    less = charge - charge // 10**9
    assert margins(kind, size, rest, less, 3)[1] < 0


def test_a_certificate_on_too_coarse_a_grid_would_charge_too_little():
    """Negative control: the ends of a range, or epsilon 0 alone, do not tell."""
    size, rest = Fraction(1, 10), units_up(Fraction("0.012"))
    least = residue_charge(RESPONSE, size / 2, rest) * 9 // 10
    for window in (0, 1):
        assert min(margins(RANGE, size, rest, least, 41, window=window)) > -1e-30
    assert min(margins(RANGE, size, rest, least, 41, window=0.5)) < 0
    # A window beside the middle is worst at another epsilon than 0.
    at_zero = margins(RANGE, size, rest, least, 3, window=0.3)[1]
    assert min(margins(RANGE, size, rest, least, 41, window=0.3)) < at_zero


def test_breakpoints_rounded_up_would_charge_too_little():
    """Negative control: the charge of a rest above does not hold at this one."""
    size, rest = Fraction(1, 10), units_up(Fraction("0.0203"))
    point = breakpoint_below(rest)
    above = point + (1 << point.bit_length() - 6)
    assert point < rest < above
    assert breakpoint_below(above) == above
    right, wrong = (residue_charge(RESPONSE, size, p) for p in (point, above))
    assert margins(RESPONSE, size, rest, right, 3)[1] > 0
    assert margins(RESPONSE, size, rest, wrong, 3)[1] < 0


def test_a_laplace_step_far_above_its_rest_is_no_laplace_pair():
    """Where psi is not known to be log-concave it is charged as randomized response."""
    size = Fraction(5)
    rest = units_up(pure_mu_squared(size)) + UNITS // 100
    as_pure = residue_charge(RESPONSE, size, rest)
    assert residue_charge(LAPLACE, size, rest) == as_pure


# Costs


def test_parts_are_charged_one_after_another():
    """A repeated step costs what its runs cost, each at the rest the last one left."""
    rule, used = rule_of("1", "1e-5"), Tally((UNITS // 10**2, 0))
    total = used
    for _ in range(4):
        total = total + rule.price(TENTH, total)
    assert used + rule.price(Repeated(TENTH, 4), used) == total
    total = total + rule.price(G20, total)
    assert used + rule.price(Composed(Repeated(TENTH, 4), G20), used) == total
    assert rule.price(Repeated(TENTH, 4), used) != rule.price(Repeated(TENTH, 4))


def test_early_stops_cost_what_ran_unless_something_came_after():
    """The sub-steps that ran are the first ones; a return after a draw is not sound."""
    rule, used = rule_of(), Tally((UNITS // 10**2, 0))
    cost = EarlyStopping(TENTH, stops=(2, 5))
    full, ran = rule.price(cost, used), rule.price_realised(cost, 2, used)
    assert full == rule.price(Repeated(TENTH, 5), used)
    assert ran == rule.price(Repeated(TENTH, 2), used)
    assert rule.settled_late(full, ran) == rule.settled_late(full, rule.zero()) == full


def test_deltas_are_counted_apart():
    """They need a part of delta of their own, fixed in advance."""
    step = ApproxDP(epsilon="0.1", delta="1e-7")
    with pytest.raises(UnsupportedCost, match="keeps no delta for steps"):
        rule_of().price(step)
    rule = rule_of(delta_loss="5e-7")
    assert rule.price(step).amounts[1] == UNITS // 10**7
    assert admitted(rule, [step]) == 5
    assert rule.thresholds[0] <= gdp_budget(5, Fraction(5, 10**7)) * UNITS
    tries = ProposeTestRelease(epsilon="0.1", delta="1e-7")
    assert rule.price(tries).amounts[1] >= UNITS // 10**7
    with pytest.raises(InvalidCost, match="delta_loss"):
        rule_of(delta_loss="2e-6")


@pytest.mark.parametrize("kind", ["gaussian", "response", "laplace", "range"])
@pytest.mark.parametrize("size", ["0.01", "0.3", "1", "2", "3.5", "6"])
def test_alone_a_step_costs_at_most_thrice_any_charge(kind: str, size: str) -> None:
    """What late charges rest on: docs/derivations/residue.md#late-charges."""
    exact = Fraction(size)
    alone = residue_charge(kind, exact, 0)
    charges = [residue_charge(kind, exact, rest * UNITS) for rest in (20, 400, 10**6)]
    assert alone <= MOST_ALONE * min(charges)
    if kind == "laplace" and size == "3.5":
        # Negative control: twice is not enough.
        assert alone > 2 * min(charges)
