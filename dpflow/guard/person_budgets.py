"""Which steps people may pay for, each from a budget of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dpflow.accounting.costs.base import Cost
from dpflow.config import Settings
from dpflow.exceptions import require
from dpflow.ledger import is_postgres
from dpflow.policy import Policy


def check_person_budgets(
    found: Settings,
    cost: Cost,
    policies: Sequence[Policy],
    flow: str | None,
    *,
    own: bool,
) -> None:
    """Refuse a step that people would pay for where one filter is not all that counts.

    Raises:
        ConfigurationError: If so; nothing was charged.
    """
    if not cost.paid_by_people:
        return
    policy = policies[0]
    name, rule = repr(policy.dataset), policy.dataset_filter()
    has_share = flow is not None and policy.flow_filter(flow) is not None
    is_divided = policy.partition is not None or policy.population is not None
    hindrances = {
        'the step says noise="own", and only person_sum draws its noise': own,
        "the step reads more than one dataset; make a step for each": policies[1:],
        f"the policy of {name} says filter: {rule.theorem}; a budget for every person "
        "needs filter: {theorem: individual, measure: gdp}": not rule.per_person,
        f"the policy of {name} gives flow {flow!r} a share of its own, and people have "
        "one budget; take the share out": has_share,
        f"dataset {name} is divided or part of a population, whose accounts do not "
        "know what each person has left": is_divided,
    }
    for why, hinders in hindrances.items():
        message = f"PersonBudgets() cannot be charged: {why}. The step did not run."
        require(not hinders, message)
    people_folder(found)


def people_folder(found: Settings) -> Path:
    """Return the folder of the stores: private data, beside the ledger by default.

    Raises:
        ConfigurationError: If the ledger is no file and nobody said where.
    """
    if found.people is not None:
        return found.people
    require(
        not is_postgres(found.ledger_url),
        "nobody said where the store of what people have left is. Set `people` in "
        "[tool.dpflow] of pyproject.toml, or DPFLOW_PEOPLE, to a folder beside the "
        "data that all workers share; it is private data like the data.",
    )
    return Path(found.ledger_url.removeprefix("sqlite:///")).parent / "people"
