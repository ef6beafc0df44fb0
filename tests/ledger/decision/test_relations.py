"""A price holds under a neighbouring relation, and only there."""

from __future__ import annotations

import pytest

from dpflow import (
    EarlyStopping,
    Gaussian,
    PoissonSampledGaussian,
    RandomizedResponse,
    SparseVector,
)
from dpflow.accounting.costs.composed import Repeated
from dpflow.accounting.rules.individual import IndividualBound
from dpflow.exceptions import PolicyError, UnsupportedCost
from dpflow.policy import parse_policy
from tests.ledger.support import request

SAMPLED = PoissonSampledGaussian(sampling_rate="0.01", noise_multiplier=1)


def policy(relation, theorem="{theorem: rdp, order: 8}"):
    """Return a policy under a relation."""
    return parse_policy(
        f"dataset: a\nunit: person\nrelation: {relation}\n"
        f"budget: {{epsilon: 5, delta: 1e-6}}\nfilter: {theorem}\n"
    )


def ask(ledger, relation, cost):
    """Ask for a step on a dataset with this relation."""
    return ledger.reserve(request(ledger, cost, policies=(policy(relation),)))


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
    with pytest.raises(UnsupportedCost, match=relation):
        ask(ledger, relation, cost)
    other = {"replace-one": "add-or-remove"}.get(relation, "replace-one")
    assert ask(ledger, other, cost).accounts == ("a#1",)


@pytest.mark.parametrize("relation", ["add-or-remove", "replace-one"])
def test_other_costs_hold_for_the_datasets_relation(ledger, relation):
    """It is the monotone sparse vector alone that a replaced person breaks."""
    either = SparseVector(positives=2, epsilon="0.1")
    for cost in (Gaussian(sensitivity=1, sigma=20), either):
        assert ask(ledger, relation, cost).accounts == ("a#1",)


def test_the_individual_filter_is_refused_under_replace_one():
    """Replacing a person touches two people, so its policy is refused with a line."""
    assert policy("add-or-remove", "individual").filter.theorem == "individual"
    with pytest.raises(PolicyError, match="not for replace-one") as caught:
        policy("replace-one", "individual")
    assert caught.value.line == 5
