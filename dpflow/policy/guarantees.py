"""Several guarantees of one policy: the same person by the day, the month and for life.

The one of the shortest period is the budget of each partition, the one of the person is
the lifetime, and those between have an account for each of their periods.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic_core import InitErrorDetails

from dpflow.policy.fields import Budget, Guarantee
from dpflow.policy.partition import LONGER, Partition
from dpflow.policy.pinned import TIMES
from dpflow.policy.types import problem_at


def period_of(unit: str) -> str | None:
    """Return the period that a unit is of; None for the person."""
    period = unit.rpartition("-")[2]
    return period if "-" in unit and period in TIMES else None


def fields_of(given: object) -> dict[str, Any]:
    """Return the fields that guarantees stand for; none if they cannot be read."""
    if not isinstance(given, Sequence) or isinstance(given, str):
        return {}
    read = [dict(each) for each in given if isinstance(each, Mapping)]
    units = [each.pop("unit", None) for each in read]
    if len(read) < len(given) or not all(isinstance(unit, str) for unit in units):
        return {}
    periods = [period_of(unit) for unit in units]
    named = [period for period in TIMES if period in periods]
    if not named:
        return {}
    first = periods.index(named[0])
    found = {"unit": units[first], "budget": read[first]}
    found["partition"] = {"by": named[0]}
    if None in periods:
        found["lifetime"] = read[periods.index(None)]
    return found


def longer(guarantees: Sequence[Guarantee], unit: str) -> dict[str, Guarantee]:
    """Return the guarantees of periods that are longer than the partitions."""
    found = {period_of(each.unit): each for each in guarantees if each.unit != unit}
    return {period: found[period] for period in TIMES if period in found}


def guarantee_problems(
    guarantees: Sequence[Guarantee],
    *,
    unit: str,
    partition: Partition | None,
    budget: Budget,
    lifetime: Budget | None,
) -> Iterator[InitErrorDetails]:
    """Refuse guarantees that are not of one person, or that other fields contradict."""
    if not guarantees:
        return
    units = [each.unit for each in guarantees]
    by = None if partition is None else partition.by
    if len(units) < 2 or len(set(units)) < len(units) or by not in TIMES:  # noqa: PLR2004
        message = "guarantees are of one person, once each, by several periods."
        hint = "Write such as user-day, user-month and user; for one, write `budget`."
        yield problem_at(message, hint, "guarantees")
        return
    person = unit.removesuffix(f"-{by}")
    for place, each in enumerate(guarantees):
        period = period_of(each.unit)
        if period is None:
            fits = each.unit == person and _same(each, lifetime)
        elif period == by:
            fits = each.unit == unit and _same(each, budget)
        else:
            fits = each.unit == f"{person}-{period}" and period in LONGER.get(by, ())
        if not fits:
            message = (
                f"the guarantee of {each.unit!r} does not go with {unit!r}: it is of "
                "another person, its period does not hold whole partitions (a week may "
                "be in two months), or `budget` or `lifetime` says another number."
            )
            hint = f"Write {person}, or {person} with one of {LONGER.get(by, ())}."
            yield problem_at(message, hint, "guarantees", place, value=each.unit)


def _same(each: Guarantee, budget: Budget | None) -> bool:
    told = budget is not None and (budget.epsilon, budget.delta)
    return told == (each.epsilon, each.delta)
