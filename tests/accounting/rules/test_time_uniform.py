"""mixture, stitched and basic odometers against the paper and intervals."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from flint import arb, ctx, fmpq
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow.accounting import make_odometer
from dpflow.accounting.rules.tally import Tally
from dpflow.costs import ProbabilisticDP
from dpflow.exceptions import UnsupportedCost
from dpflow.rounding import UNITS
from tests.accounting.oracle import powers
from tests.sizes import scaled

DELTAS = st.one_of(
    powers(-30, -1), st.integers(100, 500).map(lambda n: Fraction(n, 1000))
)
VARIANCES = st.one_of(powers(-18, 8), st.just(Fraction(0)))
FORMS = st.sampled_from(["pure", "zcdp"])
NAMES = {"mixture": "rho", "stitched": "v0"}


def ball(value: Fraction | float | str) -> arb:
    """Return the exact value as an interval of 300 bits."""
    ctx.prec = 300
    exact = Fraction(value)
    return arb(fmpq(exact.numerator, exact.denominator))


def mixture(v, rho, delta) -> arb:
    """Return the one-sided boundary of the mixture."""
    ratio = ((ball(v) + ball(rho)) / ball(rho)).sqrt()
    return (2 * (ball(v) + ball(rho)) * (1 + ratio / (2 * ball(delta))).log()).sqrt()


def mixture_two(v, rho, delta) -> arb:
    """Return the two-sided boundary of the mixture."""
    ratio = ((ball(v) + ball(rho)) / ball(rho)).sqrt()
    return (2 * (ball(v) + ball(rho)) * (ratio / ball(delta)).log()).sqrt()


def stitched(v, v0, delta) -> arb:
    """Return the stitched boundary, at max(v, v0)."""
    spread = ball(max(Fraction(v), Fraction(v0)))
    tail = ball("0.72") * (ball("5.2") / ball(delta)).log()
    return ball("1.7") * (spread * ((2 * spread / ball(v0)).log().log() + tail)).sqrt()


def tally_at(variance: Fraction, form: str) -> Tally:
    """Return the tally at which V (or 2 R) is as given."""
    return Tally((int(variance * UNITS) // (1 if form == "pure" else 2), 0, 0))


VECTORS = [
    ("mixture", {"rho": 1}, "0.01", "5.15448811790693351266863228704"),
    ("mixture", {"rho": 1}, "10", "22.7501790292428451013350516443"),
    ("mixture", {"rho": "0.1"}, "0.01", "1.70717639577411815841996355321"),
    ("mixture", {"rho": "0.1"}, "10", "22.6545875472528105888133593078"),
    ("mixture", {"rho": 1, "sides": "two"}, "0.01", "5.28869010836645618031015529515"),
    ("mixture", {"rho": 1, "sides": "two"}, "10", "23.1746548873973424418702242827"),
    ("stitched", {"v0": "0.01"}, "0.01", "0.562840666289696698296244918185"),
    ("stitched", {"v0": "0.01"}, "10", "24.5037265217575834625821831879"),
]


@pytest.mark.parametrize(("name", "options", "variance", "stated"), VECTORS)
def test_readings_are_the_stated_ones(name, options, variance, stated):
    """The published values with their drift, met from above in both forms."""
    for form in ("pure", "zcdp"):
        odometer = make_odometer(name, delta="1e-6", form=form, **options)
        reading = Fraction(odometer.read(tally_at(Fraction(variance), form)))
        slack = Fraction("1e-11")
        if form == "zcdp" and "sides" in options:
            slack = Fraction("1e-6")  # 1 + inside the logarithm
        assert Fraction(stated) <= reading <= Fraction(stated) * (1 + slack)


@settings(max_examples=scaled(50), deadline=None)
@given(delta=DELTAS, variance=VARIANCES, constant=powers(-12, 6), form=FORMS)
def test_readings_lie_just_above_the_truth(delta, variance, constant, form):
    """Never below the interval of the formula, within 1e-9 of it, at every corner."""
    tally = tally_at(variance, form)
    amount = Fraction(tally.amounts[0], UNITS)
    v, drift = (amount, amount / 2) if form == "pure" else (2 * amount, amount)
    half = delta / 2
    cases = [
        ("mixture", {"rho": constant}, mixture(v, constant, delta)),
        ("stitched", {"v0": constant}, stitched(v, constant, delta)),
        (
            "mixture",
            {"rho": constant, "sides": "two"},
            mixture_two(v, constant, delta)
            if form == "pure"
            else mixture(v, constant, half),
        ),
    ]
    unit = ball(Fraction(2, UNITS))
    for name, options, width in cases:
        odometer = make_odometer(name, delta=delta, form=form, **options)
        truth, reading = ball(drift) + width, ball(odometer.read(tally))
        assert reading >= truth
        assert reading <= truth * (1 + ball("1e-9")) + unit


def test_deltas_of_steps_join_the_drift_and_have_a_limit():
    """The reading grows by a step's delta; beyond their share it is undefined."""
    step = ProbabilisticDP(epsilon="0.1", delta="1e-3")
    for name, option in NAMES.items():
        for form in ("pure", "zcdp"):
            room = {"delta": "0.05", "delta_loss": "0.047", option: 1}
            odometer = make_odometer(name, form=form, **room)
            price = odometer.price(step).amounts
            assert price[1] == UNITS // 1000
            three = Tally(tuple(3 * amount for amount in price))
            without = Tally((three.amounts[0], 0, 0))
            risen = odometer.read(three) - odometer.read(without)
            assert abs(risen - 0.003) < 1e-12
            four = Tally(tuple(4 * amount for amount in price))
            assert odometer.read(four) == math.inf
            no_room = make_odometer(name, form=form, delta="0.05", **{option: 1})
            with pytest.raises(UnsupportedCost, match="Set delta_loss below delta"):
                no_room.price(step)


@settings(max_examples=scaled(40), deadline=None)
@given(epsilon=powers(-6, 2), delta=powers(-12, 0), t=powers(-6, 6))
def test_the_moment_bound_behind_the_delta_term(epsilon, delta, t):
    """Randomized response moved by delta / (2 sinh(epsilon)) obeys the stated bound.

    E exp(t loss) <= exp(t delta + t (1 + t) rho), rho = epsilon tanh(epsilon / 2). The
    step's deltas go up to one, and the pair is a pair of distributions or worse.
    """
    ctx.prec = 300
    e, d, s = ball(epsilon), ball(min(delta, Fraction(1))), ball(t)
    lean = (e / 2).tanh() + d / e.sinh()
    moment = (s * e).cosh() + lean * (s * e).sinh()
    assert moment.log() <= s * d + s * (1 + s) * e * (e / 2).tanh()
