"""The divergence of a sampled Gaussian at orders between the whole ones.

A trapezoid rule whose error is bounded in closed form; the whole proof is in
docs/derivations/sampled-gaussian.md. At whole orders there is an exact sum, in
`mechanism_curves`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from dpflow.rounding import UnsettledBound, bound_above, to_real

#: There is no bound where order + 20 s is above this times s min(s, 3): the rule would
#: take up to 2,000 nodes. So it depends on neither the rate nor how near the order is
#: to one, and going without the bound never makes a smaller order cost more.
MOST = 250


_TAILS, _WIDE = 20, Fraction(3)


#: What the rule may miss, relative to the result: 2**-50.
_BITS = 50


#: Width of the strip over the noise squared; the branch points are at pi.
_STRIP = 3.0


_NATS_PER_BIT, _DIGITS_PER_BIT = 0.6932, 0.3011


#: Sums of a sampled Gaussian's terms stop at this share of what they have.
_NEGLIGIBLE = 1e-70


_HUGE = 250.0  # in logs


_SHORT = 64


def _bound_total(order: Fraction, rate: Fraction, noise: Fraction) -> Fraction:
    """Return (order - 1) times the divergence at any order above 1, up."""
    low = math.floor(order)
    if order == low:
        return _bound_log_moment(low, rate, noise)
    rule = fractional_log_moment(order, rate, noise)
    # Long sums take seconds, and their chord gains nothing on the rule.
    if rule is not None and order > _SHORT:
        return rule
    below = _bound_log_moment(low, rate, noise) if low > 1 else Fraction(0)
    above = _bound_log_moment(low + 1, rate, noise)
    chord = (low + 1 - order) * below + (order - low) * above
    return chord if rule is None else min(chord, rule)


@lru_cache(maxsize=1024)
def _bound_log_moment(order: int, rate: Fraction, noise: Fraction) -> Fraction:
    """Return (order - 1) times the divergence at a whole order of at least 2, up."""
    # The last term alone; where it is huge, few other terms count.
    last = order * math.log(rate) + order * (order - 1) / float(2 * noise**2)
    terms = _sum_from_top if last > _HUGE else _sum_from_mode
    return bound_above(lambda mp: terms(mp, order, rate, noise))


def _sum_from_mode(mp: Any, order: int, rate: Fraction, noise: Fraction) -> Any:
    """Sum C(order, k) (1-q)^(order-k) q^k (exp((k^2-k)/2s^2) - 1), and take log1p.

    Without the "- 1" the weights sum to one, so nothing but small terms is added. The
    sum starts where the weights are largest and goes up, then down; each way it stops
    where a geometric series bounds the rest by nearly nothing, which it adds.
    """
    odds = to_real(mp, rate / (1 - rate))
    inverse = to_real(mp, 1 / noise**2)
    growth = mp.exp(inverse)
    mode = max(math.floor(rate * (order + 1)), 1)
    at_mode = to_real(mp, rate) ** mode * to_real(mp, 1 - rate) ** (order - mode)
    at_mode *= mp.binomial(order, mode)
    power_at_mode = mp.exp(mode * (mode - 1) * inverse / 2)

    total, k = mp.mpf(0), mode
    weight, power, step = at_mode, power_at_mode, growth**mode
    while k <= order:
        total += weight * (power - 1)
        if weight * power <= total * _NEGLIGIBLE:
            # Each later term is below this share of the one before.
            ratio = odds * (order - k) / (k + 1) * mp.exp((order + k) * inverse / 2)
            if 2 * ratio <= 1:
                total += weight * power
                break
        weight = weight * odds * (order - k) / (k + 1)
        power, step, k = power * step, step * growth, k + 1

    weight, power, step = at_mode, power_at_mode, growth ** (1 - mode)
    for k in range(mode, 1, -1):
        weight = weight * k / (odds * (order - k + 1))
        power, step = power * step, step * growth
        # This is the term of k - 1; the ratio is that of the weights below it.
        total += weight * (power - 1)
        ratio = (k - 1) / (odds * (order - k + 2))
        tail = weight * power * ratio
        if ratio < 1 and tail <= total * _NEGLIGIBLE * (1 - ratio):
            total += tail / (1 - ratio)
            break
    return mp.log1p(total)


def _sum_from_top(mp: Any, order: int, rate: Fraction, noise: Fraction) -> Any:
    """Sum the same terms, without the "- 1", from the last one down."""
    odds = to_real(mp, (1 - rate) / rate)
    inverse = to_real(mp, 1 / noise**2)
    power = mp.exp(order * (order - 1) * inverse / 2)
    shrink, step = mp.exp(inverse), mp.exp(-(order - 1) * inverse)
    term = to_real(mp, rate) ** order * power
    total = term
    for k in range(order - 1, -1, -1):
        power *= step
        # The weights sum to one: the terms up to k are below exp((k^2-k)/2s^2).
        if power <= total * _NEGLIGIBLE:
            total += power
            break
        term = term * odds * (k + 1) / (order - k) * step
        total += term
        step *= shrink
    return mp.log(total)


@dataclass(frozen=True)
class Quadrature:
    """A trapezoid rule on the nodes `step * k`, for k from `first` to `last`.

    Args:
        step: Distance between two nodes.
        strip: Half the width of the strip around the real line where the integrand
            is bounded; below pi times the noise squared.
        first: Number of the first node, negative.
        last: Number of the last node, beyond the order.
        digits: Decimal digits that are lost to cancellation and large exponents.
    """

    step: Fraction
    strip: Fraction
    first: int
    last: int
    digits: int


@lru_cache(maxsize=1024)
def fractional_log_moment(
    order: Fraction, rate: Fraction, noise: Fraction
) -> Fraction | None:
    """Return (order - 1) times the divergence at any order above 1, up.

    With g(x) = 1 - q + q exp((2x - 1) / 2s^2) and x from N(0, s^2), the moment less
    one is D = E[g^order - 1 - order (g - 1)], for g has mean 1. The integrand is not
    negative. It is analytic for |Im x| < pi s^2, where g(x + iy) is never zero or
    negative and |g(x + iy)| <= g(x), while the density grows by exp(y^2 / 2s^2). So
    for any a < pi s^2 the trapezoid rule of step h misses D by at most
    d (D + 2 + 2 order q), where d = 2 exp(a^2 / 2s^2) / (exp(2 pi a / h) - 1).

    Source: derived in docs/derivations/sampled-gaussian.md; the error of the rule is
    Trefethen, Weideman 2014 (doi 10.1137/130932132), Thm 5.1.

    Assumes: order > 1; 0 < rate < 1. The mixture against the base, which is the worse
    direction: Mironov, Talwar, Zhang 2019 (arXiv 1908.10530v1) Thm 5.

    Rounding: up by a relative 1e-30, after adding bounds on what the rule misses and
    on both tails, relatively about 1e-15.

    Checked by: tests/accounting/curves/test_sampled_gaussian.py.

    Args:
        order: The order of the divergence.
        rate: The sampling rate q.
        noise: The noise multiplier s.

    Returns:
        The bound, or None where the rule would take too many nodes.
    """
    rule = choose_rule(order, rate, noise)
    if rule is None:
        return None
    return bound_above(lambda mp: _log_moment(mp, rule, order, rate, noise))


def choose_rule(order: Fraction, rate: Fraction, noise: Fraction) -> Quadrature | None:
    """Choose the rule, or return None if it would have too many nodes.

    Any choice is sound. It uses only bit lengths and operations that IEEE 754 rounds
    correctly, so that every machine has the same rule and the same price.
    """
    if order + _TAILS * noise > MOST * noise * min(noise, _WIDE):
        return None
    alpha, s = float(order), float(noise)
    # The moment less one is about order (order - 1) / 2 times the variance of g.
    spread: Fraction = min(1 / noise**2, Fraction(1))
    variance = rate**2 * spread
    small = max(_bits(2 / (order * (order - 1) * variance)), 0)
    nats = _NATS_PER_BIT * (_BITS + small + _bits(2 + 2 * order))
    reach = s * math.sqrt(2 * nats)
    strip = min(_STRIP * s * s, reach)
    step = 2 * math.pi * strip / (strip * strip / (2 * s * s) + nats)
    largest = order * Fraction(alpha + reach) / noise**2
    lost = small + _bits(order) + max(_bits(largest), 0)
    return Quadrature(
        step=Fraction(step),
        strip=Fraction(strip),
        first=-math.ceil(reach / step),
        last=math.ceil((alpha + reach) / step),
        digits=math.ceil(_DIGITS_PER_BIT * lost),
    )


def _bits(value: Fraction) -> int:
    """Return the logarithm to base 2, between what it is and one more than that."""
    return value.numerator.bit_length() - value.denominator.bit_length() + 1


def _log_moment(
    mp: Any, rule: Quadrature, order: Fraction, rate: Fraction, noise: Fraction
) -> Any:
    """Add to the rule's sum what it may miss, and take log1p."""
    with mp.workdps(mp.dps + rule.digits):
        missed = _error(mp, rule, noise)
        if not missed < 1:
            msg = "the trapezoid rule is too coarse"
            raise UnsettledBound(msg, name="bound")
        total, last = _sum(mp, rule, order, rate, noise)
        total += _below(mp, rule, order, rate, noise)
        total += _above(mp, rule, order, noise, last)
        total += missed * to_real(mp, 2 + 2 * order * rate)
        # Solved for D: D <= total + missed * D.
        log_moment = mp.log1p(total / (1 - missed))
    return +log_moment


