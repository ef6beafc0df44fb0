"""Needed and remaining shares of a budget that does not admit a step, in words."""

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
    """The component of a budget of which the smallest part of a step would fit.

    Attributes:
        component: Its name; "" if the budget has no other.
        needed: Needed share of the budget.
        remaining: Remaining share of the budget.
    """

    component: str
    needed: Fraction
    remaining: Fraction

    @classmethod
    def measure(cls, rule: Filter, used: Tally, amount: Tally) -> Shortage:
        """Return what a budget lacks for a step.

        Args:
            rule: The filter that does not admit the step; no union of filters.
            used: Settled and held amounts.
            amount: Amount of the step.
        """
        if rule.limit is None:
            before, after = map(rule.used_fraction, (used, used + amount))
            needed = Fraction(min(after - before, 2.0 * _MOST))
            return cls("", needed, Fraction(max(1 - before, 0.0)))
        limits = rule.limit.amounts
        several, shares = sum(map(bool, limits)) > 1, []
        sums = zip(rule.components, used.amounts, amount.amounts, limits, strict=True)
        for name, spent, more, limit in sums:
            whole, own = limit or 1, name if several else ""
            rest = Fraction(max(limit - spent, 0), whole)
            shares += [cls(own, Fraction(more, whole), rest)] if more else []
        none = cls("", Fraction(0), Fraction(0))
        return min(shares, key=lambda own: own.remaining / own.needed, default=none)

    def text(self, budget: str) -> str:
        """Return the needed and the remaining share in words."""
        remaining = short_down(100 * self.remaining, 3)
        return f"{self.part(self.needed, budget)}, {remaining}% remain"

    def part(self, share: Fraction, budget: str) -> str:
        """Return a part of the budget in words, rounded up."""
        own = f"{budget}'s {self.component}" if self.component else budget
        if share > 1:
            many = f"more than {_MOST:,}" if share > _MOST else short_up(share, 3)
            return f"{many} times {own}"
        return f"{short_up(100 * share, 3)}% of {own}"


def describe_members(rule: Filter, used: Tally, amount: Tally) -> Iterator[str]:
    """Say why each member of a union of filters does not admit a step."""
    before, after = (
        {id(member): own for member, own in rule.covering(total)}
        for total in (used, used + amount)
    )
    for member in rule.members:
        own, total = before.get(id(member)), after.get(id(member))
        reason = "cannot price this step"
        if own is None:
            reason = "ended at an earlier step that it cannot price"
        elif not member.admits(own):
            reason = "ended, its budget is used up"
        elif total is not None:
            shortage = Shortage.measure(member, own, total - own)
            reason = f"needs {shortage.text('its budget')}"
        yield f"{member.theorem} {reason}"
