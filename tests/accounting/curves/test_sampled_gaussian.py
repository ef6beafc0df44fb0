"""Sampled Gaussians between whole orders, against rigorous ball arithmetic.

The truth is an integral of the moment itself by `python-flint` (Arb), which shares
neither formula nor code with the trapezoid rule. Its integrand is positive, so leaving
out the tails gives a number that is never above the truth.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import flint
import pytest
from flint import acb, arb
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from dpflow import Gaussian, PoissonSampledGaussian
from dpflow.accounting.curves import sampled_gaussian
from dpflow.accounting.curves.prices import renyi
from dpflow.accounting.curves.sampled_gaussian import fractional_log_moment
from dpflow.rounding import to_fraction
from tests.accounting.oracle import MP, ends, powers, real, to_arb
from tests.sizes import scaled
from tests.tables import read_tables

#: What the rule loses wherever it applies, relative to the truth.
GAP = Fraction(1, 10**14)
#: Bits to which the truth is known, relative to the divergence.
BITS = 80


def centre(rate: float, noise: float, order: float, start: float) -> float:
    """Return a point near which density times g^order is large.

    It is a fixed point of the order times q exp(v) / (1 - q + q exp(v)), where
    v = (2x - 1) / 2s^2.
    """
    x = start
    for _ in range(40):
        odds = math.log(rate) - math.log1p(-rate) + (2 * x - 1) / (2 * noise**2)
        x = order / (1 + math.exp(-odds)) if odds > -700 else 0.0
    return x


def window(rate, noise, order, x0: float, ends: tuple[float, float]) -> arb:
    """Integrate density times g^order over x0 + s t, for t in a window, from below."""
    q, s, a, x = map(to_arb, (rate, noise, order, x0))
    tilted = q * ((2 * x - 1) / (2 * s * s)).exp()
    p = tilted / (1 - q + tilted)
    high = bool(p > 0.5)
    below, above = ends

    def integrand(t: acb, analytic: bool) -> acb:
        # log g relative to x0; where it is steep, so is a linear term that cancels.
        if high:
            ratio = (p + (1 - p) * (-t / s).exp()).log(analytic=analytic)
            return (-t * t / 2 + (a - x) / s * t + a * ratio).exp()
        ratio = (1 + p * (t / s).expm1()).log(analytic=analytic)
        return (-t * t / 2 - x / s * t + a * ratio).exp()

    pieces = max(8, int(above - below) // 4)
    cuts = [below + (above - below) * k / pieces for k in range(pieces + 1)]
    bits = flint.ctx.prec // 2
    total = sum(
        (
            acb.integral(integrand, acb(low), acb(high_), rel_tol=arb(2) ** -bits).real
            for low, high_ in pairwise(cuts)
        ),
        arb(0),
    )
    at = (-x * x / (2 * s * s) + a * (1 - q + tilted).log()).exp()
    return total * at / (2 * arb.pi()).sqrt()


def truth(rate: Fraction, noise: Fraction, order: Fraction) -> Fraction:
    """Return the divergence, from below, in most cases within 2^-60."""
    q, s, a = map(float, (rate, noise, order))
    gain = math.log2(float(order * (order - 1) * rate**2 * min(1, 1 / noise**2)))
    bits = BITS + max(0, -gain)
    reach = math.sqrt(2 * math.log(2) * (bits + 4))
    low, high = centre(q, s, a, 0.0), centre(q, s, a, a)
    size = math.log2(2 + (a / s) ** 2 + 1 / s**2)
    with flint.ctx.workprec(int(2 * bits + 2 * size) + 60):
        # Zero is included, and the order, unless they are far away.
        left = -reach - min(low / s, 4 * reach)
        if (a - low) / s <= 4 * reach:
            spans = [(low, (left, (a - low) / s + reach))]
        else:
            spans = [(low, (left, reach))]
            if (high - low) / s > 2 * reach:
                spans.append((high, (-reach, reach)))
        moment = sum((window(rate, noise, order, *span) for span in spans), arb(0))
        bound = (moment.log() / to_arb(order - 1)).lower()
        if not bound.is_finite():
            return Fraction(0)
        return ends(bound)[0]


rates = st.one_of(powers(-9, 0), powers(-9, -1).map(lambda x: 1 - x))
orders = st.one_of(powers(-4, 6).map(lambda x: 1 + x), st.just(Fraction("1.0001")))


@settings(max_examples=scaled(30, push=12), deadline=None)
@given(rate=rates, noise=powers(-1, 6), order=orders)
@example(rate=Fraction(1, 10**9), noise=Fraction(10**6), order=Fraction("1.0001"))
@example(rate=Fraction("0.999999999"), noise=Fraction(1), order=Fraction("2.5"))
@example(rate=Fraction(1, 10**9), noise=Fraction(1), order=Fraction("229.5"))
@example(rate=Fraction(1, 2), noise=Fraction("0.125"), order=Fraction("1.37"))
@example(rate=Fraction("0.001"), noise=Fraction(30), order=Fraction("900.5"))
@example(rate=Fraction("0.99"), noise=Fraction("0.2413"), order=Fraction("1.2354"))
def test_the_rule_holds_wherever_it_applies(rate, noise, order):
    """Rates near 0 and 1, orders near 1 and far: never below, within 1e-14."""
    moment = fractional_log_moment(order, rate, noise)
    assume(moment is not None)
    exact = truth(rate, noise, order)
    assert exact <= moment / (order - 1) <= exact * (1 + GAP)


def corner_truth(rate: Fraction, noise: Fraction, order: Fraction) -> Fraction:
    """Return a number that the divergence is not below, quickly anywhere."""
    log_rate = to_fraction(MP.log(real(rate)) - MP.mpf("1e-60"))
    peak = (order * log_rate + order * (order - 1) / (2 * noise**2)) / (order - 1)
    if order < 100 * noise and noise >= Fraction(1, 20):
        return max(peak, truth(rate, noise, order))
    whole = math.floor(order)
    below = Fraction(0)
    if whole > 1:
        # Divergences grow with the order; the 1e-30 is what the sum rounds up.
        below = sampled_gaussian._bound_log_moment(whole, rate, noise) / (whole - 1)
        below *= 1 - Fraction(2, 10**30)
    return max(peak, below)


@settings(max_examples=scaled(6), deadline=None)
@given(rate=rates, noise=powers(-3, 6), order=orders)
@example(rate=Fraction(1, 100), noise=Fraction(1, 1000), order=Fraction("1.5"))
@example(rate=Fraction(1, 10**9), noise=Fraction(1, 1000), order=Fraction("999999.5"))
@example(rate=Fraction(1, 100), noise=Fraction(1), order=Fraction("999999.5"))
@example(rate=Fraction(1, 2), noise=Fraction(10**6), order=Fraction("999999.5"))
def test_no_price_is_below_the_truth(rate, noise, order):
    """With the chord where the rule gives up, and never above no sampling."""
    # The exact sums at whole orders take seconds there.
    assume(order < 500 or noise > 1000 or noise < 2)
    cost = PoissonSampledGaussian(sampling_rate=rate, noise_multiplier=noise)
    price = renyi(cost, order)
    plain = Gaussian(sensitivity=1, noise_multiplier=noise)
    assert corner_truth(rate, noise, order) <= price <= renyi(plain, order)


def _coarse(monkeypatch, factor: int, *, honest: bool) -> None:
    """Make the rule coarser by a factor, with or without its error bound."""
    real_plan, real_missed = (sampled_gaussian.choose_rule, sampled_gaussian._error)

    def coarse(order, rate, noise):
        rule = real_plan(order, rate, noise)
        return replace(
            rule,
            step=rule.step * factor,
            first=-(-rule.first // factor) - 1,
            last=rule.last // factor + 1,
        )

    nothing = lambda mp, _rule, _noise: mp.mpf(0)
    monkeypatch.setattr(sampled_gaussian, "choose_rule", coarse)
    monkeypatch.setattr(sampled_gaussian, "_error", real_missed if honest else nothing)


@pytest.mark.parametrize("row", read_tables(__file__)["below"])
def test_negative_control_no_error_bound(monkeypatch, row):
    """A coarse rule without the bound on its error is caught, with it it is sound."""
    factor, (rate, noise, order) = row[0], map(Fraction, row[1:])
    compute = fractional_log_moment.__wrapped__
    for honest in (False, True):
        with monkeypatch.context() as patch:
            _coarse(patch, factor, honest=honest)
            price = compute(order, rate, noise) / (order - 1)
            assert (price >= truth(rate, noise, order)) == honest
