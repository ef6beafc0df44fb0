"""The RDP odometer: divergences of one order add up to a running bound."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import flint
import pytest
from flint import arb, fmpq

from dpflow import Gaussian, PureDP
from dpflow.accounting import Odometer, make_odometer
from dpflow.accounting.costs.base import Cost
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import InvalidCost

pytestmark = pytest.mark.quick

RULE = make_odometer("rdp", delta="1e-6", order=8)
TWENTY = Gaussian(sensitivity=1, sigma=20)


def total(rule: Odometer, costs: list[Cost]) -> Tally:
    """Return the tally after charging every cost."""
    return sum((rule.charge(cost) for cost in costs), rule.zero())


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


def test_known_readings():
    """Ten steps of 0.1 at order 8 read ten known divergences and the idle term."""
    tally = total(RULE, [PureDP(epsilon=0.1)] * 10)
    assert RULE.read(tally) == pytest.approx(
        0.367166597013116 + math.log(10**6) / 7, rel=1e-14
    )
    assert RULE.read(RULE.zero()) == pytest.approx(math.log(10**6) / 7, rel=1e-15)


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


@pytest.mark.parametrize("target", ["1e-12", "0.01", "1", "10000"])
@pytest.mark.parametrize("delta", ["1e-35", "1e-6", "0.999"])
def test_the_derived_order_is_legal_and_short(delta, target):
    """Every target derives an order within the limits that people can read."""
    rule = make_odometer("rdp", delta=delta, halt_at_epsilon=target)
    assert Fraction(10001, 10000) <= rule.order <= 10**6
    assert len(rule.parameters()["order"]) <= 7
    assert math.isfinite(rule.read(rule.zero()))


@pytest.mark.parametrize("target", ["0.1", "1", "5"])
def test_no_other_order_leaves_much_more_room(target):
    """The derived order holds 99 % of the rho that any order on a grid holds."""
    delta, epsilon = Fraction("1e-6"), Fraction(target)

    def room(order: Fraction) -> Fraction:
        rule = make_odometer("rdp", delta=delta, order=order)
        return (epsilon - Fraction(rule.read(rule.zero()))) / order

    derived = make_odometer("rdp", delta=delta, halt_at_epsilon=epsilon).order
    grid = [1 + Fraction(11, 10) ** n for n in range(-50, 140)]
    assert room(derived) >= max(room(order) for order in grid) * Fraction(99, 100)


def test_a_given_order_is_kept_whatever_the_target():
    """An order that is stated is not tuned away."""
    given_order = make_odometer("rdp", delta="1e-6", order=8, halt_at_epsilon=1)
    assert given_order == RULE
    assert make_odometer("rdp", delta="1e-6", order=9) != RULE


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("order", {"order": None}),
        ("order", {"order": 1}),
        ("order", {"order": "1.00009"}),
        ("order", {"order": 0.5}),
        ("order", {"order": -2}),
        ("order", {"order": 10**6 + 1}),
        ("order", {"order": float("inf")}),
        ("order", {"order": float("nan")}),
        ("order", {"order": True}),
        ("delta", {"delta": 0}),
        ("delta", {"delta": 1}),
        ("delta", {"delta": float("nan")}),
        ("halt_at_epsilon", {"order": None, "halt_at_epsilon": 0}),
        ("halt_at_epsilon", {"order": None, "halt_at_epsilon": -1}),
        ("halt_at_epsilon", {"order": None, "halt_at_epsilon": float("nan")}),
        ("halt_at_epsilon", {"order": None, "halt_at_epsilon": "soon"}),
        ("halt_at_epsilon", {"halt_at_epsilon": float("nan")}),
        ("halt_at_epsilon", {"halt_at_epsilon": -1}),
    ],
    ids=repr,
)
def test_a_bad_option_is_refused_by_name(name, options):
    """Each option that is no number or out of range names itself, used or not."""
    with pytest.raises(InvalidCost, match=name) as caught:
        make_odometer("rdp", **{"delta": "1e-6", "order": 8, **options})
    assert caught.value.name == name
