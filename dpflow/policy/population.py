"""Populations: people who are in several datasets, under one cap.

A policy says `population: customers`; the file of that population has no dataset, and
every step on any of its datasets is charged to it as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from dpflow.policy.fields import (
    CHECK,
    Budget,
    Check,
    FilterChoice,
    Record,
    default_filter,
)
from dpflow.policy.model import Policy
from dpflow.policy.types import Name, Relation, Unit

#: What stands before a population's name where the ledger keeps datasets.
PREFIX = "population/"


def population_of(pinned: Mapping[str, Any]) -> str | None:
    """Return the name under which a ledger keeps a dataset's population."""
    name = pinned.get("population")
    return None if name is None else f"{PREFIX}{name}"


class Population(Record):
    """The cap of people who are in several datasets."""

    population: Name = Field(
        description="Name of the population, as policies of datasets say it.",
        examples=["customers"],
    )
    unit: Unit = Field(
        description="Whom the guarantee protects, in all datasets together.",
        examples=["customer"],
    )
    relation: Relation = Field(
        description="How two populations that differ in one unit differ.",
    )
    budget: Budget = Field(
        description="The most that all its datasets' releases of one term may lose.",
        examples=[{"epsilon": 5, "delta": "1e-6"}],
    )
    filter: FilterChoice = Field(
        default_factory=default_filter,
        description="The theorem that admits or refuses steps against the budget. "
        "Default: auto, for any mixture of steps.",
        examples=["gdp"],
    )
    lifetime: Budget | None = Field(
        default=None,
        description="The most that all terms of the population together may lose.",
        examples=[{"epsilon": 10, "delta": "1e-5"}],
    )
    check: Check = CHECK

    def as_policy(self) -> Policy:
        """Return the policy that the ledger keeps for it, under a name of its own."""
        return Policy(
            dataset=f"{PREFIX}{self.population}",
            unit=self.unit,
            relation=self.relation,
            budget=self.budget,
            filter=self.filter,
            lifetime=self.lifetime,
            check=self.check,
            other_flows="allow",
        )


def membership_problem(policy: Policy, population: Policy) -> tuple[str, str] | None:
    """Return why a dataset cannot belong to a population, and what to do."""
    unit = policy.unit
    if policy.partition is not None and policy.partition.by_time:
        unit = unit.removesuffix(f"-{policy.partition.by}")
    if unit != population.unit:
        message = (
            f"its unit is {unit!r}, and that of the population is {population.unit!r}."
        )
        return message, "Both must protect the same people."
    if policy.relation != population.relation:
        message = (
            f"its relation is {policy.relation}, and that of the population is "
            f"{population.relation}."
        )
        return message, "Write the same relation in both files."
    return None
