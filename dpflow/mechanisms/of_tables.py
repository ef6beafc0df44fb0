"""What real tables need first, in the body of a DP step: bounds, and which groups."""

# ruff: noqa: PLC0415 (the mechanisms import numpy, which takes long)

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.composed import Repeated
from dpflow.accounting.costs.noise import ExponentialMechanism
from dpflow.accounting.costs.notions import ApproxDP, ApproxZCDP
from dpflow.accounting.costs.top_k import TopK
from dpflow.exceptions import PublicError
from dpflow.guard.charge import Execution, current_execution
from dpflow.noise.sources import EXACT
from dpflow.rounding import Number

C = TypeVar("C", bound=Cost)

logger = logging.getLogger("dpflow")


def private_bounds(
    values: Iterable[Any],
    candidates: Sequence[Number],
    quantiles: Sequence[Number] = ("0.95",),
    *,
    max_rows: int = 1,
) -> tuple[Number, ...]:
    """Choose for each quantile of private numbers a public candidate near it.

    The running step must have declared `ExponentialMechanism`, for several quantiles
    `Repeated(ExponentialMechanism(...), HOW_MANY)`. Entries that are no numbers count
    as 0, as they do when they are clipped.

    Args:
        values: A list or column of numbers, at most `max_rows` of each person.
        candidates: Public numbers; what is returned is one of them.
        quantiles: Public, between 0 and 1: the share of the numbers up to the answer.
        max_rows: How many of the numbers one person has at most.

    Returns:
        As many candidates as quantiles, in their order.

    Raises:
        ReleaseError: Outside a step with such a cost, if the step has drawn noise
            already, or if values, candidates or quantiles cannot be used.

    Examples:
        >>> @guarded(dataset="cdnow", cost=ExponentialMechanism(epsilon="0.1"))
        ... def largest():
        ...     dearest = orders().groupby("customer")["dollars"].max()
        ...     return private_bounds(dearest, range(5, 505, 5))
    """
    from dpflow.mechanisms.bounds import quantiles_among

    who = "private_bounds()"
    execution, each = _claimed_parts(who, ExponentialMechanism, len(quantiles))
    with execution.drawing():
        return quantiles_among(
            values,
            candidates,
            quantiles,
            epsilon=each.epsilon,
            max_rows=max_rows,
            relation=_relation_of(execution),
        )


def private_groups(
    people: Iterable[Any], groups: Iterable[Any], *, max_groups: int = 1
) -> list[Any]:
    """Say which groups there are, as far as that tells nothing of anybody.

    A person counts in at most `max_groups` groups, which are drawn. The running step
    must have declared `ApproxDP`, or for several groups `Repeated(ApproxDP(...),
    max_groups)`: epsilon and delta are of each group. Under replace-one it is twice as
    many, for who is replaced leaves groups and others come into new ones. With
    `ApproxZCDP(rho=..., delta=...)`, of the whole table, Gaussian noise and a threshold
    decide: fewer people are needed where one person is in more than a few groups.

    A group has even odds with log(1 + (e^epsilon - 1) / (2 delta)) / epsilon people, or
    with about 2 + sigma z of them, sigma^2 = max_groups / (2 rho) and z the normal
    quantile of 1 - delta / max_groups. The log says how many.

    Args:
        people: The person of each row.
        groups: The group of each row: a text, an integer, a float, a bool, a date, or
            a tuple of them. Rows with anything else, or nobody, count for nothing.
        max_groups: How many groups of one person count.

    Returns:
        The groups, sorted.

    Raises:
        ReleaseError: Outside a step with such a cost, if the step has drawn noise
            already, or if there are not as many people as groups.
    """
    from dpflow.mechanisms.groups import even_odds, noisy_groups
    from dpflow.mechanisms.groups import private_groups as told_groups

    who = "private_groups()"
    replaced = _relation_of(current_execution(who)) == "replace-one"
    if type(max_groups) is not int or max_groups < 1:
        msg = "max_groups must be a whole number from 1"
        raise PublicError(msg)
    changed = max_groups * (2 if replaced else 1)
    execution = current_execution(who)
    cost: Any = execution.cost
    numbers: dict[str, Any]
    draw: Any = noisy_groups
    if isinstance(cost, ApproxZCDP):
        execution.claim_draw(who)
        numbers = {"rho": cost.rho, "delta": cost.delta, "changed": changed}
    else:
        _, cost = _claimed_parts(who, ApproxDP, changed)
        draw, numbers = told_groups, {"epsilon": cost.epsilon, "delta": cost.delta}
    logger.info("%s: a group has even odds at %d people", who, even_odds(**numbers))
    with execution.drawing():
        told: list[Any] = draw(people, groups, max_groups=max_groups, **numbers)
    return told


def top_k(people: Iterable[Any], groups: Iterable[Any]) -> list[Any]:
    """Name the groups with the most people, where nobody listed the groups.

    The running step must have declared `TopK`, under a policy whose relation is
    add-or-remove. How many picks were made, the end included, is the cell that is
    charged: a step that ends early leaves epsilon for another one.

    A group has even odds against the end if it has as many people more than the largest
    group that is not looked at as the cost's `margin`, which `dpflow forecast` shows.
    The log repeats it where fewer than `most` names come out.

    Args:
        people: The person of each row; each counts once in a group.
        groups: The group of each row, as for `private_groups`.

    Returns:
        The names in the order of the picks, at most `most`; fewer where no other group
        stands out.

    Raises:
        ReleaseError: Outside a step with such a cost, if the step has drawn noise
            already, or if there are not as many people as groups.

    Examples:
        >>> @guarded(dataset="shop", cost=TopK(epsilon=1, delta="1e-7", most=10))
        ... def best_sold(sales):
        ...     return top_k(sales["customer"], sales["product"])
    """
    from dpflow.mechanisms.largest_groups import top_k as draw

    execution, cost = _claimed_parts("top_k()", TopK, 1)
    with execution.drawing():
        drawn = draw(cost, people, groups)
        execution.report(drawn.cell)
    if len(drawn.output) < cost.most:
        logger.warning(
            "top_k() named %d of at most %d groups: a group has even odds against the "
            "end with %d people more than the largest group beyond the %d that it "
            "looks at",
            *(len(drawn.output), cost.most, cost.margin, cost.among),
        )
    return drawn.output


def _claimed_parts(asked_by: str, kind: type[C], times: int) -> tuple[Execution, C]:
    """Return the running execution, and the cost that it declared so many times."""
    execution = current_execution(asked_by)
    cost, found = execution.cost, 1
    if isinstance(cost, Repeated):
        cost, found = cost.substeps
    if not isinstance(cost, kind) or found != times:
        needed = f"{kind.__name__}(...)"
        needed = needed if times == 1 else f"Repeated({needed}, {times})"
        msg = (
            f"{asked_by} needs a step with cost={needed} here; step "
            f"{execution.request.step!r} declared {execution.cost!r}"
        )
        raise PublicError(msg)
    execution.claim_draw(asked_by, EXACT)
    return execution, cost


def _relation_of(execution: Execution) -> str:
    """Return the relation of a step's policies under which people change the most."""
    found = {policy.relation for policy in execution.request.policies}
    return "replace-one" if "replace-one" in found else "add-or-remove"
