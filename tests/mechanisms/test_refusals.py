"""What a mechanism refuses: its reason is shown, without data, and it is charged.

A case is a relation, a cost and what the body calls: tests/snapshots/mechanisms.txt.
"""

# The cases use the imported names.
# ruff: noqa: F401

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dpflow
from dpflow import costs, guarded, mechanisms
from dpflow.accounting.rules.individual import IndividualBound
from dpflow.exceptions import PublicError
from tests.mechanisms.projects import make_shop
from tests.projects import caught
from tests.snapshots import answers, differences
from tests.tables import read_tables

#: A number that no text may show: the body has counted it.
PEOPLE = 31415
VALUES = np.full((PEOPLE, 1, 1), 0.5)
ROWS = np.full((PEOPLE, 2), 0.5)


def descend(rows=VALUES, **options):
    """Descend on gradients of people."""
    mechanisms.gradient_descent(
        np.zeros(1), lambda _: rows, **{"norm": 1, "rate": 0.1} | options
    )


def fit(rows=ROWS, labels=ROWS[:, 0], **options):
    """Fit a model."""
    numbers = {"train": 300, "regularisation": "0.1", "threshold": 1.0}
    mechanisms.output_perturbation(rows, labels, **numbers | options)


def bounds(values=(PEOPLE,), candidates=(1, 2), quantiles=(0.5,)):
    """Choose bounds."""
    mechanisms.private_bounds(values, candidates, quantiles)


NAMES = globals() | {
    name: getattr(module, name)
    for module in (dpflow, costs, mechanisms)
    for name in module.__all__
}
NAMES |= {name: eval(text, NAMES) for name, text in read_tables(__file__).items()}


def test_a_refusal_is_shown_and_charged(tmp_path, monkeypatch):
    """In full, with its reason and without a number that the body counted."""
    made = set()

    def refusal(case):
        relation, cost, call = case.split(" | ")
        if relation not in made:
            folder = tmp_path / relation
            folder.mkdir()
            words = {"epsilon": "100", "delta": "1e-4", "relation": relation}
            theorem = "{theorem: zcdp, delta_loss: 5e-5}"
            make_shop(folder, monkeypatch, theorem, **words)
            made.add(relation)
        step = guarded(dataset="shop", cost=eval(cost, NAMES), name="step")
        error = caught(step(lambda: eval(call, NAMES)))
        assert type(error) is PublicError, error
        assert "was charged in full" in error.message
        assert str(PEOPLE) not in error.message.replace(cost, "")
        return error.message

    assert differences({"mechanisms": answers("mechanisms", refusal)}) == []


def test_a_budget_of_each_person_needs_its_options(tmp_path, monkeypatch):
    """Noise and steps are arguments there, and the relation is add-or-remove."""
    words = {"epsilon": "5", "relation": "add-or-remove"}
    make_shop(tmp_path, monkeypatch, "{theorem: individual, measure: gdp}", **words)
    bound = IndividualBound(measure="gdp", bound="0.01")
    error = caught(guarded(dataset="shop", cost=bound)(descend))
    assert "takes sigma= and steps= under IndividualBound" in error.message
    with pytest.raises(PublicError, match="outside the body"):
        descend()
