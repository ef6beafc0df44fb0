"""Planned noise becomes a number: what the term pins for the step, before it asks.

What the ledger decides about, charges and journals is the concrete cost, and that is
what `release` draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.planned import PlannedNoise
from dpflow.exceptions import ConfigurationError, InvalidCost
from dpflow.ledger import Ledger
from dpflow.ledger.decision.terms import agrees
from dpflow.ledger.views.terms import newest_term
from dpflow.policy import Policy
from dpflow.policy.planned_noise import planned_multiplier


def concrete(
    cost: Cost | PlannedNoise,
    *,
    step: str,
    flow: str | None,
    policies: Sequence[Policy],
    ledger: Ledger,
) -> Cost:
    """Return a step's cost, with the noise that its datasets plan for it.

    Of several datasets the one that plans the most noise says it.

    Raises:
        ConfigurationError: If a dataset's policy plans none for it.
    """
    if isinstance(cost, Cost):
        return cost
    try:
        most = max(
            planned_multiplier(_governing(policy, ledger), flow, step, cost)
            for policy in policies
        )
    except InvalidCost as error:
        msg = f"{error.message} The step did not run."
        raise ConfigurationError(msg) from error
    return cost.at(most)


def _governing(policy: Policy, ledger: Ledger) -> Mapping[str, Any]:
    """Return the ledger's copy, or what the first step will pin.

    A file that differs from the copy is refused or takes its place, by the decision.
    """
    term = newest_term(ledger, policy.dataset)
    if term is not None and agrees(term, policy):
        pinned: Mapping[str, Any] = term.facts["pinned"]
        return pinned
    return policy.pinned()
