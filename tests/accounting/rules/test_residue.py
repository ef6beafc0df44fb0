"""The filter residue: charges that provably leave a Gaussian budget, and no larger."""

from __future__ import annotations

from fractions import Fraction

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
from dpflow.forecast.counting import WorkloadStep, runs_of
from dpflow.rounding import UNITS, from_units, units_up
from tests.accounting.oracle import MP, gaussian_delta, range_law, real, response
from tests.sizes import spread
from tests.tables import read_tables

TENTH = PureDP(epsilon="0.1")
G20 = Gaussian(sensitivity=1, sigma=20)


def rule_of(epsilon="5", delta="1e-6", **options):
    """Make a filter."""
    return make_filter("residue", epsilon=epsilon, delta=delta, **options)


# A charge is a certificate: 50 digits, by integration, at many epsilons


def curve(kind, size, h, x, window):
    """Return the divergence of a step and of G(h) together, from its definition."""
    e = real(size)
    if kind == LAPLACE:
        ends = gaussian_delta(x - e, h) / 2
        ends += MP.exp(-e) / 2 * gaussian_delta(x + e, h)
        inner = MP.quad(
            lambda s: MP.exp(-(e - s) / 2) / 4 * gaussian_delta(x - s, h), [-e, 0, e]
        )
        return ends + inner
    law = response(e) if kind == RESPONSE else range_law(e, e * real(window))
    return sum(p * gaussian_delta(x - MP.log(p / q), h) for p, q in law)


def margin(kind, size, rest, charge, x, *, window="0.5"):
    """Return by how much the budget is above step and remainder at an epsilon."""
    with MP.workdps(50):
        m, h = real(from_units(rest)), real(from_units(rest - charge))
        return gaussian_delta(x, m) - curve(kind, size, h, x, window)


def least_margin(kind, size, rest, charge, *, window="0.5"):
    """Return the least margin at many epsilons; at few of slow Laplace noise."""
    root, points = MP.sqrt(real(from_units(rest))), 5 if kind == LAPLACE else 41
    reach = 3 * root + root**2
    epsilons = spread(MP.linspace(-reach, reach, points), points // 2 + 1)
    return min(margin(kind, size, rest, charge, x, window=window) for x in epsilons)


WINDOWS = ("0.02", "0.2", "0.4", "0.48", "0.5", "0.55", "0.9")


@pytest.mark.parametrize(("kind", "size", "rest"), read_tables(__file__)["charges"])
def test_a_charge_holds_at_all_epsilons(kind, size, rest):
    """50 digits, from the definitions: no epsilon where step and remainder exceed it.

    Negative control: at epsilon 0 the charge is tight, and a billionth less exceeds
    the budget; of ranges 5 % less does, for the pairs that one test decides.
    """
    size, rest = Fraction(size), units_up(Fraction(rest))
    charge = residue_charge(kind, size, rest)
    for window in spread(WINDOWS, 4) if kind == RANGE else ("0.5",):
        assert least_margin(kind, size, rest, charge, window=window) > -1e-30
    if kind != RANGE:
        assert 0 <= margin(kind, size, rest, charge, 0) < 1e-12
        assert margin(kind, size, rest, charge - charge // 10**9, 0) < 0
    elif size != 3:
        assert least_margin(kind, size, rest, charge * 95 // 100) < 0


def test_a_certificate_on_too_coarse_a_grid_would_charge_too_little():
    """Negative control: the ends of a range, or epsilon 0 alone, are not enough."""
    size, rest = Fraction(1, 10), units_up(Fraction("0.012"))
    least = residue_charge(RESPONSE, size / 2, rest) * 9 // 10
    for window in ("1e-9", "0.999999999"):
        assert least_margin(RANGE, size, rest, least, window=window) > -1e-30
    assert least_margin(RANGE, size, rest, least) < 0
    # A window off the middle is worst at another epsilon than 0.
    at_zero = margin(RANGE, size, rest, least, 0, window="0.3")
    assert least_margin(RANGE, size, rest, least, window="0.3") < at_zero


def test_breakpoints_rounded_up_would_charge_too_little():
    """Negative control: the charge of a rest above does not hold at this one."""
    size, rest = Fraction(1, 10), units_up(Fraction("0.0203"))
    point = breakpoint_below(rest)
    above = point + (1 << point.bit_length() - 6)
    assert point < rest < above
    assert breakpoint_below(above) == above
    right, wrong = (residue_charge(RESPONSE, size, p) for p in (point, above))
    assert margin(RESPONSE, size, rest, right, 0) > 0
    assert margin(RESPONSE, size, rest, wrong, 0) < 0


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
    assert rule.settle_late(full, ran) == rule.settle_late(full, rule.zero()) == full


def test_deltas_are_counted_apart():
    """They need a part of delta of their own, fixed in advance."""
    step = ApproxDP(epsilon="0.1", delta="1e-7")
    with pytest.raises(UnsupportedCost, match="keeps no delta for steps"):
        rule_of().price(step)
    rule = rule_of(delta_loss="5e-7")
    assert rule.price(step).amounts[1] == UNITS // 10**7
    assert runs_of(rule, (WorkloadStep(step),)) == 5
    assert rule.thresholds[0] <= gdp_budget(5, Fraction(5, 10**7)) * UNITS
    tries = ProposeTestRelease(epsilon="0.1", delta="1e-7")
    assert rule.price(tries).amounts[1] >= UNITS // 10**7
    with pytest.raises(InvalidCost, match="delta_loss"):
        rule_of(delta_loss="2e-6")


def test_alone_a_step_costs_at_most_thrice_any_charge() -> None:
    """The premise of late charges: docs/derivations/residue.md#late-charges."""
    for kind in ("gaussian", RESPONSE, LAPLACE, RANGE):
        for size in map(Fraction, ("0.01", "0.3", "1", "2", "3.5", "6")):
            alone = residue_charge(kind, size, 0)
            rests = (20, 400, 10**6)
            charges = [residue_charge(kind, size, rest * UNITS) for rest in rests]
            assert alone <= MOST_ALONE * min(charges)
            if (kind, float(size)) == (LAPLACE, 3.5):
                # Negative control: twice is not enough.
                assert alone > 2 * min(charges)
