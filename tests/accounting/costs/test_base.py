"""Costs refuse what makes no sense, survive the journal and get cheaper with noise."""

from __future__ import annotations

import copy
import json
import pickle
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpflow
import dpflow.costs as further
from dpflow import ZCDP, ApproxDP, Gaussian, Laplace, PureDP
from dpflow.accounting.costs.base import _KINDS, Cost, cost_from_description, cost_kind
from dpflow.exceptions import InvalidCost
from tests.accounting.oracle import powers

pytestmark = pytest.mark.quick

NO_NUMBERS = [
    True,
    False,
    float("nan"),
    float("inf"),
    float("-inf"),
    Decimal("NaN"),
    Decimal("sNaN"),
    np.bool_(True),
    np.float32("nan"),
    "",
    "much",
    "0x10",
    "1e999999999",
    "nan",
    [1],
    (1,),
    b"1",
    1j,
    np.array(1.0),
]
#: Each field of each cost: how to build it, and what lies outside its limits.
NOTHING = [0, 0.0, "0", -1, "-1e-6", -5e-324, 5e-324, "1e-400", "1e400"]
FIELDS = {
    "Gaussian sensitivity": (
        "sensitivity",
        lambda value: Gaussian(sensitivity=value, sigma=1),
        [*NOTHING, "9e-16", "1.1e15"],
    ),
    "Gaussian sigma": (
        "sigma",
        lambda value: Gaussian(sensitivity=1, sigma=value),
        [*NOTHING, "9e-22", "1.1e24"],
    ),
    "Gaussian noise_multiplier": (
        "noise_multiplier",
        lambda value: Gaussian(sensitivity=1, noise_multiplier=value),
        [*NOTHING, "9e-16", "1.1e15"],
    ),
    "Gaussian ratio": (
        "sigma divided by sensitivity",
        lambda value: Gaussian(sensitivity=1000, noise_multiplier=value),
        ["9e-7", "1.1e9"],
    ),
    "Gaussian ratio of sigma": (
        "sigma divided by sensitivity",
        lambda value: Gaussian(sensitivity=1000, sigma=value),
        ["9e-4", "1.1e12"],
    ),
    "Laplace sensitivity": (
        "sensitivity",
        lambda value: Laplace(sensitivity=value, scale=1),
        [*NOTHING, "9e-16", "1.1e15"],
    ),
    "Laplace scale": (
        "scale",
        lambda value: Laplace(sensitivity=1, scale=value),
        [*NOTHING, "9e-22", "1.1e24"],
    ),
    "Laplace epsilon": (
        "epsilon",
        lambda value: Laplace(sensitivity=1, epsilon=value),
        [*NOTHING, "9e-13", 10001],
    ),
    "Laplace ratio": (
        "scale divided by sensitivity",
        lambda value: Laplace(sensitivity=1000, scale=value),
        ["9e-4", "1.1e12"],
    ),
    "PureDP epsilon": (
        "epsilon",
        lambda value: PureDP(epsilon=value),
        [*NOTHING, "9e-13", 10001],
    ),
    "ApproxDP epsilon": (
        "epsilon",
        lambda value: ApproxDP(epsilon=value, delta="1e-6"),
        [*NOTHING, "9e-13", 10001],
    ),
    "ApproxDP delta": (
        "delta",
        lambda value: ApproxDP(epsilon=1, delta=value),
        [-1, "-1e-30", 1, 2, "1", "9e-36", 5e-324, "1e400"],
    ),
    "ZCDP rho": (
        "rho",
        lambda value: ZCDP(rho=value),
        [*NOTHING, "9e-25", "1.1e12"],
    ),
}
#: Fields that must be given: None is a bad value there, elsewhere it means absent.
REQUIRED = [
    name for name in FIELDS if name.rpartition(" ")[2] in {"sensitivity", "rho"}
] + ["PureDP epsilon", "ApproxDP epsilon", "ApproxDP delta"]
BAD_NUMBERS = [
    *[(f, value) for f in FIELDS if "ratio" not in f for value in NO_NUMBERS],
    *[(field, None) for field in REQUIRED],
]
OUT_OF_RANGE = [(field, value) for field in FIELDS for value in FIELDS[field][2]]


epsilons, deltas, sizes = powers(-9, 3), powers(-30, -1), powers(-6, 3)
ratios = powers(-3, 6)
costs = st.one_of(
    st.builds(lambda s, m: Gaussian(sensitivity=s, noise_multiplier=m), sizes, ratios),
    st.builds(lambda s, e: Laplace(sensitivity=s, epsilon=e), sizes, powers(-6, 3)),
    st.builds(lambda e: PureDP(epsilon=e), epsilons),
    st.builds(lambda e, d: ApproxDP(epsilon=e, delta=d), epsilons, deltas),
    st.builds(lambda e: ApproxDP(epsilon=e, delta=0), epsilons),
    st.builds(lambda r: ZCDP(rho=r), powers(-18, 6)),
)


def test_every_cost_of_the_module_is_under_test():
    """A new cost cannot appear without a public name, and tests of its fields."""
    cost_kind("SparseVector")
    here = {n for n, kind in _KINDS.items() if kind.__module__.startswith("dpflow.")}
    folder = Path(__file__).parent
    tested = "".join(file.read_text("utf-8") for file in folder.glob("test_*.py"))
    here -= {"IndividualBound", "OutcomeCost", "PersonBudgets"}
    assert {name.split()[0] for name in FIELDS} < here
    for name in here:
        assert name in {*dpflow.__all__, *further.__all__}
        assert f"{name}(" in tested


