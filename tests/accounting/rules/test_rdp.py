"""The RDP odometer: divergences of one order add up to a running bound."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import flint
import pytest
from flint import arb, fmpq

from dpflow import Gaussian
from dpflow.accounting import make_odometer
from dpflow.accounting.rules.tally import Tally

pytestmark = pytest.mark.quick

TWENTY = Gaussian(sensitivity=1, sigma=20)


def reading_ends(divergence: Fraction, delta: Fraction, order: Fraction) -> tuple:
    """Return rigorous bounds of R + log(1/delta)/(order-1) as floats."""
    with flint.ctx.workprec(300):
        balls = [arb(fmpq(v.numerator, v.denominator)) for v in (divergence, delta)]
        excess = order - 1
        reading = balls[0] - balls[1].log() / arb(
            fmpq(excess.numerator, excess.denominator)
        )
        ends = [end.man_exp() for end in (reading.lower(), reading.upper())]
    return tuple(Fraction(int(m)) * Fraction(2) ** int(e) for m, e in ends)


@pytest.mark.parametrize("steps_taken", [0, 1, 10, 1000])
@pytest.mark.parametrize("delta", ["1e-35", "1e-6", "0.5", "0.999"])
@pytest.mark.parametrize("order", ["1.0001", "8", "63.25", "1e6"])
def test_a_reading_is_the_theorem_rounded_up(order, delta, steps_taken):
    """The float is the first one that is not below R + log(1/delta)/(order-1)."""
    rule = make_odometer("rdp", delta=delta, order=order)
    tally = sum([rule.price(TWENTY)] * steps_taken, rule.zero())
    divergence = steps_taken * Fraction(order) / 800
    low, high = reading_ends(divergence, Fraction(delta), Fraction(order))
    reading = Fraction(rule.read(tally))
    assert high <= reading
    assert Fraction(math.nextafter(rule.read(tally), 0)) < low * (
        1 + Fraction(1, 10**25)
    )


@pytest.mark.parametrize(("target", "count"), [(1, 13), (5, 308)])
def test_the_derived_order_reads_the_target_after_the_known_number_of_steps(
    target, count
):
    """Tuned for a target, the odometer passes it when Mironov's best order would."""
    rule = make_odometer("rdp", delta="1e-6", halt_at_epsilon=target)
    readings = (
        rule.read(Tally((rule.price(TWENTY).amounts[0] * n, 0)))
        for n in itertools.count()
    )
    taken = sum(1 for _ in itertools.takewhile(lambda r: r <= target, readings)) - 1
    assert taken == count
