"""Costs refuse what makes no sense, survive the journal and get cheaper with noise."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import cloudpickle
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import dpflow
import dpflow.costs as further
from docs._site.prices import EXAMPLES
from dpflow import ZCDP, ApproxDP, Cost, Gaussian, Laplace, PureDP
from dpflow.accounting.costs.base import _KINDS, cost_from_description, cost_kind
from dpflow.accounting.costs.text import cost_from_text
from dpflow.accounting.curves import prices
from dpflow.exceptions import InvalidCost, UnsupportedCost
from tests.accounting.oracle import powers
from tests.tables import read_tables

pytestmark = pytest.mark.quick

NO_NUMBERS = [True, float("nan"), Decimal("sNaN"), "much", "1e999999999", [1], 1j]
NOTHING = [0, "0", -1, 5e-324, "1e-400", "1e400"]
DELTAS = [-1, "-1e-30", 1, 2, "1", "9e-36", 5e-324, "1e400", None]

costs = st.one_of(
    st.builds(Gaussian, sensitivity=powers(-6, 3), noise_multiplier=powers(-3, 6)),
    st.builds(Laplace, sensitivity=powers(-6, 3), epsilon=powers(-6, 3)),
    st.builds(PureDP, epsilon=powers(-9, 3)),
    st.builds(ApproxDP, epsilon=powers(-9, 3), delta=powers(-30, -1)),
    st.builds(ZCDP, rho=powers(-18, 6)),
)


def test_every_cost_of_the_module_is_under_test():
    """A new cost cannot appear without a public name, and tests of its fields."""
    cost_kind("SparseVector")
    here = {n for n, kind in _KINDS.items() if kind.__module__.startswith("dpflow.")}
    folder = Path(__file__).parent
    tested = "".join(file.read_text("utf-8") for file in folder.glob("test_*.*"))
    for name in here - {"IndividualBound", "PersonBudgets"}:
        assert name in {*dpflow.__all__, *further.__all__}
        assert f"{name}(" in tested


def test_a_number_that_makes_no_cost_is_refused_by_name():
    """No number, zero, negative, subnormal or absurd, alone or with its bound."""
    cases = [
        (cost_kind(kind), name, {**others, name: value})
        for kind, name, others, bad in read_tables(__file__)["fields"]
        for value in [*NO_NUMBERS, *NOTHING, *bad]
    ]
    cases += [(ApproxDP, "delta", {"epsilon": 1, "delta": d}) for d in DELTAS]
    for word, ends in (("noise_multiplier", (-7, 10)), ("sigma", (-4, 13))):
        many = [{"sensitivity": 1000, word: f"1e{end}"} for end in ends]
        cases += [(Gaussian, "sigma divided by sensitivity", each) for each in many]
    for kind, name, numbers in cases:
        with pytest.raises(InvalidCost) as caught:
            kind(**numbers)
        assert caught.value.name == name
        assert name in str(caught.value)


def test_two_ways_of_saying_the_same_cost_are_equal():
    """A multiplier is sigma over sensitivity, an epsilon sensitivity over scale."""
    twenty = Gaussian(sensitivity=100, noise_multiplier=20)
    assert twenty == Gaussian(sensitivity=Decimal(100), sigma="2e3")
    assert Laplace(sensitivity=0.3, epsilon=0.1) == Laplace(sensitivity="0.3", scale=3)
    assert Laplace(sensitivity=1, epsilon=3).scale == Fraction(1, 3)


def test_a_cost_travels_and_hashes():
    """The journal, pickles and copies keep a cost and its hash; so does its text."""
    for cost in EXAMPLES:
        text = json.dumps(cost.describe())
        again = cost_from_description(json.loads(text))
        copies = [again, pickle.loads(pickle.dumps(cost)), copy.deepcopy(cost)]
        copies += [cloudpickle.loads(cloudpickle.dumps(cost)), cost_from_text(text)]
        if cost.mechanism != "IndividualBound":
            copies.append(cost_from_text(repr(cost)))
        assert all(each == cost and repr(each) == repr(cost) for each in copies)
        assert len({cost, *copies}) == 1


def test_a_cost_cannot_take_the_name_of_one_of_dpflows_own():
    """An old journal's PureDP must never be read back as another package's class."""
    with pytest.raises(TypeError, match="has a cost named 'PureDP' already"):
        type("PureDP", (Cost,), {"__module__": "another.package"})


# More noise

ORDERS = [Fraction(10001, 10000), Fraction(2), Fraction(63, 2), Fraction(10**6)]
PRICES = [
    *[lambda cost, i=i: prices.approx_dp(cost)[i] for i in (0, 1)],
    *[lambda cost, i=i: prices.approx_zcdp(cost)[i] for i in (0, 1)],
    prices.gdp_mu_squared,
    *[lambda cost, order=order: prices.renyi(cost, order) for order in ORDERS],
]


@given(costs, st.fractions(1, 1000, max_denominator=1000))
def test_more_noise_never_costs_more(cost, factor):
    """No price of any notion goes up when the noise grows, and none appears."""
    assert cost == cost_from_description(json.loads(json.dumps(cost.describe())))
    louder = cost.noisier(factor)
    for price in PRICES:
        try:
            before = price(cost)
        except UnsupportedCost:
            with pytest.raises(UnsupportedCost):
                price(louder)
        else:
            assert price(louder) <= before


def test_another_noise_that_makes_no_cost_is_refused():
    """More than a cost may say, less noise, and costs that do not name their noise."""

    @dataclass(frozen=True)
    class SilentStep(Cost):
        epsilon: Fraction

    for cost in (Gaussian(sensitivity=1, sigma=10**9), ZCDP(rho="1e-24")):
        with pytest.raises(InvalidCost):
            cost.noisier(Fraction(1001, 1000))
    for cost in EXAMPLES:
        for factor in (Fraction(1, 2), "0.999", 0, -2, Fraction(10**30 - 1, 10**30)):
            with pytest.raises(InvalidCost, match="at least 1, got") as caught:
                cost.noisier(factor)
            assert (caught.value.name, caught.value.low) == ("factor", 1)
    with pytest.raises(InvalidCost, match="which of its numbers are its noise"):
        SilentStep(Fraction(1)).noisier(Fraction(2))


def test_numbers_are_read_as_they_are_written():
    """A float would round the digits away; text stands for a number, too."""
    text = "PureDP(epsilon=0.1234567890123456789012345678901)"
    exact = Fraction("0.1234567890123456789012345678901")
    assert cost_from_text(text) == PureDP(epsilon=exact)
    assert cost_from_text("ZCDP(rho=1e-20)") == ZCDP(rho="1e-20")
    text = "Gaussian(sensitivity='100', noise_multiplier=20)"
    assert cost_from_text(f"  {text}\n") == Gaussian(sensitivity=100, sigma=2000)


@given(st.text(max_size=60))
@example("{'mechanism': 'PureDP'}")
@example("{")
@example("\0")
@example("(" * 2000)
@example("PureDP(epsilon=" + "9" * 30_000 + ")")
def test_any_text_is_a_cost_or_refused(text):
    """Nothing else is ever raised, and nothing is run."""
    try:
        cost_from_text(text)
    except InvalidCost:
        return
    pytest.fail(f"{text!r} was read as a cost")
