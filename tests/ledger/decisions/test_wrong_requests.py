"""Requests that are refused before anything is charged: no term, account or entry."""

from __future__ import annotations

from typing import Any

import pytest

from dpflow import (
    EarlyStopping,
    PoissonSampledGaussian,
    RandomizedResponse,
    SparseVector,
)
from dpflow.accounting.costs.composed import Repeated
from dpflow.accounting.rules.individual import IndividualBound
from dpflow.exceptions import ConfigurationError, UnsupportedCost
from tests.ledger.support import (
    BASIC,
    everything,
    granted,
    make_policy,
)

pytestmark = pytest.mark.quick

SAMPLED = PoissonSampledGaussian(sampling_rate="0.01", noise_multiplier=1)


#: What no ledger keeps, by field of a request: a database that keeps other text than
#: was hashed would always look edited.
KEPT: dict[str, tuple[Any, ...]] = {
    "reservation": ("", "x" * 201, "a b", "a\0b", "\ud800"),
    "owner": ("",),
    "policies": ((BASIC, BASIC),),
    "step": ("", "\ud800"),
    "flow": ("x" * 401, "a\0b"),
    "enclosing_runs": (("r", "\ud800"),),
    "release_key": ("0" * 63, "G" * 64),
    "key_text": ("\udfff",),
}
#: Facts of the ledger, which come from no request: a key, another owner.
FACTS = ("key", "owner", "alerts", "units", "accounts")
WRONG: list[tuple[dict[str, Any], str]] = [
    *(({name: value}, "") for name, values in KEPT.items() for value in values),
    *(({"body": {name: "x"}}, f"says '{name}'") for name in FACTS),
    ({"policies": ()}, "reads no dataset"),
]


@pytest.mark.parametrize(("fields", "words"), WRONG)
def test_a_wrong_request_leaves_no_trace(ledger, fields, words):
    """It errs before the charge, and says why."""
    before = everything(ledger)
    with pytest.raises((ConfigurationError, UnsupportedCost), match=words or None):
        granted(ledger, **fields)
    assert everything(ledger) == before


@pytest.mark.parametrize(
    ("relation", "cost"),
    [
        ("replace-one", SAMPLED),
        ("replace-one", Repeated(SAMPLED, 3)),
        ("replace-one", EarlyStopping(SAMPLED, stops=(2, 4))),
        ("replace-one", SparseVector(positives=2, epsilon="0.1", monotone=True)),
        ("replace-one", IndividualBound(measure="rdp", order=8, bound="0.1")),
        ("replace-one", IndividualBound(measure="gdp", bound="0.1")),
        ("add-or-remove", RandomizedResponse(epsilon=1)),
    ],
    ids=lambda value: value if isinstance(value, str) else value.mechanism,
)
def test_a_cost_priced_for_the_other_relation_is_refused(ledger, relation, cost):
    """Wherever the sampled Gaussian hides, replace-one does not admit it.

    Nor what it would charge for one person only, where a replaced one is two people.
    """
    other = {"replace-one": "add-or-remove"}.get(relation, "replace-one")
    refusing, granting = (
        make_policy(
            relation=name,
            budget="{epsilon: 5, delta: 1e-6}",
            filter="{theorem: rdp, order: 8}",
        )
        for name in (relation, other)
    )
    with pytest.raises(UnsupportedCost, match=relation):
        granted(ledger, cost, policies=[refusing])
    granted(ledger, cost, policies=[granting])
