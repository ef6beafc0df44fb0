"""Errors in the declaration of a mechanism: shown to the author, without data."""

from __future__ import annotations

import numpy as np
import pytest

from dpflow import (
    ApproxDP,
    EarlyStopping,
    Laplace,
    PureDP,
    Refined,
    SparseVector,
    guarded,
    iterations,
    release,
)
from dpflow.costs import TopK
from dpflow.exceptions import PublicError
from dpflow.mechanisms import (
    gradient_descent,
    interquartile_range,
    median,
    person_sum,
    private_bounds,
    private_groups,
    sparse_vector,
    top_k,
    trimmed_mean,
)
from tests.projects import POLICY, caught, make_project

NOISY = Laplace(sensitivity=1, epsilon="0.1")
SVT = SparseVector(positives=1, epsilon="0.1")
LOOP = EarlyStopping(NOISY, stops=(1,))
#: A number that no text may show: the body has counted it.
PEOPLE = 31415
VALUES = np.full((PEOPLE, 1, 1), 0.5)


#: A cost, what the body calls, and what the error says.
CASES = {
    "release": (PureDP(epsilon="0.1"), lambda: release(PEOPLE), "only a guarantee"),
    "release-kind": (NOISY, lambda: release({"a": [PEOPLE]}), "cannot noise"),
    "iterations": (NOISY, lambda: [*iterations()], "EarlyStopping"),
    "sparse_vector": (NOISY, lambda: sparse_vector([PEOPLE], [1.0]), "cost=SparseV"),
    "thresholds": (SVT, lambda: sparse_vector([1.0] * PEOPLE, [1.0]), "thresholds"),
    "range": (NOISY, lambda: interquartile_range(VALUES), "ProposeTestRelease"),
    "trimmed_mean": (NOISY, lambda: trimmed_mean(VALUES, bound=1, trim=0.1), "Propose"),
    "median": (NOISY, lambda: median(VALUES, bound=1), "ProposeTestRelease"),
    "refined": (
        NOISY,
        lambda: release([PEOPLE], until=len),
        "cost=Refined",
    ),
    "sensitivity": (
        Refined(Laplace(sensitivity="0.5", scale=9), coarsest=80),
        lambda: release([PEOPLE], until=len),
        "sensitivity below 1",
    ),
    "both": (
        Refined(NOISY, coarsest=80),
        lambda: release([PEOPLE], until=len, within=PEOPLE),
        "Give one of them",
    ),
    "descent": (
        NOISY,
        lambda: gradient_descent(np.zeros(1), lambda _: VALUES, norm=1, rate=0.1),
        "EarlyStopping",
    ),
    "options": (
        LOOP,
        lambda: gradient_descent(
            np.zeros(1), lambda _: VALUES, norm=1, rate=0.1, sigma=PEOPLE
        ),
        "IndividualBound",
    ),
    "person_sum": (NOISY, lambda: person_sum(range(PEOPLE), sigma=9), "PersonBudgets"),
    "bounds": (
        NOISY,
        lambda: private_bounds([PEOPLE], [1, 2], max_rows=1),
        "ExponentialMechanism",
    ),
    "groups": (NOISY, lambda: private_groups([1], ["a"]), "ApproxDP"),
    "max_groups": (
        ApproxDP(epsilon="0.1", delta="1e-8"),
        lambda: private_groups([1], ["a"], max_groups=-PEOPLE),
        "max_groups must be",
    ),
    "top_k": (NOISY, lambda: top_k([1], ["a"]), "TopK"),
    "columns": (
        TopK(most=1, among=2, epsilon="0.1", delta="1e-8"),
        lambda: top_k(range(PEOPLE), ["a"]),
        "as many of one",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_error_in_a_declaration_is_shown(tmp_path, monkeypatch, case):
    """Charged in full, with its reason and without a number that the body counted."""
    policy = POLICY.replace("{epsilon: 1}", "{epsilon: 1, delta: 1e-6}")
    if case in {"range", "trimmed_mean", "median"}:
        policy = policy.replace("add-or-remove", "replace-one")
    make_project(tmp_path, monkeypatch, policy)
    cost, call, reason = CASES[case]
    error = caught(guarded(dataset="shop", cost=cost)(call))
    assert type(error) is PublicError
    assert reason in error.message
    assert "was charged in full" in error.message
    assert str(PEOPLE) not in error.message
