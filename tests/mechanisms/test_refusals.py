"""What a mechanism refuses: its reason is shown, without data, and it is charged."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dpflow import (
    ApproxDP,
    EarlyStopping,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    OutputDP,
    PureDP,
    SparseVector,
    guarded,
    iterations,
    release,
)
from dpflow.accounting.rules.individual import IndividualBound
from dpflow.costs import ProposeTestRelease, TopK
from dpflow.exceptions import PublicError
from dpflow.mechanisms import (
    gradient_descent,
    interquartile_range,
    median,
    output_perturbation,
    person_sum,
    private_bounds,
    private_groups,
    recoverable_model,
    sparse_vector,
    top_k,
    trimmed_mean,
)
from tests.mechanisms.projects import make_shop
from tests.projects import caught

NOISY = Laplace(sensitivity=1, epsilon="0.1")
SVT = SparseVector(positives=1, epsilon="0.1")
LOOP = EarlyStopping(Gaussian(sensitivity=1, sigma=100), stops=(1,))
EXPONENTIAL = ExponentialMechanism(epsilon="0.1")
GROUP = ApproxDP(epsilon="0.1", delta="1e-8")
PTR = ProposeTestRelease(epsilon="0.1", delta="1e-8")
TWICE = ProposeTestRelease(epsilon="0.1", delta="1e-8", tries=2)
MODEL = recoverable_model(model="0.1", test="0.1")
PICK = TopK(most=1, among=2, epsilon="0.1", delta="1e-8")
#: A number that no text may show: the body has counted it.
PEOPLE = 31415
VALUES = np.full((PEOPLE, 1, 1), 0.5)
ROWS = np.full((PEOPLE, 2), 0.5)


def descend(rows=VALUES, **options):
    """Descend on gradients of people."""
    gradient_descent(np.zeros(1), lambda _: rows, **{"norm": 1, "rate": 0.1} | options)


def fit(rows=ROWS, labels=ROWS[:, 0], **options):
    """Fit a model."""
    numbers = {"train": 300, "regularisation": "0.1", "threshold": 1.0}
    output_perturbation(rows, labels, **numbers | options)


def bounds(values=(PEOPLE,), candidates=(1, 2), quantiles=(0.5,)):
    """Choose bounds."""
    private_bounds(values, candidates, quantiles)


#: A cost, what the body calls, and what the error says.
CASES = [
    (PureDP(epsilon="0.1"), lambda: release(PEOPLE), "only a guarantee"),
    (NOISY, lambda: release({"a": [PEOPLE]}), "cannot noise"),
    (NOISY, lambda: [*iterations()], "EarlyStopping"),
    (NOISY, lambda: release([PEOPLE], until=len), "cost=Refined"),
    (NOISY, lambda: sparse_vector([PEOPLE], [1.0]), "cost=SparseV"),
    (SVT, lambda: sparse_vector([1.0] * PEOPLE, [1.0]), "one threshold for all"),
    (SVT, lambda: sparse_vector([]), "needs queries"),
    *(
        (SVT, lambda bad=bad: sparse_vector(*bad), "no finite number")
        for value in (math.inf, "7", True)
        for bad in (([value],), ([1.0], value))
    ),
    (NOISY, descend, "EarlyStopping"),
    (LOOP, lambda: descend(sigma=PEOPLE), "under IndividualBound"),
    (LOOP, lambda: descend(sampling_rate="0.5"), "PoissonSampledGaussian"),
    (LOOP, lambda: descend(norm="1.5"), "at least the clip"),
    (LOOP, lambda: descend(np.zeros((0, 2))), "of 1 to 8388608 people"),
    (NOISY, lambda: person_sum(range(PEOPLE), sigma=9), "PersonBudgets"),
    (NOISY, bounds, "ExponentialMechanism"),
    (EXPONENTIAL, lambda: bounds(quantiles=[0.1, 0.9]), r"Repeated(Exponential"),
    (EXPONENTIAL, lambda: bounds("text"), "numbers, not str"),
    (EXPONENTIAL, lambda: bounds(np.array(["a"])), "numbers, not ndarray"),
    *(
        (EXPONENTIAL, lambda c=column: bounds(c([str(PEOPLE)])), "would count as zero")
        for column in (pd.Series, pa.array, lambda c: np.array(c, object))
    ),
    (EXPONENTIAL, lambda: bounds(candidates=[1]), "2 to 10000 candidates"),
    (EXPONENTIAL, lambda: bounds(quantiles=[0]), "between 0 and 1"),
    (NOISY, lambda: private_groups([1], ["a"]), "ApproxDP"),
    (GROUP, lambda: private_groups([1], ["a"], max_groups=-PEOPLE), "max_groups must"),
    (GROUP, lambda: private_groups([1], ["a"], max_groups=2), r"Repeated(ApproxDP"),
    (NOISY, lambda: top_k([1], ["a"]), "TopK"),
    (PICK, lambda: top_k(range(PEOPLE), ["a"]), "as many of one"),
    (PTR, lambda: median(VALUES, bound=1), "is private for the relation replace-one"),
    (MODEL, fit, "is private for the relation replace-one"),
]
#: The same under replace-one.
REPLACED = [
    (EarlyStopping(Gaussian(sensitivity=1, sigma=99), stops=(2,)), descend, "twice"),
    (NOISY, lambda: interquartile_range(VALUES), "ProposeTestRelease"),
    *(
        (PTR, lambda v=v, o=o: interquartile_range(v, **o), "need")
        for v, o in [
            (np.zeros(7), {}),
            (np.zeros(PEOPLE), {"base": math.nan}),
            (np.zeros(PEOPLE), {"shift": 1.0}),
        ]
    ),
    (NOISY, lambda: trimmed_mean(VALUES, bound=1, trim=0.1), "Propose"),
    (NOISY, lambda: median(VALUES, bound=1), "ProposeTestRelease"),
    (TWICE, lambda: median(VALUES, bound=1), "tries=1"),
    (PTR, lambda: median(np.zeros(2), bound=1), "one value for each"),
    (PTR, lambda: trimmed_mean(np.zeros(9), bound=1, trim="0.1"), "at least 1 person"),
    *(
        (OutputDP(cells), fit, "cost=recoverable_model")
        for cells in ({"none": 1, "other": 2}, {"none": 2, "model": 1})
    ),
    *(
        (MODEL, lambda o=o: fit(**o), "people")
        for o in [{"train": True}, {"train": PEOPLE}]
    ),
    (MODEL, lambda: fit(threshold=math.nan), "finite number"),
    (MODEL, lambda: fit(labels=ROWS[:5, 0]), "more than train="),
]


@pytest.mark.parametrize("relation", ["add-or-remove", "replace-one"])
def test_a_refusal_is_shown_and_charged(tmp_path, monkeypatch, relation):
    """In full, with its reason and without a number that the body counted."""
    words = {"epsilon": "100", "delta": "1e-4", "relation": relation}
    make_shop(tmp_path, monkeypatch, "{theorem: zcdp, delta_loss: 5e-5}", **words)
    for cost, call, reason in REPLACED if relation == "replace-one" else CASES:
        error = caught(guarded(dataset="shop", cost=cost)(call))
        assert type(error) is PublicError, error
        assert reason in error.message
        assert "was charged in full" in error.message
        assert str(PEOPLE) not in error.message.replace(repr(cost), "")


def test_a_budget_of_each_person_needs_its_options(tmp_path, monkeypatch):
    """Noise and steps are arguments there, and the relation is add-or-remove."""
    words = {"epsilon": "5", "relation": "add-or-remove"}
    make_shop(tmp_path, monkeypatch, "{theorem: individual, measure: gdp}", **words)
    bound = IndividualBound(measure="gdp", bound="0.01")
    error = caught(guarded(dataset="shop", cost=bound)(descend))
    assert "takes sigma= and steps= under IndividualBound" in error.message
    with pytest.raises(PublicError, match="outside the body"):
        descend()
