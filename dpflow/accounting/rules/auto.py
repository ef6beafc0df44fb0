"""Union of filters of one budget: `auto` admits each step that a member admits."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, pairwise
from math import ceil
from typing import Any

import dpflow.accounting as theorems
from dpflow.accounting.costs.base import Cost
from dpflow.accounting.curves.conversions import rdp_epsilon_allowed
from dpflow.accounting.rules.rule import Filter, ThresholdFilter, price_or_error, unwrap
from dpflow.accounting.rules.tally import Tally
from dpflow.accounting.solving import before_solving
from dpflow.exceptions import DpflowError, InvalidCost, UnsupportedCost
from dpflow.rounding import Number, exact_delta, exact_epsilon, number_text, short_up

#: Shares of delta of the default members. `basic` has a tenth for the deltas of steps,
#: sampled Gaussians get at least half of the steps of the best whole order of `rdp`
#: (from noise multiplier 1.2 and (2, 1e-5) or (3, 1e-8) on), and other steps lose
#: least.
RESIDUE_SHARE, RDP_SHARE, ZCDP_SHARE, BASIC_SHARE = (
    Fraction(66, 100),
    Fraction(23, 100),
    Fraction(1, 100),
    Fraction(10, 100),
)
#: Parts of the shares of `residue` and `zcdp` for their own losses; the rest is
#: for deltas of steps.
RESIDUE_LOSS, ZCDP_LOSS = Fraction(131, 132), Fraction(3, 5)
#: `rdp` has a lower order in addition to its own, for sampled Gaussians' divergence
#: explodes at high orders: its weight, and the part of the zCDP steps of the own order
#: that it admits at least.
LOW_WEIGHT, LOW_KEEPS = Fraction(60, 100), Fraction(48, 100)


class AutoFilter(Filter):
    """Admit while at least one member admits all steps so far and the new one.

    Source: docs/derivations/auto.md#union-rule.
    Split the transcripts by a member that admits them entirely. On its part the
    interaction is the one that this member alone would have allowed, whose
    probabilities exceed e**epsilon times the neighbour's by at most its own delta. The
    parts add up to the sum of the members' deltas. Refunded sub-steps never ran.

    Assumes: each member's assumptions about the steps that it covers. Members, options
    and the split of delta are fixed in advance. A member must see every step: a step
    without a price is counted, and switches the member off permanently.

    Rounding: the members' own.

    Checked by: tests/accounting/rules/test_auto.py, tests/adversaries.

    Args:
        epsilon: Budget, positive.
        delta: Budget, in (0, 1).
        members: Members as `parameters` writes them, for a pinned rule; no option of a
            policy. Default: `residue` with 0.66 of delta (0.005 for deltas of steps),
            `rdp` with 0.23, mostly at an order below its own (`lower_order`), `zcdp`
            with 0.01 (0.004 for deltas of steps), and `basic` with 0.1, all for deltas
            of steps.

    Raises:
        InvalidCost: If a member is invalid, or the members' deltas exceed delta.
    """

    theorem = "auto"

    def __init__(
        self,
        *,
        epsilon: Number,
        delta: Number,
        members: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        self.epsilon: Fraction = exact_epsilon(epsilon)
        self.delta: Fraction = exact_delta(delta)
        self.members: tuple[Filter, ...] = (
            default_members(self.epsilon, self.delta)
            if members is None
            else tuple(theorems.make_filter(epsilon=epsilon, **m) for m in members)
        )
        parts = sum((member.delta for member in self.members), Fraction(0))
        if parts > self.delta:
            msg = (
                f"the members' deltas sum to {short_up(parts)}, more than the "
                f"{number_text(self.delta)} there is: each needs a part of its own."
            )
            raise InvalidCost(msg, name="members", value=None, high=self.delta)
        self.components, self._cuts = _layout_of(self.members)
        self.steady = all(member.steady for member in self.members)
        self._steady_price = lru_cache(maxsize=1024)(self._solve_price)
        # A threshold costs least to look at.
        self._by_speed = sorted(
            range(len(self.members)),
            key=lambda i: not isinstance(self.members[i], ThresholdFilter),
        )

    def step_price(self, cost: Cost) -> Tally:
        """Return the step's price of every member, or one uncovered step for it."""
        return self._all_prices(cost, self.zero())

    def price(self, cost: Cost, used: Tally | None = None) -> Tally:
        """Return a step's price for each member at a used amount.

        Raises:
            UnsupportedCost: If no member has a price for it.
        """
        if self.steady:
            return super().price(cost)
        return self._all_prices(cost, self.zero() if used is None else used)

    def _all_prices(self, cost: Cost, used: Tally) -> Tally:
        amounts: list[int] = []
        reasons: list[str] = []
        for i, member in enumerate(self.members):
            try:
                amounts += self._own_price(i, cost, used).amounts
            except UnsupportedCost as error:
                reasons.append(f"{member.theorem}: {error.message}")
                amounts += (*(0,) * len(member.components), 1)
        if len(reasons) == len(self.members):
            msg = f"no member of auto has a sound price for {cost!r}. "
            msg += " ".join(reasons)
            raise UnsupportedCost(msg, theorem=self.theorem, mechanism=cost.mechanism)
        return Tally(tuple(amounts))

    def _own_price(self, index: int, cost: Cost, used: Tally) -> Tally:
        member = self.members[index]
        if member.steady:
            return unwrap(self._steady_price(index, cost))
        return _own_price(member, cost, self._part(index, used))

    def _solve_price(self, index: int, cost: Cost) -> Tally | DpflowError:
        before_solving(lambda: self._steady_price(index, cost))
        return price_or_error(lambda: _own_price(self.members[index], cost, None))

    def settle_late(self, reserved: Tally, posted: Tally) -> Tally:
        """Return each member's posted amount; parts without a price return."""
        return self._by_member(
            posted,
            lambda i, own: self.members[i].settle_late(self._part(i, reserved), own),
        )

    def charge_late(self, used: Tally, more: Tally) -> Tally:
        """Return each member's posted amount, by its own rule."""
        return self._by_member(
            more, lambda i, own: self.members[i].charge_late(self._part(i, used), own)
        )

    def _by_member(self, tally: Tally, posted: Callable[[int, Tally], Tally]) -> Tally:
        amounts: list[int] = []
        for i in range(len(self.members)):
            own = posted(i, self._part(i, tally))
            amounts += (*own.amounts, self._count_uncovered(i, tally))
        return Tally(tuple(amounts))

    def admits(self, tally: Tally) -> bool:
        """Return whether a member that covers all steps admits the tally."""
        return any(
            self._count_uncovered(i, tally) == 0
            and self.members[i].admits(self._part(i, tally))
            for i in self._by_speed
        )

    def used_fraction(self, tally: Tally) -> float:
        """Return the smallest share used of any member that covers all steps."""
        shares = (member.used_fraction(own) for member, own in self.covering(tally))
        return min(shares, default=float("inf"))

    def covering(self, tally: Tally) -> list[tuple[Filter, Tally]]:
        """Return the members that cover all steps, each with its own tally."""
        return [
            (member, self._part(i, tally))
            for i, member in enumerate(self.members)
            if self._count_uncovered(i, tally) == 0
        ]

    def _part(self, index: int, tally: Tally) -> Tally:
        start, end = self._cuts[index]
        return Tally(tally.amounts[start : end - 1])

    def _count_uncovered(self, index: int, tally: Tally) -> int:
        return tally.amounts[self._cuts[index][1] - 1]

    def label(self, tally: Tally) -> dict[str, str]:
        """Return the members' tallies as exact decimal text."""
        text: dict[str, str] = {}
        for i, member in enumerate(self.members):
            start, end = self._cuts[i]
            own = [*member.label(self._part(i, tally)).values()]
            own.append(str(self._count_uncovered(i, tally)))
            text.update(zip(self.components[start:end], own, strict=True))
        return text

    def parameters(self) -> dict[str, Any]:
        """Return the numbers that determine the filter, including derived ones."""
        members = [
            {k: v for k, v in member.parameters().items() if k != "epsilon"}
            for member in self.members
        ]
        return {
            "theorem": self.theorem,
            "epsilon": number_text(self.epsilon),
            "delta": number_text(self.delta),
            "members": members,
        }


