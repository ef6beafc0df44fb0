"""Members of a rule that is made of several: their options, components and prices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Any

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.rules.rule import Odometer, Rule
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import InvalidCost, UnsupportedCost
from dpflow.rounding import number_text, short_up

#: Filters and odometers that are no members: their tallies are not a step's price, or
#: they are made of members themselves.
_NO_MEMBERS = ("best", "individual", "plan", "portfolio")
_MOST_MEMBERS = 16

Member = str | Mapping[str, Any]


def member_options(member: object, delta: Fraction) -> dict[str, Any]:
    """Return a member's options, with its theorem and its part of delta."""
    options: dict[str, Any] = {"delta": delta}
    if isinstance(member, str):
        options["theorem"] = member
    elif isinstance(member, Mapping) and "theorem" in member:
        options.update(member)
    else:
        msg = f"a member is a theorem's name or a mapping with one, got {member!r}"
        raise InvalidCost(msg, name="members", value=repr(member))
    if options["theorem"] in _NO_MEMBERS:
        msg = f"{options['theorem']!r} cannot be a member of a portfolio"
        raise InvalidCost(msg, name="members", value=options["theorem"])
    forbidden = {"epsilon", "halt_at_epsilon"} & set(options)
    if forbidden:
        msg = f"a member has no {forbidden.pop()} of its own; all share one"
        raise InvalidCost(msg, name="members", value=options["theorem"])
    return options


def check_split(parts: Sequence[Fraction], delta: Fraction) -> None:
    """Refuse too many members, and parts that exceed delta.

    Raises:
        InvalidCost: If it is so.
    """
    if not 0 < len(parts) <= _MOST_MEMBERS:
        msg = f"members must be 1 to {_MOST_MEMBERS} theorems, got {len(parts)}"
        raise InvalidCost(msg, name="members", value=len(parts))
    if sum(parts) > delta:
        msg = (
            f"the members' deltas sum to {short_up(sum(parts, Fraction(0)))}, more "
            f"than the {number_text(delta)} there is: each needs a part of its own."
        )
        raise InvalidCost(msg, name="members", value=None, high=delta)


def layout_of(
    members: Sequence[Rule],
) -> tuple[tuple[str, ...], list[tuple[int, int]]]:
    """Return the names of all components, and where each member's start and end."""
    names: list[list[str]] = []
    for i, member in enumerate(members):
        twins = [m for m in members[:i] if m.theorem == member.theorem]
        label = f"{member.theorem}#{len(twins) + 1}" if twins else member.theorem
        own = [*member.components]
        if not isinstance(member, Odometer):
            own.append("uncovered")
        names.append([f"{label}/{name}" for name in own])
    ends = accumulate((len(own) for own in names), initial=0)
    flat = tuple(name for own in names for name in own)
    return flat, list(pairwise(ends))


def prices_of(
    members: Sequence[Rule], price: Callable[[int], Tally]
) -> tuple[tuple[int, ...], list[str]]:
    """Return all members' amounts, and why some have no price."""
    amounts: list[int] = []
    reasons: list[str] = []
    for i, member in enumerate(members):
        try:
            amounts += price(i).amounts
        except UnsupportedCost as error:
            reasons.append(f"{member.theorem}: {error.message}")
            own = len(member.components) - isinstance(member, Odometer)
            amounts += (*(0,) * own, 1)
    return tuple(amounts), reasons


def uncovered_error(cost: Cost, theorem: str, reasons: list[str]) -> UnsupportedCost:
    """Return the error of a step that no member has a price for."""
    return UnsupportedCost(
        f"no member of the {theorem} has a sound price for {cost!r}. "
        + " ".join(reasons),
        theorem=theorem,
        mechanism=cost.mechanism,
    )
