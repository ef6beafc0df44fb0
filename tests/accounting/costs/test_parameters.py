"""No parameter of a public cost is declared in vain.

A new parameter fails until it has a row with two values and what differs between them.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import pytest

import dpflow
from dpflow import costs
from dpflow.accounting import FILTERS, Filter, make_filter
from dpflow.accounting.costs.base import Cost, relations_of
from dpflow.accounting.costs.text import cost_from_text
from dpflow.exceptions import DpflowError, InvalidCost
from tests.tables import read_tables

pytestmark = pytest.mark.quick


@cache
def filters() -> list[Filter]:
    """Return a filter of each theorem that prices more than what it lists."""
    plain = sorted({*FILTERS} - {"individual", "sequence"})
    options: list[dict[str, Any]] = [{"theorem": name} for name in plain]
    options += [{"theorem": "rdp", "order": order} for order in (8, 16)]
    options += [{"theorem": "zcdp", "delta_loss": "5e-7"}]
    return [make_filter(**option, epsilon=3, delta="1e-6") for option in options]


def price(rule: Filter, cost: Cost) -> object:
    """Return the price under a filter, or why there is none."""
    try:
        return rule.price(cost)
    except DpflowError as error:
        return type(error)


def show(text: str, what: str) -> object:
    """Return what depends on a parameter of a cost.

    Args:
        text: The cost.
        what: The `cost` itself (None of a mechanism without noise yet), its
            `description` in the journal, its `prices`, the `relations` under which a
            policy admits it, or the `noise` that its mechanism draws with.
    """
    try:
        cost: Any = cost_from_text(text)
    except InvalidCost:
        assert what == "cost"
        return None
    if what == "prices":
        return [price(rule, cost) for rule in filters()]
    if what == "noise":
        names = ("threshold_scale", "answer_scale", "margin")
        return [getattr(cost, name, None) for name in names]
    return {
        "cost": lambda: cost,
        "description": cost.describe,
        "relations": lambda: relations_of(cost),
    }[what]()


TABLES = read_tables(__file__)
#: Two costs by the parameter in which they differ, and what shows it.
ROWS: dict[str, tuple[str, str, str]] = {row[0]: row[1:] for row in TABLES["texts"]}
for kinds, parameters, what, changed in TABLES["changed"]:
    for kind, name in ((kind, name) for kind in kinds for name in changed):
        before, after = (
            ", ".join(f"{key}={value}" for key, value in values.items())
            for values in (parameters, {**parameters, name: changed[name]})
        )
        ROWS[f"{kind}.{name}"] = f"{kind}({before})", f"{kind}({after})", what


def test_each_parameter_of_a_cost_has_a_row() -> None:
    """Of each public class."""
    public = [getattr(module, n) for module in (dpflow, costs) for n in module.__all__]
    classes = [kind for kind in public if inspect.isclass(kind) and kind is not Cost]
    declared = {
        f"{kind.__name__}.{parameter}"
        for kind in classes
        if issubclass(kind, Cost)
        for parameter in list(inspect.signature(kind.__init__).parameters)[1:]
    }
    assert declared == {*ROWS}


@pytest.mark.parametrize("name", ROWS)
def test_each_parameter_of_a_cost_is_consulted(name: str) -> None:
    """Two values of it show a difference, and one value shows none."""
    before, after, what = ROWS[name]
    assert show(before, what) == show(before, what)
    assert show(before, what) != show(after, what)
