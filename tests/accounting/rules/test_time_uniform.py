"""mixture, stitched and basic odometers against the paper and 120 digits."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow.accounting import make_odometer
from dpflow.accounting.rules.tally import Tally
from dpflow.costs import ProbabilisticDP
from dpflow.exceptions import UnsupportedCost
from dpflow.rounding import UNITS
from tests.accounting.oracle import DELTAS, MP, assert_just_above, powers, real
from tests.sizes import scaled

NAMES = {"mixture": "rho", "stitched": "v0"}


def mixture(v: Fraction, rho: Fraction, delta: Fraction, sides: int = 1) -> Any:
    """Return the boundary of the mixture, with one side or two."""
    spread, ratio = real(v + rho), MP.sqrt(real((v + rho) / rho))
    inside = 1 + ratio / (2 * real(delta)) if sides == 1 else ratio / real(delta)
    return MP.sqrt(2 * spread * MP.log(inside))


def stitched(v: Fraction, v0: Fraction, delta: Fraction) -> Any:
    """Return the stitched boundary, at max(v, v0)."""
    spread = real(max(v, v0))
    tail = real("0.72") * MP.log(real("5.2") / real(delta))
    log = MP.log(MP.log(2 * spread / real(v0)))
    return real("1.7") * MP.sqrt(spread * (log + tail))


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
@given(
    delta=DELTAS,
    variance=st.one_of(powers(-18, 8), st.just(Fraction(0))),
    constant=powers(-12, 6),
    form=st.sampled_from(["pure", "zcdp"]),
)
def test_readings_lie_just_above_the_truth(delta, variance, constant, form):
    """Never below the formula, within 1e-9 of it, at every corner."""
    tally = tally_at(variance, form)
    amount = Fraction(tally.amounts[0], UNITS)
    v, drift = (amount, amount / 2) if form == "pure" else (2 * amount, amount)
    two = mixture(v, constant, delta, sides=2)
    if form == "zcdp":
        two = mixture(v, constant, delta / 2)
    for name, options, width in (
        ("mixture", {"rho": constant}, mixture(v, constant, delta)),
        ("stitched", {"v0": constant}, stitched(v, constant, delta)),
        ("mixture", {"rho": constant, "sides": "two"}, two),
    ):
        odometer = make_odometer(name, delta=delta, form=form, **options)
        truth = real(drift) + width
        assert_just_above(odometer.read(tally), truth, unit=Fraction(2, UNITS))


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
    e, d, s = real(epsilon), real(min(delta, Fraction(1))), real(t)
    lean = MP.tanh(e / 2) + d / MP.sinh(e)
    moment = MP.cosh(s * e) + lean * MP.sinh(s * e)
    bound = s * d + s * (1 + s) * e * MP.tanh(e / 2)
    assert MP.log(moment) <= bound * (1 + MP.mpf("1e-60"))
