"""Policies know theorems through the registries only; these register some more."""

from __future__ import annotations

from decimal import Decimal

import pytest

from dpflow.accounting import FILTERS, ODOMETERS
from dpflow.accounting.rules.basic import BasicFilter
from dpflow.policy import parse_policy
from dpflow.rounding import exact, number_text
from tests.policy_examples import SHORT, edited, refused


class OrdersFilter(BasicFilter):
    """A filter with options of every kind that YAML has."""

    theorem = "orders"

    def __init__(self, *, epsilon, delta=0, orders=(2,), strict=False, weights=None):
        """Keep the options as they came."""
        super().__init__(epsilon=epsilon, delta=delta)
        self.given = {"orders": orders, "strict": strict, "weights": weights}
        self.orders = [number_text(exact(order, name="orders")) for order in orders]
        1 / len(self.orders)

    def parameters(self):
        """Return the orders too."""
        return super().parameters() | {"orders": self.orders}


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setitem(FILTERS, "orders", f"{__name__}:OrdersFilter")
    monkeypatch.setitem(FILTERS, "absent", "dpflow_absent:AbsentFilter")
    monkeypatch.setitem(ODOMETERS, "fixed", f"{__name__}:FixedOdometer")


def test_options_of_every_kind_reach_a_new_theorem():
    """Lists, mappings, booleans, whole and exact numbers arrive as written."""
    options = "orders: [2, 4.5, 1e1], strict: true, weights: {two: 0.1}"
    policy = parse_policy(edited("gdp", f"{{theorem: orders, {options}}}", SHORT))
    rule = policy.dataset_filter()
    assert isinstance(rule, OrdersFilter)
    assert rule.given == {
        "orders": [2, Decimal("4.5"), Decimal(10)],
        "strict": True,
        "weights": {"two": Decimal("0.1")},
    }
    assert policy.pinned()["filter"]["orders"] == ["2", "4.5", "10"]


def test_wrong_values_of_options_point_at_the_option():
    """The error of the theorem itself gets the file and the line."""
    error = refused(edited("gdp", "{theorem: orders,\n orders: [two]}", SHORT))
    assert error.line == 6
    assert "filter.orders must be a finite number, got 'two'" in str(error)


def test_theorems_that_cannot_be_loaded_are_refused():
    """A theorem whose package is missing says so."""
    error = refused(edited("gdp", "absent", SHORT))
    assert error.line == 5
    assert "'absent' cannot be loaded: No module named 'dpflow_absent'" in str(error)
    assert error.hint == "Install what it needs."
