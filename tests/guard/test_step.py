"""Declarations of steps, checked at definition, and planned noise."""

from __future__ import annotations

import inspect
import string

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpflow import Gaussian, guarded, release
from dpflow.exceptions import BudgetRefused, ConfigurationError
from dpflow.guard.functions import holds_rows
from dpflow.guard.step import check_template, define_step
from tests.projects import TENTH, kinds, make_project, rewrite_policy

pytestmark = pytest.mark.quick


def body(frame, week, *, city="Bonn"):
    """Stand for a step's body."""


def step(function=body, **declared):
    """Define a step, by default on one dataset and at a tenth."""
    if "release_key" in declared:
        names = {*inspect.signature(function).parameters}
        declared["ignore"] = tuple(names - {*declared.get("private", ())})
    return define_step(function, **{"dataset": "shop", "cost": TENTH, **declared})


def test_a_call_has_its_public_arguments_by_name():
    """Defaults are included; private arguments and the instance of a method are not."""
    declared = step(private=("frame",), data_version="1")
    assert declared.ask(("x", 1), {}).public == {"week": 1, "city": "Bonn"}
    given = {"frame": "x", "week": 1, "city": "Ulm"}
    assert declared.ask((), given).public == {"week": 1, "city": "Ulm"}

    def method(self, week):
        """Stand for a method."""

    declared = step(method)
    assert declared.ask((object(), 1), {}).public == {"week": 1}
    with pytest.raises(ConfigurationError, match="speaks of 'self"):
        check_template(declared, "task_run_name", "{self.city}")


ROWS = [
    *(pd.DataFrame({"a": [1]}), pd.Series([1]), np.ones(2), pa.table({"a": [1]})),
    *(pl.DataFrame({"a": [1]}), pl.Series([1])),
    *([{"a": 1}], [("ann", 1)], [["ann", 1]]),
]
NO_ROWS = ["mon", b"mon", 1, np.float64(1), np.str_("mon"), pd.Timestamp(0), [1], ()]


def test_private_data_as_a_public_argument_is_said_first(shop):
    """The refusal of a key names private= first; a table as an argument warns once."""
    with pytest.raises(ConfigurationError, match=r"private data, say private=\('df'"):
        define_step(lambda df: df, name="n", dataset="d", cost=TENTH, release_key="k")
    cost = Gaussian(sensitivity=1, noise_multiplier=99)
    for value in ROWS:
        step = guarded(dataset="shop", cost=cost, flow="weekly", name="n")
        count = step(lambda df: release(0.0 * len(df)))
        with pytest.warns(RuntimeWarning, match=r"private=\('df',\)") as warned:
            assert count(value) != count(value)
        assert len(warned) == 1
    for value in NO_ROWS:
        assert not holds_rows(value)


@given(st.text(alphabet=string.printable, max_size=20))
def test_no_template_ever_reaches_private_data(template):
    """Whatever is written, a key is refused or made of public arguments."""
    try:
        declared = step(release_key=template, private=("frame",))
        key = declared.ask(("p", "w"), {"city": "c"}).key
    except ConfigurationError:
        return
    assert isinstance(key, str)


POLICY = """\
dataset: shop
unit: customer
relation: add-or-remove
budget: {epsilon: 1, delta: 1e-6}
filter: gdp
flows:
  weekly: {plan: {runs: 3, steps: {revenue: 2, customers: 1}}}
"""


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """Return the folder of a project whose one flow plans three runs."""
    return make_project(tmp_path, monkeypatch, POLICY)


def planned(name="revenue", sensitivity=100, flow="weekly"):
    """Return a step with planned noise."""
    cost = Gaussian(sensitivity=sensitivity, noise="planned")
    step = guarded(dataset="shop", cost=cost, flow=flow, name=name, fresh=True)
    return step(lambda week: release(0.0 * week))


def test_three_planned_runs_fit_and_the_fourth_does_not(shop):
    """Whatever the sensitivity of a planned, the ledger admits what was planned."""
    revenue, customers = planned(), planned("customers", sensitivity=1)
    for week in range(3):
        revenue(week), customers(week)
    with pytest.raises(BudgetRefused):
        revenue(3), customers(3)


def test_a_step_without_a_plan_is_refused_and_nothing_is_written(shop):
    """No noise is guessed."""
    for unplanned in (planned("profit"), planned(flow=None)):
        with pytest.raises(ConfigurationError, match="plans no noise for it"):
            unplanned(1)
    assert kinds() == []


@pytest.mark.parametrize(("sigma", "warned"), [(90, True), (100, False), (110, False)])
def test_a_step_above_its_planned_cost_is_logged_and_runs(shop, caplog, sigma, warned):
    """The bound is for planning; the filter decides."""
    bound = "{cost: 'Gaussian(sensitivity=1, sigma=100)'}"
    rewrite_policy(shop, "customers: 1", f"customers: {bound}")
    cost = Gaussian(sensitivity=1, sigma=sigma)
    step = guarded(dataset="shop", cost=cost, flow="weekly", name="customers")
    step(lambda: release(0.0))()
    assert kinds() == ["reserve", "settle"]
    assert ("more than the plan of flow 'weekly'" in caplog.text) is warned
