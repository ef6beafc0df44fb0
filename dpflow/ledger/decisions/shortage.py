"""Needed and remaining shares of a budget that does not admit a step."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from dpflow.accounting.rules.rule import Filter
from dpflow.accounting.rules.tally import Tally
from dpflow.rounding import short_down, short_up

#: A larger multiple of a budget is not computed.
_MOST = 1000


class Shortage(NamedTuple):
    """The component of a budget that lacks most for a step.

    Attributes:
        component: Its name; "" if the budget has no other.
        needed: Needed share of the budget.
        remaining: Remaining share of the budget.
    """

    component: str
    needed: Fraction
    remaining: Fraction

    @property
    def missing(self) -> Fraction:
        """The share of the budget by which the step is too large."""
        return self.needed - self.remaining

    @property
    def fit(self) -> Fraction:
        """The part of the step that would fit, as far as amounts add up."""
        return self.remaining / self.needed if self.needed else Fraction(_MOST)

    def text(self, budget: str, mark: str = ";") -> str:
        """Return the needed and the remaining share in words."""
        remaining = short_down(100 * self.remaining, 3)
        return f"{self.part(self.needed, budget)}{mark} {remaining}% remain"

    def part(self, share: Fraction, budget: str) -> str:
        """Return a part of the budget in words, rounded up."""
        own = f"{budget}'s {self.component}" if self.component else budget
        if share > _MOST:
            return f"more than {_MOST:,} times {own}"
        if share > 1:
            return f"{short_up(share, 3)} times {own}"
        return f"{short_up(100 * share, 3)}% of {own}"


def measure_shortage(rule: Filter, used: Tally, amount: Tally) -> Shortage | None:
    """Return what lacks most of a budget; of a union, of its member that lacks least.

    Args:
        rule: The filter that does not admit the step.
        used: Settled and held amounts.
        amount: Amount of the step.

    Returns:
        None if no member of a union that has not ended can price the step.
    """
    if rule.members:
        members = [
            measure_shortage(member, before, after - before)
            for member, before, after in _split(rule, used, amount)
            if before is not None and after is not None and member.admits(before)
        ]
        shortages = [each._replace(component="") for each in members if each]
        return max(shortages, key=lambda each: each.fit, default=None)
    if rule.limit is None:
        shares = (rule.used_fraction(total) for total in (used, used + amount))
        before, after = (Fraction(min(share, 2.0 * _MOST)) for share in shares)
        return Shortage("", after - before, max(1 - before, Fraction(0)))
    columns = rule.components, used.amounts, amount.amounts, rule.limit.amounts
    is_single = sum(map(bool, rule.limit.amounts)) == 1
    results = list[Shortage]()
    for name, spent, more, limit in zip(*columns, strict=True):
        remaining = Fraction(max(limit - spent, 0), limit or 1)
        own = "" if is_single and limit else name
        results.append(Shortage(own, Fraction(more, limit or 1), remaining))
    return min(results, key=lambda each: each.fit)


def describe_members(rule: Filter, used: Tally, amount: Tally) -> Iterator[str]:
    """Say why each member of a union does not admit a step."""
    for member, before, after in _split(rule, used, amount):
        if before is None:
            yield f"{member.theorem} ended at an earlier step that it cannot price"
        elif not member.admits(before):
            yield f"{member.theorem} ended, its budget is used up"
        elif after is None:
            yield f"{member.theorem} cannot price this step"
        elif shortage := measure_shortage(member, before, after - before):
            yield f"{member.theorem} needs {shortage.text('its budget', ',')}"


def _split(
    rule: Filter, used: Tally, amount: Tally
) -> Iterator[tuple[Filter, Tally | None, Tally | None]]:
    """Yield each member with its tallies; None from an uncovered step on."""
    before, after = (
        {id(member): own for member, own in rule.covering(total)}
        for total in (used, used + amount)
    )
    for member in rule.members:
        yield member, before.get(id(member)), after.get(id(member))
