"""Calls that are refused, each with its whole error: tests/snapshots/wrong_calls.txt.

A case is an expression; its error stands below it. Costs, events of dp-accounting,
rules, shapes, steps, bounds and tasks.
"""

# The cases use the imported names.
# ruff: noqa: F401

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from functools import partial, wraps

import numpy as np
import pandas as pd
import polars as pl
import pytest
from dp_accounting import dp_event
from prefect import flow, task
from prefect.cache_policies import DEFAULT, INPUTS, RUN_ID

import dpflow
from dpflow import costs
from dpflow.accounting import make_filter, make_odometer
from dpflow.accounting.costs.adapters import from_dp_event
from dpflow.accounting.costs.base import cost_from_description
from dpflow.accounting.costs.text import cost_from_text
from dpflow.accounting.fixed.loss_distribution import grid_epsilon
from dpflow.accounting.fixed.optimal import optimal_delta, optimal_epsilon
from dpflow.accounting.rules.groups import group_cost
from dpflow.accounting.rules.individual import IndividualBound
from dpflow.accounting.rules.tightening import tighten_filter
from dpflow.accounting.rules.windows import part_price
from dpflow.exceptions import DpflowError
from dpflow.guard.step import define_step
from dpflow.noise.accuracy import Target
from dpflow.noise.shape import read_shape
from dpflow.people import PersonBudgets
from tests.bounding.frames import limits
from tests.projects import ROOT, TENTH
from tests.snapshots import answers, differences

pytestmark = pytest.mark.quick

STEP = {"dataset": "shop", "cost": TENTH}


def body(frame, week=1, *, city="Bonn"):
    """Stand for a body."""


def a_generator():
    """Yield."""
    yield 1


async def an_async_generator():
    """Yield."""
    yield 1


async def an_async_load():
    """Read."""


class Strange(dp_event.GaussianDpEvent):
    """A subclass may mean anything."""


step, guard = dpflow.dp_task(**STEP), dpflow.guarded(**STEP)
PRIVATE = dpflow.dp_task(**STEP, private=("frame",), data_version="1")(body)
ONE_ROW = dpflow.Contributions(
    unit=("a",), max_rows=1, relation="add-or-remove", clip={"x": dpflow.Clip(0, 1)}
)
NAMES = {name: getattr(dpflow, name) for name in dpflow.__all__}
NAMES |= {name: getattr(costs, name) for name in costs.__all__}
NAMES |= vars(dp_event) | globals()


def refusal(call: str) -> str:
    """Return the class and the text of the error that a call raises."""
    with pytest.raises(DpflowError) as caught:
        eval(call, dict(NAMES))
    changing = r"(?<=dp-accounting )[\d.]+|(?<= at )0x[0-9a-f]+"
    text = re.sub(changing, "X", str(caught.value))
    return f"{caught.type.__name__}: {text}"


def test_a_wrong_call_says_what_is_wrong_and_what_to_write():
    """Where it is made, before any data is read; errors name values and limits."""
    assert differences({"wrong_calls": answers("wrong_calls", refusal)}) == []


def test_an_error_ends_each_sentence_once_and_cuts_no_value_open():
    """An error's text within another one keeps no full stop of its own."""
    texts = (ROOT / "tests" / "snapshots" / "wrong_calls.txt").read_text("utf-8")
    assert re.findall(r".*[^.][.]{2}(?:\s|$)", texts) == []
    clips = '{0: Clip(0, 200), "a long name of a column": Clip(0.25, 200, grid="0.25")}'
    options = "unit=('a',), max_rows=1, relation='replace-one'"
    text = refusal(f"Contributions({options}, clip={clips})")
    assert text.count("{") == text.count("}") > 1
