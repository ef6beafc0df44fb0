"""Errors keep their place in the tree and their numbers wherever they travel."""

from __future__ import annotations

import copy
import inspect
import pickle
from decimal import Decimal
from fractions import Fraction
from itertools import product

import cloudpickle
import pytest

from dpflow import exceptions

pytestmark = pytest.mark.quick

CLASSES = [
    kind
    for _, kind in inspect.getmembers(exceptions, inspect.isclass)
    if issubclass(kind, BaseException)
]
NUMBERS = {
    "fraction": Fraction(1, 3),
    "decimal": Decimal("0.10"),
    "integer": 10**40,
    "infinity": float("inf"),
    "asked": {"rho": "0.00125", "delta": "0"},
    "nothing": None,
}
ROUTES = [
    *(
        lambda error, protocol=protocol: pickle.loads(pickle.dumps(error, protocol))
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    ),
    lambda error: cloudpickle.loads(cloudpickle.dumps(error)),
    copy.copy,
    copy.deepcopy,
]


def test_errors_are_caught_by_the_base_a_caller_expects():
    """All by the root; a bad number is a ValueError, a missing price a TypeError."""
    for kind in CLASSES:
        assert issubclass(kind, exceptions.DpflowError)
        assert kind.__module__ == "dpflow.exceptions"
        assert kind.__doc__.strip().splitlines()[0].endswith((".", ";"))
    assert issubclass(exceptions.InvalidCost, ValueError)
    assert issubclass(exceptions.UnsupportedCost, TypeError)
    assert issubclass(exceptions.BudgetExhausted, exceptions.BudgetRefused)
    assert issubclass(exceptions.ReservationConflict, exceptions.LedgerError)
    for name in ("UnknownDataset", "PolicyChanged", "PolicyNotApplied"):
        assert issubclass(getattr(exceptions, name), exceptions.PolicyError)


def test_an_error_arrives_with_its_type_message_numbers_and_notes():
    """Pickle, cloudpickle and copy keep the class, the text, details and notes."""
    for kind, route in product(CLASSES, ROUTES):
        error = kind("asked 1/3, left 0.1: wait.", **NUMBERS)
        error.add_note("in step 'train'")
        arrived = route(route(error))
        assert type(arrived) is kind
        assert arrived.args == error.args
        assert arrived.message == str(arrived) == "asked 1/3, left 0.1: wait."
        assert arrived.details == NUMBERS
        assert {name: getattr(arrived, name) for name in NUMBERS} == NUMBERS
        assert type(arrived.decimal) is Decimal
        assert str(arrived.decimal) == "0.10"
        arrived.add_note("mine")
        assert error.__notes__ == ["in step 'train'"]
        bare = route(kind())
        assert (type(bare), str(bare), bare.details) == (kind, "", {})
        assert not hasattr(bare, "__notes__")


def test_a_detail_is_what_a_class_or_its_parent_promises():
    """A detail is None by default; a misspelt one fails and is named."""
    for kind in CLASSES:
        for parent in kind.__mro__[1:]:
            assert set(getattr(parent, "detail_names", ())) <= set(kind.detail_names)
        assert not any(getattr(kind("x"), name) for name in kind.detail_names)
        given = kind("x", **dict.fromkeys(kind.detail_names, 7))
        assert all(getattr(given, name) == 7 for name in kind.detail_names)
        with pytest.raises(AttributeError, match=f"{kind.__name__}.*'epsilom'"):
            _ = kind("x", epsilon=1).epsilom
