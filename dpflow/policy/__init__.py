"""Policies: what governs a dataset, from YAML to the rules that the ledger keeps.

A policy names the dataset, whom the guarantee protects, the budget, the theorem that
defends it, and what each flow may use of it:

    dataset: cdnow
    unit: customer
    relation: add-or-remove
    budget: {epsilon: 3, delta: 1e-6}
    filter: gdp
    odometer: {theorem: rdp, delta: 1e-6}
    flows:
      weekly-report: {epsilon: 2, delta: 5e-7, halt_at_epsilon: 3}

Numbers are exact, and whatever is not understood is refused with the file, the line
and a hint.
"""

from __future__ import annotations

from dpflow.policy.fields import (
    Budget,
    FilterChoice,
    FlowShare,
    OdometerChoice,
    OnExhausted,
)
from dpflow.policy.files import PolicySet, load_policies, load_policy, parse_policy
from dpflow.policy.model import Policy
from dpflow.policy.schema import policy_schema

__all__ = [
    "Budget",
    "FilterChoice",
    "FlowShare",
    "OdometerChoice",
    "OnExhausted",
    "Policy",
    "PolicySet",
    "load_policies",
    "load_policy",
    "parse_policy",
    "policy_schema",
]
