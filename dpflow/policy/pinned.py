"""What a ledger keeps of a policy: plain data, differences, the guarantee in words.

A ledger keeps two forms. `declared` is what the policy says about its guarantee, in
one spelling and without any number that a default derived; `pinned` has these numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from dpflow.periods import PERIODS
from dpflow.policy.strict_yaml import KeyPath, exact_decimal, key_text
from dpflow.policy.types import exact_text


def readable_text(number: Decimal) -> str:
    """Write a number as people do, 1e-06 or 3, unless a float would alter it."""
    text = repr(float(number)).removesuffix(".0")
    return text if Decimal(text) == number else exact_text(number)


# Differences


def difference_lines(ledger: Mapping[str, Any], file: Mapping[str, Any]) -> list[str]:
    """Compare two declared copies of a policy.

    Returns:
        Lines such as "budget.epsilon: ledger 3, file 4"; none if they are equal.
    """
    return [
        f"{key_text(path)}: ledger {value_text(old)}, file {value_text(new)}"
        for path, old, new in differing(ledger, file)
    ]


def differing(
    ledger: object, file: object, *path: str
) -> Iterator[tuple[KeyPath, Any, Any]]:
    """Yield the smallest parts that differ, with their places."""
    if isinstance(ledger, Mapping) and isinstance(file, Mapping):
        for key in sorted(ledger.keys() | file.keys()):
            yield from differing(ledger.get(key), file.get(key), *path, key)
    elif ledger != file:
        yield path, ledger, file


def value_text(value: object) -> str:
    """Write a part of a copy for people."""
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        value = {name: part for name, part in value.items() if part is not None}
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


# The guarantee

#: As `population.PREFIX`, which builds on this.
_POPULATION = "population/"


def guarantee_in_words(
    pinned: Mapping[str, Any], all_terms: str | None = None, *, shortly: bool = False
) -> str:
    """Say what a policy guarantees, and on which assumptions.

    Args:
        pinned: What `Policy.to_pinned` returned, from the file or from the ledger.
        all_terms: What is said of all terms together. Default: that they stay within
            the lifetime, if there is one.
        shortly: Whether the words that all guarantees share stand above already.
    """
    dataset, population = f"dataset {pinned['dataset']!r}", ""
    if pinned["dataset"].startswith(_POPULATION):
        population = pinned["dataset"].removeprefix(_POPULATION)
        dataset = f"all datasets of population {population!r}"
    budget = budget_text(pinned["budget"])
    terms = "in all terms" if "window" in pinned else "in one term"
    sentence = (
        f"all releases from {dataset} governed by this ledger {terms} together are "
        f"{budget}-differentially private{_span(pinned)}, if every declared "
        "sensitivity is right and every step draws the noise it declares."
    )
    if shortly:
        sentence = f"{budget} for {dataset}{_span(pinned)}, in the same sense."
    cap = budget_text(pinned["lifetime"]) if "lifetime" in pinned else None
    parts = [f"Every {pinned['unit']} ({pinned['relation']}): {sentence}"]
    if population:
        parts.append("What a dataset lost before it joined is not counted.")
    if "partition" in pinned:
        parts.append(_partition_words(pinned, cap))
    if "population" in pinned:
        parts.append(
            f"Every step is charged to the population {pinned['population']!r} as well."
        )
    if cap is not None:
        parts.append(all_terms or f"All terms together stay within {cap}.")
    return " ".join(parts)


def _span(pinned: Mapping[str, Any]) -> str:
    """Name the windows that the budget covers; "" without windows."""
    if "window" not in pinned:
        return ""
    (by, where), length = _period(pinned), pinned["window"]["length"]
    person = pinned["unit"].removesuffix(f"-{by}")
    return f" for what one {person} did in any {length} consecutive {by}s{where}"


def _period(pinned: Mapping[str, Any]) -> tuple[str, str]:
    """Name the period of parts by time, and its time zone in brackets, if any."""
    by = pinned["partition"]["by"]
    zone = pinned.get("zone", "UTC" if by in ("hour", "day") else None)
    return by, "" if zone is None else f" ({zone})"


def _partition_words(pinned: Mapping[str, Any], lifetime: str | None) -> str:
    """Say what partitions protect, and what they do not."""
    unit, (by, where) = pinned["unit"], _period(pinned)
    if by not in PERIODS:
        return (
            f"Each {by} has this budget to itself, and the guarantee holds if all "
            f"records of one {unit} belong to one {by} permanently."
        )
    person = unit.removesuffix(f"-{by}")
    lasting = f"Over all {by}s together, one {person} loses at most {lifetime}."
    if "window" in pinned:
        steps = "Every step reads rows of its named parts only."
        longer = "Longer periods are not covered; `lifetime` limits them."
        return f"{steps} {longer if lifetime is None else lasting}"
    if lifetime is None:
        lasting = (
            f"One {person} in many {by}s loses more, without a limit: give `lifetime` "
            "a budget to cap it."
        )
    return (
        f"Each {by}{where} has this budget to itself: it hides what one {person} did "
        f"in it. {lasting}"
    )


def budget_text(budget: Mapping[str, str]) -> str:
    """Write a budget for people, never an epsilon without its delta."""
    return (
        f"(epsilon = {_people(budget['epsilon'])}, delta = {_people(budget['delta'])})"
    )


def _people(text: str) -> str:
    number = exact_decimal(text)
    # A fraction such as 1/3 is no decimal.
    return text if number is None else readable_text(number)
