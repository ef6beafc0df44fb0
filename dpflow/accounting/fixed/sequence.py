"""A sequence of steps fixed in the policy, composed optimally as a whole."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from dpflow.accounting.costs.base import Cost, cost_from_description, whole_number
from dpflow.accounting.costs.early_stopping import rising_stops
from dpflow.accounting.fixed.optimal import Parts
from dpflow.accounting.fixed.stops import ACCOUNTANTS, lemma_11
from dpflow.accounting.rules.rule import ThresholdFilter
from dpflow.accounting.rules.tally import Tally
from dpflow.accounting.rules.zcdp import one_of
from dpflow.exceptions import InvalidCost, UnsupportedCost
from dpflow.rounding import (
    Number,
    exact_delta,
    exact_epsilon,
    float_up,
    number_text,
    short_down,
    short_up,
)

_MOST_STEPS, _MOST_KINDS, _MOST_STOPS = 10**6, 1000, 1000
_SHOWN = 4


@dataclass(frozen=True)
class SequenceSteps:
    """One line of a sequence.

    Args:
        cost: What the step does.
        times: How often it runs in a row.
        spares: How many executions of it may crash and be run again.
    """

    cost: Cost
    times: int = 1
    spares: int = 0


class SequenceFilter(ThresholdFilter):
    """Admit each step as often as the sequence has it.

    The tally counts executions, one component per distinct cost. Optimal composition
    needs nothing else, because neither order nor stopping matters: let D(c) be a
    dominating pair of cost c and M the multiset of declared executions. After any first
    step of an adaptive analyst, the rest is a strategy on the same smaller
    multiset for every output, dominated by the product of the remaining pairs
    (induction), so the whole is dominated by the product of all pairs (composition of
    dominating pairs); a step never taken is dominated by any pair. Contrast
    docs/derivations/fixed.md#natural-filter, where outputs choose which costs run.

    So charges add up in any order; concurrent reservations, voids and forfeits are
    just counts. An execution that crashed stays counted, and running the step again
    needs a spare, which the composition includes.

    `stops` divide the transcripts into cells by the smallest prefix of the steps that
    contains what ran; by Lemma 11 each has an epsilon of its own (`spent`), with delta
    split over the stops in advance. They admit nothing more or less.

    Source: Zhu, Dong, Wang 2022 (arXiv 2106.08567) Thm 10; Hartmann et al. 2022, Lemma
    11 (docs/derivations/fixed.md#sequence-rule).

    Assumes: steps, stops and spares are fixed in advance; each execution is as
    declared, given the outputs before it.

    Rounding: the composition up; counts are exact.

    Checked by: tests/accounting/fixed/test_stops.py,
    tests/adversaries/test_fixed_sequences.py.

    Args:
        epsilon: Budget, positive.
        delta: Budget, in [0, 1).
        steps: The steps: costs, their descriptions, or mappings with `cost`, `times`
            (default 1) and `spares` (default 0).
        stops: Numbers of steps after which the run may end early for less epsilon.
            The full length is always one.
        deltas: The part of delta for each stop; default: equal parts.
        accountant: How the steps are composed: "pld" (default, optimal; exact for
            Gaussians and (epsilon, delta)-DP steps), "kov", "gdp", "rdp" or
            "basic".

    Raises:
        InvalidCost: If the steps do not fit the budget, or an option is wrong.
        UnsupportedCost: If the accountant has no price for a step.
    """

    theorem = "sequence"
    settlements: ClassVar[frozenset[str]] = frozenset({"full"})
    prices_substeps: ClassVar[bool] = False
    lists_steps: ClassVar[bool] = True

    def __init__(
        self,
        *,
        epsilon: Number,
        delta: Number = 0,
        steps: Sequence[Cost | Mapping[str, Any]],
        stops: Sequence[int] | None = None,
        deltas: Sequence[Number] | None = None,
        accountant: str = "pld",
    ) -> None:
        self.epsilon: Fraction = exact_epsilon(epsilon)
        self.delta: Fraction = exact_delta(delta)
        self.accountant = one_of("accountant", accountant, ACCOUNTANTS)
        self.entries = _entries(steps)
        self.length = sum(entry.times for entry in self.entries)
        if self.length > _MOST_STEPS:
            msg = f"a sequence has at most {_MOST_STEPS} steps, got {self.length}"
            raise InvalidCost(msg, name="steps", value=self.length, high=_MOST_STEPS)
        self.kinds = tuple(dict.fromkeys(entry.cost for entry in self.entries))
        self.components = tuple(repr(cost) for cost in self.kinds)
        self._index = {cost: i for i, cost in enumerate(self.kinds)}
        ends = (
            ()
            if stops is None
            else rising_stops(stops, high=self.length, most=_MOST_STOPS)
        )
        self.stops = tuple(sorted({*ends, self.length}))
        self.deltas = _deltas(deltas, self.delta, len(self.stops))
        self._limits = [Tally(self._limit_at(stop)) for stop in self.stops]
        self.thresholds = self._limits[-1].amounts
        self.epsilons = lemma_11(
            [self._parts(limit) for limit in self._limits], self.deltas, accountant
        )
        self._check_budget()

    def _limit_at(self, stop: int) -> tuple[int, ...]:
        """Count the executions before a stop: its steps, and spares of their costs."""
        counts = [0] * len(self.kinds)
        for entry, start in self._starts():
            counts[self._index[entry.cost]] += max(min(entry.times, stop - start), 0)
        for entry, start in self._starts():
            if start < stop:
                counts[self._index[entry.cost]] += entry.spares
        return tuple(counts)

    def _starts(self) -> list[tuple[SequenceSteps, int]]:
        ends = itertools.accumulate(entry.times for entry in self.entries)
        return [
            (entry, end - entry.times)
            for entry, end in zip(self.entries, ends, strict=True)
        ]

    def _parts(self, limit: Tally) -> Parts:
        pairs = zip(self.kinds, limit.amounts, strict=True)
        return tuple((cost, count) for cost, count in pairs if count)

    def _check_budget(self) -> None:
        for stop, epsilon, delta in zip(
            self.stops, self.epsilons, self.deltas, strict=True
        ):
            if epsilon > self.epsilon:
                share = "" if len(self.stops) == 1 else " (its part of delta)"
                msg = (
                    f"the sequence needs epsilon {short_up(epsilon)} at delta "
                    f"{short_up(delta)}{share} for its first {stop} steps and their "
                    f"spares; the budget has {short_down(self.epsilon)}. Use fewer or "
                    "noisier steps, fewer spares, or another split of delta."
                )
                raise InvalidCost(msg, name="steps", value=stop, high=self.epsilon)

    def step_price(self, cost: Cost) -> Tally:
        """Return one execution of the step.

        Raises:
            UnsupportedCost: If the sequence does not have the step.
        """
        index = self._index.get(cost)
        if index is None:
            steps = ", ".join(self.components[:_SHOWN])
            more = ", ..." if len(self.kinds) > _SHOWN else ""
            msg = (
                f"{cost!r} is not in the sequence, which has {steps}{more}. A sequence "
                "is fixed before its first charge: list the step in the filter's "
                "`steps`, which opens a new term, or use another dataset."
            )
            raise UnsupportedCost(msg, theorem=self.theorem, mechanism=cost.mechanism)
        return Tally(tuple(int(i == index) for i in range(len(self.kinds))))

    def used_fraction(self, tally: Tally) -> float:
        """Return the used share of the declared executions, rounded up."""
        share = float_up(Fraction(sum(tally.amounts), sum(self.thresholds)))
        return share if self.admits(tally) else max(super().used_fraction(tally), 1)

    def spent(self, tally: Tally) -> Fraction | None:
        """Return the epsilon of the transcript if the run ends here; None beyond it.

        It is the epsilon of the cell that the counts fall into, at the whole delta, in
        the sense of output differential privacy: the cost of a closed sequence in an
        account that composes by Hartmann et al., Thm 7.
        """
        if not any(tally.amounts):
            return Fraction(0)
        cells = zip(self._limits, self.epsilons, strict=True)
        return next((eps for limit, eps in cells if tally.fits_within(limit)), None)

    def label(self, tally: Tally) -> dict[str, str]:
        """Return the counts by step, as text."""
        return dict(zip(self.components, (str(n) for n in tally.amounts), strict=True))

    def parameters(self) -> dict[str, Any]:
        """Return the steps, with their stops and their parts of delta."""
        return {
            "theorem": self.theorem,
            "epsilon": number_text(self.epsilon),
            "delta": number_text(self.delta),
            "steps": [
                {"cost": e.cost.describe(), "times": e.times, "spares": e.spares}
                for e in self.entries
            ],
            "stops": list(self.stops),
            "deltas": [number_text(delta) for delta in self.deltas],
            "accountant": self.accountant,
        }


def _entries(steps: object) -> tuple[SequenceSteps, ...]:
    if isinstance(steps, str | bytes | Mapping) or not isinstance(steps, Sequence):
        msg = f"steps must be a list of costs, got {type(steps).__name__}"
        raise InvalidCost(msg, name="steps", value=str(steps)[:60])
    if not 1 <= len(steps) <= _MOST_KINDS:
        msg = f"a sequence has 1 to {_MOST_KINDS} lines of steps, got {len(steps)}"
        raise InvalidCost(msg, name="steps", value=len(steps), high=_MOST_KINDS)
    return tuple(_entry(step) for step in steps)


def _entry(step: object) -> SequenceSteps:
    if isinstance(step, Cost):
        return SequenceSteps(step)
    if not isinstance(step, Mapping):
        msg = f"a step of a sequence is a cost or a mapping, got {step!r}"
        raise InvalidCost(msg, name="steps", value=str(step)[:60])
    if "cost" not in step or "mechanism" in step:
        return SequenceSteps(cost_from_description(step))
    unknown = set(step) - {"cost", "times", "spares"}
    if unknown:
        msg = f"a step takes cost, times and spares, not {sorted(unknown)}"
        raise InvalidCost(msg, name="steps", value=str(sorted(unknown)))
    cost = step["cost"]
    return SequenceSteps(
        cost if isinstance(cost, Cost) else cost_from_description(cost),
        whole_number(step.get("times", 1), name="times", low=1, high=_MOST_STEPS),
        whole_number(step.get("spares", 0), name="spares", low=0, high=_MOST_STEPS),
    )


def _deltas(deltas: object, delta: Fraction, stops: int) -> tuple[Fraction, ...]:
    if deltas is None:
        return (exact_delta(delta / stops, name="delta of a stop"),) * stops
    if isinstance(deltas, str | bytes) or not isinstance(deltas, Sequence):
        msg = f"deltas must be a list of numbers, got {deltas!r}"
        raise InvalidCost(msg, name="deltas", value=str(deltas)[:60])
    shares = tuple(exact_delta(share, name="deltas") for share in deltas)
    total = sum(shares, Fraction(0))
    if len(shares) != stops or total > delta:
        msg = (
            f"{stops} stops (the full length is one) need as many deltas with a sum of "
            f"at most {short_down(delta)}, got {len(shares)} with {short_up(total)}"
        )
        raise InvalidCost(msg, name="deltas", value=len(shares), high=delta)
    return shares
