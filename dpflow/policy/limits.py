"""What must hold between the limits of a policy."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic_core import InitErrorDetails

from dpflow.policy.fields import Budget, FlowShare
from dpflow.policy.partition import Partition
from dpflow.policy.pinned import exact_text
from dpflow.policy.types import problem_at

_NAMES = ("epsilon", "delta")


def lifetime_problems(
    budget: Budget, lifetime: Budget | None
) -> Iterator[InitErrorDetails]:
    """Refuse a lifetime that does not even hold one term."""
    for name in _NAMES:
        asked = getattr(budget, name)
        if lifetime and asked > (whole := getattr(lifetime, name)):
            message = (
                f"the lifetime's {name} {exact_text(whole)} is below the budget's "
                f"{name} {exact_text(asked)}, so not even one term would fit."
            )
            hint = f"Write at least {exact_text(asked)}, or lower the budget."
            yield problem_at(message, hint, "lifetime", name, value=whole)


def share_problems(
    budget: Budget, share: FlowShare, place: tuple[str, ...]
) -> Iterator[InitErrorDetails]:
    """Refuse a flow's share that exceeds the budget."""
    for name in _NAMES:
        asked, whole = getattr(share, name), getattr(budget, name)
        if asked is not None and asked > whole:
            message = (
                f"the share's {name} {exact_text(asked)} exceeds the budget's "
                f"{name} {exact_text(whole)}."
            )
            hint = f"Give the flow at most {exact_text(whole)}, or raise the budget."
            yield problem_at(message, hint, *place, name, value=asked)


def partition_problems(
    partition: Partition, unit: str, relation: str
) -> Iterator[InitErrorDetails]:
    """Refuse partitions under which the guarantee would be another one."""
    found = partition.problem_with(unit, relation)
    if found:
        yield problem_at(*found, "partition")
