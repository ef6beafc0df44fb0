"""Renyi curves, and those of events that dp-accounting computes."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial
from importlib.metadata import version

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting import dp_event as events
from dp_accounting.rdp import rdp_privacy_accountant as library
from scipy import integrate, special

from dpflow import Composed, Gaussian, Repeated
from dpflow.accounting import make_filter
from dpflow.accounting.costs import adapters, library_curves
from dpflow.accounting.costs.adapters import from_dp_event
from dpflow.accounting.costs.base import cost_from_description, relations_of
from dpflow.accounting.curves.prices import renyi
from dpflow.accounting.fixed.stops import compose_epsilon
from dpflow.costs import RenyiCurve
from dpflow.exceptions import InvalidCost, UnsupportedCost
from dpflow.ledger.decisions.gates import check_holds
from tests.accounting.oracle import MP, real

ORDERS = (2, 5, 13, 32)


def batches(size, sample, noise):
    """Return an event: a Gaussian on a batch of fixed size."""
    gaussian = dpa.GaussianDpEvent(noise)
    return dpa.SampledWithoutReplacementDpEvent(size, sample, gaussian)


def best_of(event, mean, shape=1.0):
    """Return an event: the best of a random number of runs."""
    return events.RepeatAndSelectDpEvent(event, mean, shape)


def tree(noise, steps):
    """Return an event: tree aggregation in one epoch."""
    return dpa.SingleEpochTreeAggregationDpEvent(noise, steps)


#: Event, order of the filter, budgets of which only the second fits it, and delta.
#: dp-accounting has 1.47926 and 1.01232.
REPORTED = [
    (dpa.SelfComposedDpEvent(batches(60_000, 150, 1.3), 6_000), 13, "1.4792", "1e-5"),
    (best_of(dpa.GaussianDpEvent(10.0), 30), 52, "1.0123", "1e-6"),
]


def test_curves_admit_what_the_library_reports():
    """The budget is its epsilon, to four decimals; 16.53 and 2.49 without the curve."""
    for event, order, epsilon, delta in REPORTED:
        cost = from_dp_event(event, orders=[order])
        for above, fits in ((0, False), (Fraction(1, 10**4), True)):
            budget = {"epsilon": Fraction(epsilon) + above, "delta": delta}
            rule = make_filter("rdp", **budget, order=order)
            assert rule.admits(rule.price(cost)) == fits


def batch_divergence(size, sample, noise, order):
    """Return the bound of Wang, Balle, Kasiviswanathan 2019, Theorem 27."""
    rate, square = MP.mpf(sample) / size, real(noise) ** 2
    moments = [MP.exp(MP.mpf(i * (i - 1)) / (2 * square)) for i in range(order + 2)]

    def difference(k):
        signs = ((-1) ** (k - i) * math.comb(k, i) for i in range(k + 1))
        return MP.fsum(sign * moments[i] for i, sign in enumerate(signs))

    total = 1 + rate**2 * math.comb(order, 2) * min(
        4 * MP.expm1(1 / square), 2 * MP.exp(1 / square)
    )
    for j in range(3, order + 1):
        root = MP.sqrt(difference(j // 2 * 2) * difference((j + 1) // 2 * 2))
        total += rate**j * math.comb(order, j) * min(4 * root, 2 * moments[j])
    return MP.log(total) / (order - 1)


def best_divergence(noise, mean, order):
    """Return the bound of Papernot, Steinke 2022, Theorem 2, for a geometric number."""
    divergence = lambda a: real(a) / (2 * real(noise) ** 2)
    grid = [*library.DEFAULT_RDP_ORDERS, *ORDERS]
    log_mean = MP.log(mean)
    added = 2 * min(
        (1 - 1 / real(a)) * divergence(a) + log_mean / real(a) for a in grid
    )
    above = [a for a in grid if a >= order]
    return added + min(divergence(a) + log_mean / (real(a) - 1) for a in above)


CASES = [
    (batches(*sizes, noise), partial(batch_divergence, *sizes, noise))
    for sizes in ((60_000, 150), (10, 9), (10**6, 10))
    for noise in (0.5, 1.3, 30.0)
]
CASES += [
    (best_of(dpa.GaussianDpEvent(noise), mean), partial(best_divergence, noise, mean))
    for noise in (1.0, 10.0)
    for mean in (1.5, 30, 1000)
]
CASES += [
    (tree(noise, steps), lambda a, n=noise, k=depth: k * a / (2 * real(n) ** 2))
    for noise in (1.0, 7.3)
    for steps, depth in ((1, 1), (1000, 10), ([3, 1023], 10), (1024, 11))
]


def below_truth(*orders):
    """Return the cases of which a price is below the formula, or far above it."""
    wrong = []
    for event, formula in CASES:
        zero_out = isinstance(event, dpa.SingleEpochTreeAggregationDpEvent)
        cost = from_dp_event(event, orders, zero_out=zero_out)
        for order in orders:
            price, truth = real(renyi(cost, Fraction(order))), formula(order)
            # High differences of little noise lose digits, upwards.
            tight = order < 32 or not hasattr(event, "sample_size")
            if price < truth or (tight and price > truth * (1 + MP.mpf("1e-5"))):
                wrong.append((event, order))
    return wrong


def test_prices_are_just_above_the_formulas(monkeypatch):
    """In 120 digits; a curve that is rounded inward is caught.

    Floats may lose a thousandth of a batch of high order; its bound is exact.
    """
    assert below_truth(*ORDERS) == []
    event, truth = batches(1000, 559, 6.7), batch_divergence(1000, 559, 6.7, 77)
    assert truth <= real(renyi(from_dp_event(event, [77]), Fraction(77)))
    inward = 1 - Fraction(1, 10**6)
    monkeypatch.setattr(library_curves, "_GUARD", inward)
    computed = [event for event, _ in CASES if not hasattr(event, "sample_size")]
    assert below_truth(2) == [(event, 2) for event in computed]
    inner = library_curves.batch_divergence
    small = lambda *order, **numbers: inner(*order, **numbers) * inward
    monkeypatch.setattr(adapters, "batch_divergence", small)
    assert below_truth(2) == [(event, 2) for event, _ in CASES]


def divergence_of(first, second, order, reach):
    """Return the Renyi divergence of two densities, the larger of both ways."""
    ways = []
    for p, q in ((first, second), (second, first)):
        moment = lambda x, p=p, q=q: math.exp(order * p(x) + (1 - order) * q(x))
        value, _ = integrate.quad(moment, -reach, reach, limit=500)
        ways.append(math.log(value) / (order - 1))
    return max(ways)


def test_real_mechanisms_lose_less_than_their_curves():
    """A batch that has one of two rows, and the largest of many noisy numbers.

    With half of the noise the mechanisms lose more: the comparison can fail.
    """
    rate, noise, mean = 0.3, 1.3, 20

    def normal(x, center, scale):
        return -(((x - center) / scale) ** 2) / 2 - math.log(scale * math.tau**0.5)

    def row(shift, scale):
        low, high = math.log(1 - rate), math.log(rate)
        return lambda x: np.logaddexp(
            low + normal(x, 0, scale), high + normal(x, shift, scale)
        )

    def largest(center, scale):
        # The density of the largest of a geometric number of draws.
        def log_density(x):
            below = special.ndtr((x - center) / scale)
            log_slope = -math.log(mean) - 2 * math.log1p(-(1 - 1 / mean) * below)
            return normal(x, center, scale) + log_slope

        return log_density

    sampled = from_dp_event(batches(10, 3, noise), ORDERS)
    best = from_dp_event(best_of(dpa.GaussianDpEvent(2.0), mean), ORDERS)
    for order in (2, 5):
        for cost, pair, scale in (
            (sampled, lambda s: (row(0.5, s), row(-0.5, s)), noise),
            (best, lambda s: (largest(0, s), largest(1, s)), 2.0),
        ):
            price = float(renyi(cost, Fraction(order)))
            assert divergence_of(*pair(scale), order, 60) <= price
            if order == 5:
                assert divergence_of(*pair(scale / 4), order, 30) > price


def test_a_part_with_a_cost_of_its_own_keeps_it():
    """Only the event without one gets a curve; it holds for its own relation."""
    event = dpa.ComposedDpEvent(
        [dpa.GaussianDpEvent(5.0), dpa.SelfComposedDpEvent(batches(100, 5, 2.0), 3)]
    )
    cost = from_dp_event(event, ["8", 3])
    assert isinstance(cost, Composed)
    gaussian, repeated = cost.costs
    assert gaussian == Gaussian(sensitivity=1, sigma=5)
    assert isinstance(repeated, Repeated)
    assert repeated.times == 3
    assert [order for order, _ in repeated.cost.curve] == [3, 8]
    assert repeated.cost.source.startswith(f"dp-accounting {version('dp-accounting')}")
    assert relations_of(cost) == ("replace-one",)
    with pytest.raises(UnsupportedCost, match=r"priced for replace-one.*add-or-rem"):
        check_holds(cost, "patients", "add-or-remove")
    zeroed = from_dp_event(tree(1.0, 7), [8], zero_out=True)
    assert relations_of(zeroed) == ("add-or-remove",)
    both = from_dp_event(best_of(dpa.GaussianDpEvent(5.0), 3), [8])
    assert relations_of(both) == ("add-or-remove", "replace-one")
    assert from_dp_event(dpa.GaussianDpEvent(5.0), [8]) == gaussian
    assert from_dp_event(dpa.ZCDpEvent(0.01, 0.5), [8]).curve[0][1] > Fraction("0.58")


def test_a_bound_that_is_no_number_is_refused(monkeypatch):
    """A finite bound for one relation does not hide it for another."""
    bounds = {"ADD_OR_REMOVE_ONE": 1.0, "REPLACE_ONE": math.nan}
    patched = (lambda _, orders, name: [bounds[name]] * len(orders),)
    monkeypatch.setattr(library_curves, "_divergences", *patched)
    with pytest.raises(InvalidCost, match="no usable bound"):
        from_dp_event(best_of(dpa.GaussianDpEvent(10.0), 30), orders=[8])


def test_a_curve_has_prices_at_its_orders_only():
    """Exact ones; `auto` needs all of its orders, and a sequence takes the best."""
    curve = RenyiCurve({8: 0.1, "10": "0.125", 1.5: Fraction(1, 3)})
    prices = {Fraction(3, 2): Fraction(1, 3), 8: Fraction(1, 10), 10: Fraction(1, 8)}
    assert {order: renyi(curve, Fraction(order)) for order in prices} == prices
    budget = {"epsilon": 3, "delta": "1e-6"}
    assert make_filter("rdp", order=8, **budget).price(curve).amounts
    auto = make_filter("auto", **budget)
    assert auto.admits(auto.price(RenyiCurve({7: 0.1, 10: "0.125"})))
    # A sequence takes the best of the orders: 0.375 + log(1 - 1/10) + ... / 9.
    epsilon = compose_epsilon(((curve, 3),), Fraction("1e-6"), "rdp")
    best = 0.375 + math.log(0.9) - (math.log(1e-6) + math.log(10)) / 9
    assert float(epsilon) == pytest.approx(best, rel=1e-9)
    assert curve.noisier(2).curve[1] == (8, Fraction(1, 40))
    assert cost_from_description(curve.describe()) == curve
