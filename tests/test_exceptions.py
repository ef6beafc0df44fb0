"""Errors keep their place in the tree and their numbers wherever they travel."""

from __future__ import annotations

import copy
import inspect
import multiprocessing
import pickle
import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from decimal import Decimal
from fractions import Fraction

import cloudpickle
import pytest

from dpflow import exceptions
from dpflow.exceptions import (
    BudgetExhausted,
    BudgetRefused,
    DpflowError,
    InvalidCost,
    LedgerError,
    PolicyChanged,
    PolicyError,
    PolicyNotApplied,
    ReservationConflict,
    UnknownDataset,
    UnsupportedCost,
)
from dpflow.rounding import exact_epsilon

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
ROUTES = {
    **{
        f"pickle {protocol}": lambda error, protocol=protocol: pickle.loads(
            pickle.dumps(error, protocol)
        )
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    },
    "cloudpickle": lambda error: cloudpickle.loads(cloudpickle.dumps(error)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}

every_class = pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
every_route = pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES.keys())


def tree_in_docstring() -> dict[str, str]:
    """Return parent by name, as drawn in the docstring of the module."""
    parents = {"DpflowError": "Exception"}
    branch = ["DpflowError"]
    for line in inspect.getdoc(exceptions).splitlines():
        drawn = re.fullmatch(
            r"((?:│   |    )*)[├└]── (\w+)\b.*", line.removeprefix("    ")
        )
        if drawn is not None:
            depth = 1 + len(drawn[1]) // 4
            branch = [*branch[:depth], drawn[2]]
            parents[drawn[2]] = branch[-2]
    return parents


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes():
    """The drawing names every class of the module under its real parent."""
    real = {kind.__name__: kind.__bases__[0].__name__ for kind in CLASSES}
    assert real == tree_in_docstring()


@every_class
def test_every_class_is_public_documented_and_caught_by_the_root(kind):
    """One except clause for the root catches every error, and each says what it is."""
    assert issubclass(kind, DpflowError)
    assert kind.__module__ == "dpflow.exceptions"
    assert kind.__doc__.strip().splitlines()[0].endswith((".", ";"))


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        (InvalidCost, ValueError),
        (UnsupportedCost, TypeError),
        (UnknownDataset, PolicyError),
        (PolicyChanged, PolicyError),
        (PolicyNotApplied, PolicyError),
        (BudgetExhausted, BudgetRefused),
        (ReservationConflict, LedgerError),
    ],
)
def test_errors_are_caught_by_the_base_a_caller_expects(kind, base):
    """A bad number is a ValueError and a cost without a price a TypeError."""
    with pytest.raises(base):
        raise kind("no")


def test_a_refusal_is_no_ledger_error():
    """A caller that retries on ledger trouble never retries a refusal."""
    assert not issubclass(BudgetRefused, LedgerError)
    assert not issubclass(LedgerError, BudgetRefused)


@every_class
@every_route
def test_an_error_arrives_with_its_type_message_and_numbers(
    kind: type[DpflowError], route: Callable[[DpflowError], DpflowError]
):
    """Pickle, cloudpickle and copy keep the class, the text and every detail."""
    error = kind("asked 1/3, left 0.1: wait.", **NUMBERS)
    arrived = route(error)
    assert type(arrived) is kind
    assert str(arrived) == "asked 1/3, left 0.1: wait."
    assert arrived.message == str(arrived)
    assert arrived.args == error.args
    assert arrived.details == NUMBERS
    assert {name: getattr(arrived, name) for name in NUMBERS} == NUMBERS
    assert type(arrived.decimal) is Decimal
    assert str(arrived.decimal) == "0.10"


@every_class
@every_route
def test_notes_travel_with_an_error(kind, route):
    """What `add_note` said arrives too, and the original keeps its own."""
    error = kind("asked 1/3: wait.", asked="1/3")
    assert not hasattr(route(error), "__notes__")
    error.add_note("in step 'train'")
    error.add_note("of flow 'weekly'")
    arrived = route(route(error))
    assert arrived.__notes__ == ["in step 'train'", "of flow 'weekly'"]
    assert (type(arrived), arrived.details) == (kind, {"asked": "1/3"})
    arrived.add_note("mine")
    assert error.__notes__ == ["in step 'train'", "of flow 'weekly'"]


@every_class
@every_route
def test_a_bare_error_arrives_too(kind, route):
    """An error that was raised without a message or details travels as well."""
    arrived = route(kind())
    assert (type(arrived), str(arrived), arrived.details) == (kind, "", {})


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if kind.detail_names])
def test_promised_details_are_none_until_given(kind):
    """A detail that a class promises can be read even where nobody gave it."""
    assert dict.fromkeys(kind.detail_names) == {
        name: getattr(kind("x"), name) for name in kind.detail_names
    }
    given = kind("x", **dict.fromkeys(kind.detail_names, 7))
    assert all(getattr(given, name) == 7 for name in kind.detail_names)


@every_class
def test_a_class_promises_what_its_parent_promises(kind):
    """A handler of the parent finds the parent's details on every child."""
    for parent in kind.__mro__[1:]:
        promised = getattr(parent, "detail_names", ())
        assert set(promised) <= set(kind.detail_names)


@every_class
def test_a_detail_that_nobody_promised_is_an_attribute_error(kind):
    """A misspelt detail fails loudly and names the class and the detail."""
    with pytest.raises(AttributeError, match=f"{kind.__name__}.*'epsilom'"):
        _ = kind("x", epsilon=1).epsilom
    assert not hasattr(kind("x"), "__wrapped__")


def test_details_do_not_leak_between_copies():
    """Changing the details of a deep copy leaves the original alone."""
    error = BudgetRefused("x", asked={"rho": "1"})
    copy.deepcopy(error).asked["rho"] = "2"
    assert error.asked == {"rho": "1"}


def test_an_error_crosses_a_process_pool_with_its_numbers():
    """The error of a worker process reaches the parent with its limits intact."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        error = pool.submit(exact_epsilon, "-1").exception(timeout=50)
    assert type(error) is InvalidCost
    assert (error.name, error.low, error.high) == (
        "epsilon",
        Fraction(1, 10**12),
        Fraction(10**4),
    )
    assert "'-1'" in error.value
