"""Populations: people who are in several datasets, under one cap.

A policy says `population: customers`; the file of that population has no dataset, and
every step on any of its datasets is charged to it as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from dpflow.policy.fields import Governing
from dpflow.policy.model import Policy
from dpflow.policy.types import Name

#: What stands before a population's name where the ledger keeps datasets.
PREFIX = "population/"


def population_of(pinned: Mapping[str, Any]) -> str | None:
    """Return the name under which a ledger keeps a dataset's population."""
    name = pinned.get("population")
    return None if name is None else f"{PREFIX}{name}"


class Population(Governing):
    """The cap of people who are in several datasets."""

    population: Name = Field(
        description="Name of the population, as policies of datasets say it.",
        examples=["customers"],
    )

    def as_policy(self) -> Policy:
        """Return the policy that the ledger keeps for it, under a name of its own."""
        fields = dict(self)
        name = f"{PREFIX}{fields.pop('population')}"
        return Policy(dataset=name, other_flows="allow", **fields)


def membership_problem(policy: Policy, population: Policy) -> tuple[str, str] | None:
    """Return why a dataset cannot belong to a population, and what to do."""
    unit = policy.unit
    if policy.partition is not None and policy.partition.by_time:
        unit = unit.removesuffix(f"-{policy.partition.by}")
    if (unit, policy.relation) == (population.unit, population.relation):
        return None
    message = (
        f"it protects each {unit} ({policy.relation}), and the population each "
        f"{population.unit} ({population.relation})."
    )
    return message, "Write the same unit and relation in both files."