@pytest.mark.parametrize(
    ("field", "value"), BAD_NUMBERS, ids=lambda value: repr(value)[:40]
)
def test_what_is_no_number_is_refused_when_the_cost_is_made(field, value):
    """Each field of each cost names itself and the value that it cannot use."""
    name, make, _ = FIELDS[field]
    with pytest.raises(InvalidCost) as caught:
        make(value)
    assert caught.value.name == name
    assert caught.value.value == repr(value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"), OUT_OF_RANGE, ids=lambda value: repr(value)[:40]
)
def test_what_is_out_of_range_is_refused_when_the_cost_is_made(field, value):
    """Zero, negative, subnormal and absurd numbers name the field in the message."""
    name, make, _ = FIELDS[field]
    with pytest.raises(InvalidCost) as caught:
        make(value)
    assert caught.value.name == name
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Gaussian, {"sensitivity": 1, "sigma": 1, "delta": 0}),
        (Laplace, {"sensitivity": 1, "scale": 1, "rho": 1}),
        (PureDP, {"epsilon": 1, "delta": 0}),
        (ApproxDP, {"epsilon": 1}),
        (ZCDP, {}),
    ],
)
def test_missing_and_unknown_words_are_refused(kind, words):
    """A cost takes its own keywords, all and no others; the error shows them."""
    with pytest.raises(InvalidCost, match=rf"Write {kind.__name__}\(\w+=\.\.\."):
        kind(**words)


def test_two_ways_of_saying_the_same_cost_are_equal():
    """A multiplier is sigma over sensitivity, an epsilon sensitivity over scale."""
    assert Gaussian(sensitivity=100, noise_multiplier=20) == Gaussian(
        sensitivity=Decimal(100), sigma="2e3"
    )
    assert Laplace(sensitivity=0.3, epsilon=0.1) == Laplace(sensitivity="0.3", scale=3)
    assert Laplace(sensitivity=1, epsilon=3).scale == Fraction(1, 3)


@given(costs)
def test_a_cost_survives_the_journal(cost):
    """What describe writes is JSON and reads back as an equal cost."""
    description = json.loads(json.dumps(cost.describe()))
    again = cost_from_description(description)
    assert cost == again
    assert hash(cost) == hash(again)
    assert description["mechanism"] == type(cost).__name__ == cost.mechanism
    assert description == again.describe()


def test_a_cost_with_thousands_of_digits_is_refused_or_described():
    """A number that is accepted can always be written to the journal."""
    try:
        cost = PureDP(epsilon="1." + "3" * 5000)
    except InvalidCost as refused:
        assert refused.name == "epsilon"  # noqa: PT017
    else:
        assert cost == cost_from_description(cost.describe())


@pytest.mark.parametrize(
    "description",
    [
        {},
        {"mechanism": None, "epsilon": "1"},
        {"mechanism": "Cost"},
        {"mechanism": "puredp", "epsilon": "1"},
        {"mechanism": ["PureDP"], "epsilon": "1"},
        {"epsilon": "1"},
        {"mechanism": "PureDP"},
        {"mechanism": "PureDP", "epsilon": "1", "delta": "0"},
        {"mechanism": "PureDP", "rho": "1"},
        {"mechanism": "PureDP", "epsilon": None},
        {"mechanism": "PureDP", "epsilon": ["1"]},
        {"mechanism": "PureDP", "epsilon": ""},
        {"mechanism": "PureDP", "epsilon": "abc"},
        {"mechanism": "PureDP", "epsilon": "nan"},
        {"mechanism": "PureDP", "epsilon": "inf"},
        {"mechanism": "PureDP", "epsilon": "1/0"},
        {"mechanism": "PureDP", "epsilon": "0"},
        {"mechanism": "PureDP", "epsilon": "-1"},
        {"mechanism": "PureDP", "epsilon": "1e-13"},
        {"mechanism": "ApproxDP", "epsilon": "1", "delta": "1"},
        {"mechanism": "Gaussian", "sensitivity": "1"},
        {"mechanism": "Gaussian", "sensitivity": "1", "sigma": "0"},
    ],
    ids=repr,
)
def test_a_damaged_description_is_refused(description):
    """A journal entry that was edited by hand raises InvalidCost and nothing else."""
    with pytest.raises(InvalidCost) as caught:
        cost_from_description(description)
    assert caught.value.name == "mechanism"


@given(costs)
def test_a_cost_travels_and_hashes(cost):
    """Pickle, cloudpickle and copy keep a cost and its hash."""
    travelled = [
        pickle.loads(pickle.dumps(cost)),
        cloudpickle.loads(cloudpickle.dumps(cost)),
        copy.copy(cost),
        copy.deepcopy(cost),
    ]
    assert [cost] * 4 == travelled
    assert len({cost, *travelled}) == 1


@pytest.mark.parametrize(
    "cost",
    [
        Gaussian(sensitivity=100, noise_multiplier=20),
        Laplace(sensitivity=2, epsilon=0.5),
        PureDP(epsilon="1e-6"),
        ApproxDP(epsilon=0.1, delta=1e-30),
        ZCDP(rho=0.125),
    ],
    ids=repr,
)
def test_the_repr_builds_the_cost_again(cost):
    """What people see in an error can be pasted into Python."""
    assert cost == eval(repr(cost), vars(dpflow))


def test_a_cost_cannot_take_the_name_of_one_of_dpflows_own():
    """An old journal's PureDP must never be read back as somebody else's class."""
    with pytest.raises(TypeError, match="has a cost named 'PureDP' already"):
        type("PureDP", (Cost,), {"__module__": "somebody.elses"})
    assert cost_from_description(PureDP(epsilon=1).describe()) == PureDP(epsilon=1)