def _error(mp: Any, rule: Quadrature, noise: Fraction) -> Any:
    """Return 2 exp(a^2 / 2s^2) / (exp(2 pi a / h) - 1)."""
    growth = mp.exp(to_real(mp, rule.strip**2 / (2 * noise**2)))
    return 2 * growth / mp.expm1(2 * mp.pi * to_real(mp, rule.strip / rule.step))


def _below(
    mp: Any, rule: Quadrature, order: Fraction, rate: Fraction, noise: Fraction
) -> Any:
    """Bound the nodes before the first: there the integrand is at most order q."""
    distance = to_real(mp, -rule.first * rule.step / noise) / mp.sqrt(2)
    return to_real(mp, order * rate / 2) * mp.erfc(distance)


def _above(
    mp: Any, rule: Quadrature, order: Fraction, noise: Fraction, last: Any
) -> Any:
    """Bound the nodes after the last, given density times g^order there.

    From x on, if x > order, that falls at least as fast as exp(-(x - order) t / s^2).
    """
    beyond = rule.last * rule.step - order
    if beyond <= 0:
        msg = "the trapezoid rule ends before the order"
        raise UnsettledBound(msg, name="bound")
    return last * to_real(mp, noise**2 / beyond)


def _sum(
    mp: Any, rule: Quadrature, order: Fraction, rate: Fraction, noise: Fraction
) -> tuple[Any, Any]:
    """Return the sum over the nodes, and density times g^order at the last."""
    alpha, q = to_real(mp, order), to_real(mp, rate)
    start, step, scale = rule.first * rule.step, rule.step, 2 * noise**2
    # Neighbours differ by factors, so a node takes one logarithm and one power.
    weight = mp.exp(to_real(mp, -(start**2) / scale))
    fall = mp.exp(to_real(mp, -(2 * start + step) * step / scale))
    bend = mp.exp(to_real(mp, -2 * step**2 / scale))
    tilt = mp.exp(to_real(mp, (2 * start - 1) / scale))
    lift = mp.exp(to_real(mp, 2 * step / scale))
    total, unity = mp.mpf(0), mp.mpf(1)
    for _ in range(rule.first, rule.last):
        gain = q * (tilt - unity)
        total += weight * (mp.exp(alpha * mp.log(unity + gain)) - unity - alpha * gain)
        weight, fall, tilt = weight * fall, fall * bend, tilt * lift
    # The last node counts for a little more than it is.
    last = weight * mp.exp(alpha * mp.log(unity + q * (tilt - unity)))
    density = to_real(mp, noise) * mp.sqrt(2 * mp.pi)
    return (total + last) * to_real(mp, step) / density, last / density