def default_members(epsilon: Fraction, delta: Fraction) -> tuple[Filter, ...]:
    """Return the default filters of `auto`.

    Without a delta there is only `basic`. If no order up to a million allows anything
    (an epsilon near 1e-6), `rdp` is omitted.
    """

    def member(theorem: str, share: Fraction, **options: Any) -> Filter:
        return theorems.make_filter(
            theorem, epsilon=epsilon, delta=share * delta, **options
        )

    if delta == 0:
        return (member("basic", BASIC_SHARE),)
    residue, zcdp = (
        member(theorem, share, delta_loss=part * share * delta)
        for theorem, share, part in (
            ("residue", RESIDUE_SHARE, RESIDUE_LOSS),
            ("zcdp", ZCDP_SHARE, ZCDP_LOSS),
        )
    )
    others = (zcdp, member("basic", BASIC_SHARE))
    try:
        renyi: Any = member("rdp", RDP_SHARE)
    except InvalidCost:
        return (residue, *others)
    lower = lower_order(epsilon, RDP_SHARE * delta, renyi.order)
    if lower is not None:
        orders, weights = [lower, renyi.order], [LOW_WEIGHT, 1 - LOW_WEIGHT]
        renyi = member("rdp", RDP_SHARE, orders=orders, weights=weights)
    return (residue, renyi, *others)


def lower_order(epsilon: Fraction, delta: Fraction, order: Fraction) -> Fraction | None:
    """Return the order that `auto` adds to the best one for zCDP steps.

    That is the least whole order that, at 0.6 of delta, alone admits 0.48 of
    the zCDP steps of the other one; None if no order below does. It is about two
    thirds of the other one.

    Args:
        epsilon: Budget, positive.
        delta: The delta of both orders together.
        order: The best order for zCDP steps.
    """

    def steps_at(low: int | Fraction, part: Fraction) -> Fraction:
        return rdp_epsilon_allowed(epsilon, part, Fraction(low), tight=True) / low

    least = LOW_KEEPS * steps_at(order, delta)
    # Below the best order the number of steps grows with the order.
    orders = range(2, ceil(order))
    position = bisect_left(
        orders, True, key=lambda low: steps_at(low, LOW_WEIGHT * delta) >= least
    )
    return Fraction(orders[position]) if position < len(orders) else None


def _own_price(member: Filter, cost: Cost, used: Tally | None) -> Tally:
    """Return a filter's price followed by its count of uncovered steps, zero."""
    return Tally((*member.price(cost, used).amounts, 0))


def _layout_of(
    members: Sequence[Filter],
) -> tuple[tuple[str, ...], list[tuple[int, int]]]:
    """Return the names of all components, and where each member's start and end."""
    names = [
        [f"{member.theorem}/{name}" for name in (*member.components, "uncovered")]
        for member in members
    ]
    ends = accumulate((len(own) for own in names), initial=0)
    return tuple(name for own in names for name in own), list(pairwise(ends))
