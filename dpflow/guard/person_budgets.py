"""Which steps people may pay for, each from a budget of their own."""

from __future__ import annotations

from collections.abc import Sequence

from dpflow.accounting.costs.base import Cost
from dpflow.exceptions import ConfigurationError
from dpflow.policy import Policy


def check_person_budgets(
    cost: Cost, policies: Sequence[Policy], flow: str | None, *, own: bool
) -> None:
    """Refuse a step that people would pay for where one filter is not all that counts.

    Raises:
        ConfigurationError: If so; nothing was charged.
    """
    if not cost.paid_by_people:
        return
    why = _hindrance(policies, flow, own=own)
    if why is not None:
        msg = f"PersonBudgets() cannot be charged: {why}. The step did not run."
        raise ConfigurationError(msg)


def _hindrance(
    policies: Sequence[Policy], flow: str | None, *, own: bool
) -> str | None:
    policy = policies[0]
    theorem = policy.filter.theorem
    if own:
        return 'the step says noise="own", and only person_sum draws its noise'
    if len(policies) > 1:
        return "the step reads more than one dataset; make a step for each"
    if theorem != "individual":
        return (
            f"the policy of {policy.dataset!r} says filter: {theorem}; a budget for "
            "every person needs filter: {theorem: individual, measure: gaussian}"
        )
    if flow is not None and policy.flow_filter(flow) is not None:
        return (
            f"the policy of {policy.dataset!r} gives flow {flow!r} a share of its own, "
            "and people have one budget; take the share out"
        )
    if policy.partition is not None or policy.population is not None:
        return (
            f"dataset {policy.dataset!r} is divided or part of a population, whose "
            "accounts do not know what each person has left"
        )
    return None
