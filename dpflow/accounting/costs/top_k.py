"""The largest groups of a table: a choice that pays per returned name."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dpflow.accounting.costs.base import Outcome, whole_number
from dpflow.accounting.costs.outcomes import MOST_CELLS, OutcomeCost, OutputDP
from dpflow.rounding import Number, bound_above, exact_delta, exact_epsilon, to_real


@dataclass(frozen=True, init=False, repr=False)
class TopK(OutcomeCost):
    """Names of the largest unlisted groups, up to `most` of them.

    The choice is among the `among` largest and an end, which lies above the next one by
    a margin. The end may come early; an output of t names, with the end as one if it
    came, costs t / `most` of epsilon. Delta is lost either way.

    Source: Durfee, Rogers 2019 (arXiv 1905.04273) Alg. 1, whose composition "pay what
    you get" follows from the cells; docs/derivations/output-dp.md#largest-groups. The
    outcome is the number of picks, the end included.

    Assumes: one privacy unit is in each group once, and in however many groups.

    Args:
        epsilon: Of all picks together.
        delta: Probability with which a name comes out that only one person carries
            among the largest.
        most: Names after which it ends.
        among: How many groups, the largest ones, are looked at; a larger number lets
            smaller groups be named, and the margin grows with its logarithm.

    Raises:
        InvalidCost: If a number is out of range.
    """

    epsilon: Fraction
    delta: Fraction
    most: int
    among: int

    noise_powers = (("epsilon", -1),)

    #: A person who replaces another may shrink one group and make the next one grow.
    relations = ("add-or-remove",)

    def __init__(
        self, *, epsilon: Number, delta: Number, most: int, among: int = 1000
    ) -> None:
        self._set(epsilon=exact_epsilon(epsilon), delta=exact_delta(delta, zero=False))
        count = whole_number(most, name="most", low=1, high=MOST_CELLS)
        looked_at = whole_number(among, name="among", low=count, high=MOST_CELLS)
        object.__setattr__(self, "most", count)
        object.__setattr__(self, "among", looked_at)

    @property
    def pick(self) -> Fraction:
        """Epsilon of one pick."""
        return self.epsilon / self.most

    @property
    def margin(self) -> int:
        """Distance, in people, of the end above the largest excluded group.

        1 + log(among (1 - delta) / delta) / pick, rounded up.
        """

        def above(mp: Any) -> Any:
            odds = self.among * (1 - self.delta) / self.delta
            return mp.log(to_real(mp, odds)) / to_real(mp, self.pick)

        return 1 + math.ceil(bound_above(above))

    def highest(self) -> tuple[Fraction, Fraction]:
        """Return (epsilon of all picks, delta)."""
        return self.epsilon, self.delta

    def output_dp(self) -> OutputDP:
        """Return the cells: the numbers of picks."""
        picks = range(1, self.most + 1)
        return OutputDP({str(t): t * self.pick for t in picks}, delta=self.delta)

    def cell(self, outcome: Outcome) -> str:
        """Return the cell of a number of picks."""
        return str(whole_number(outcome, name="picks", low=1, high=self.most))
