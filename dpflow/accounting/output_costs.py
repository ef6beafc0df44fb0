"""Mechanisms whose output decides what they cost: stops, positives, no answer.

Their worst case is reserved before they run; the outcome is reported when they settle.
Sub-steps that never ran are refunded by every fully adaptive theorem, cells by `output`
and `renyi` (`Rule.price_realised`).
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar

from dpflow.accounting.costs import Cost, cost_from_description
from dpflow.accounting.curves import approx_dp
from dpflow.accounting.mechanism_costs import RELATIONS, relations_of, whole_number
from dpflow.accounting.outcomes import (
    MOST_CELLS,
    OutcomeCost,
    OutputDP,
    ProposeTestRelease,
    read_number,
)
from dpflow.accounting.theorem import Outcome
from dpflow.exceptions import InvalidCost
from dpflow.rounding import (
    SCALE_HIGH,
    SCALE_LOW,
    Number,
    bound_above,
    exact,
    exact_delta,
    exact_epsilon,
    number_text,
    to_real,
)

__all__ = [
    "ACCOUNTANTS",
    "EarlyStopping",
    "OutcomeCost",
    "OutputDP",
    "ProposeTestRelease",
    "SparseVector",
]

#: How `EarlyStopping` composes its sub-steps under the filter `output`.
ACCOUNTANTS = ("basic", "kov", "pld", "renyi", "gaussian", "optimal")

_MOST_SUBSTEPS = 10**6
_SPLIT_DIGITS = 12


@dataclass(frozen=True, init=False, repr=False)
class EarlyStopping(Cost):
    """An iterative step that may end early: after some number of equal sub-steps.

    Every fully adaptive theorem prices it as its sub-steps, reserves all of them and
    settles those that ran, wherever it stopped. The filter `output` can do better with
    an accountant: then the stop is a cell with an epsilon of its own, and `delta` is
    spent whatever the stop.

    Source: Hartmann et al. 2022, Sec 5; docs/derivations/output.md#early-stopping and
    docs/derivations/output.md#optimal-delta-of-stops. The outcome is the number of
    sub-steps that ran; between two stops it counts as the later one.

    Assumes: each sub-step is as declared, given the outputs before it; nothing outside
    of the sub-steps reads private data; whether to stop depends on released outputs.

    Args:
        step: What one sub-step does.
        stops: Numbers of sub-steps after which it may end, rising. The last is the
            largest number that can run.
        accountant: For the filter `output`: "basic" (default), or one of "kov",
            "pld", "renyi", "gaussian" through Lemma 11, or "optimal", which spends
            delta exactly by Theorem 15 for (epsilon, delta)-DP sub-steps.
        delta: For accountants other than basic: one number, split equally over the
            stops, or one number per stop.

    Raises:
        InvalidCost: If stops do not rise, or delta is missing or out of range.

    Examples:
        >>> from dpflow.accounting.costs import Gaussian
        >>> EarlyStopping(Gaussian(sensitivity=1, sigma=40), stops=(25, 50, 100))
        EarlyStopping(Gaussian(sensitivity=1, sigma=40), stops=(25, 50, 100))
    """

    settlement: ClassVar[str] = "steps"

    step: Cost
    stops: tuple[int, ...]
    accountant: str
    deltas: tuple[Fraction, ...]

    def __init__(
        self,
        step: Cost,
        *,
        stops: Sequence[int],
        accountant: str = "basic",
        delta: Number | Sequence[Number] | None = None,
    ) -> None:
        if not isinstance(step, Cost) or isinstance(step, EarlyStopping):
            msg = f"EarlyStopping needs the cost of one sub-step, got {step!r}"
            raise InvalidCost(msg, name="step", value=repr(step))
        if accountant not in ACCOUNTANTS:
            known = ", ".join(ACCOUNTANTS)
            msg = f"accountant must be one of {known}, got {accountant!r}"
            raise InvalidCost(msg, name="accountant", value=str(accountant))
        checked = _checked_stops(stops)
        object.__setattr__(self, "step", step)
        object.__setattr__(self, "stops", checked)
        object.__setattr__(self, "accountant", accountant)
        object.__setattr__(self, "deltas", _shares(delta, accountant, len(checked)))

    @property
    def substeps(self) -> tuple[Cost, int]:
        """What one sub-step does, and how many there are at most."""
        return self.step, self.stops[-1]

    @property
    def relations(self) -> tuple[str, ...]:
        """The neighbouring relations that the sub-step allows."""
        return relations_of(self.step)

    @property
    def delta(self) -> Fraction:
        """The delta that the accountant spends; zero for basic."""
        return sum(self.deltas, Fraction(0))

    def realised(self, outcome: Outcome) -> EarlyStopping:
        """Return the cost of the sub-steps that ran.

        Raises:
            InvalidCost: If no sub-step was counted or more than there are. A body that
                counted none may have forgotten to count: settle it in full.
        """
        ran = self._count(outcome)
        return EarlyStopping(self.step, stops=(ran,))

    def _count(self, outcome: Outcome) -> int:
        name = "the number of sub-steps that ran"
        return whole_number(outcome, name=name, low=1, high=self.stops[-1])

    def epsilons(self) -> tuple[Fraction, ...]:
        """Return the epsilon of each stop by the accountant, rounded up.

        Raises:
            UnsupportedCost: If the accountant has no price for the sub-step.
            InvalidCost: If a stop's delta does not cover its sub-steps.
        """
        return _epsilons(self)

    def output_dp(self) -> OutputDP:
        """Return the guarantee cell by cell; a cell is named by its stop."""
        delta = self.delta
        if self.accountant == "basic":
            delta = self.stops[-1] * approx_dp(self.step)[1]
        cells = zip(self.stops, self.epsilons(), strict=True)
        return OutputDP({str(stop): eps for stop, eps in cells}, delta=delta)

    def cell(self, outcome: Outcome) -> str:
        """Return the cell of a number of sub-steps: the stop at or after it."""
        ran = self._count(outcome)
        return str(self.stops[bisect.bisect_left(self.stops, ran)])

    def describe(self) -> dict[str, Any]:
        """Return the cost as JSON-able data."""
        return {
            "mechanism": "EarlyStopping",
            "step": self.step.describe(),
            "stops": list(self.stops),
            "accountant": self.accountant,
            "delta": [number_text(delta) for delta in self.deltas],
        }

    @classmethod
    def from_description(cls, numbers: Mapping[str, Any]) -> EarlyStopping:
        """Build the cost from what `describe` wrote, without `mechanism`."""
        rest = dict(numbers)
        step = cost_from_description(rest.pop("step"))
        delta = rest.pop("delta", None)
        shares = (
            [read_number(share) for share in delta]
            if isinstance(delta, list | tuple)
            else read_number(delta)
        )
        return cls(step, delta=shares or None, **rest)

    def noisier(self, factor: Fraction) -> EarlyStopping:
        """Return the step with noisier sub-steps."""
        return EarlyStopping(
            self.step.noisier(factor),
            stops=self.stops,
            accountant=self.accountant,
            delta=self.deltas or None,
        )

    def __repr__(self) -> str:
        """Write the cost as it would be constructed."""
        more = ""
        if self.accountant != "basic":
            deltas = ", ".join(number_text(delta) for delta in self.deltas)
            more = f", accountant={self.accountant!r}, delta=({deltas})"
        return f"EarlyStopping({self.step!r}, stops={self.stops}{more})"


def _checked_stops(stops: object) -> tuple[int, ...]:
    if isinstance(stops, str | bytes) or not isinstance(stops, Sequence):
        msg = f"stops must be a list of whole numbers, got {stops!r}"
        raise InvalidCost(msg, name="stops", value=str(stops))
    numbers = tuple(
        whole_number(stop, name="a stop", low=1, high=_MOST_SUBSTEPS) for stop in stops
    )
    rising = all(a < b for a, b in itertools.pairwise(numbers))
    if not 1 <= len(numbers) <= MOST_CELLS or not rising:
        msg = f"stops must be 1 or more rising numbers, got {str(stops)[:60]}"
        raise InvalidCost(msg, name="stops", value=str(stops)[:60])
    return numbers


def _shares(delta: object, accountant: str, stops: int) -> tuple[Fraction, ...]:
    """Return the delta of each stop."""
    if (delta is None) != (accountant == "basic"):
        needs = "takes no" if accountant == "basic" else "needs a"
        msg = f"the accountant {accountant} {needs} delta"
        raise InvalidCost(msg, name="delta", value=str(delta))
    if delta is None:
        return ()
    if isinstance(delta, Sequence) and not isinstance(delta, str | bytes):
        shares = tuple(exact_delta(share, zero=False) for share in delta)
    else:
        share = exact_delta(delta, zero=False) / stops
        shares = (exact_delta(share, name="delta of a stop", zero=False),) * stops
    if len(shares) != stops:
        msg = f"{stops} stops need as many deltas, got {len(shares)}"
        raise InvalidCost(msg, name="delta", value=len(shares))
    exact_delta(sum(shares, Fraction(0)), name="sum of the deltas")
    return shares


@lru_cache(maxsize=1024)
def _epsilons(cost: EarlyStopping) -> tuple[Fraction, ...]:
    # Needs numpy, which takes long to import.
    from dpflow.accounting.early_stopping import best_epsilons, lemma_11  # noqa: PLC0415

    if cost.accountant == "optimal":
        steps = (approx_dp(cost.step),) * cost.stops[-1]
        return best_epsilons(steps, cost.stops, cost.deltas)
    if cost.accountant == "basic":
        return tuple(stop * approx_dp(cost.step)[0] for stop in cost.stops)
    prefixes = [((cost.step, stop),) for stop in cost.stops]
    return lemma_11(prefixes, cost.deltas, cost.accountant)


@dataclass(frozen=True, init=False, repr=False)
class SparseVector(OutcomeCost):
    """The sparse vector technique: which of many queries exceed a threshold.

    Noise Lap(sensitivity / epsilon_threshold) is added to the threshold, once; noise
    Lap(2 positives sensitivity / epsilon_answers) to each query (without the 2 if all
    queries move the same way). It ends after `positives` positive answers. An output
    with k of them costs epsilon_threshold + (k / positives) epsilon_answers.

    Source: Lyu, Su, Li 2017, Alg 1; cells: Hartmann et al. 2022, Lemma 8;
    docs/derivations/output.md#sparse-vector. The outcome is the number of positive
    answers.

    Assumes: the threshold's noise is never drawn again; answers are yes or no, numeric
    ones need a budget of their own; ending early depends on released answers only.

    Args:
        positives: Positive answers after which it ends.
        epsilon: Total epsilon, split between threshold and answers in the best way of
            Lyu et al., 1 : (2 positives)^(2/3), monotone 1 : positives^(2/3). Or both:
        epsilon_threshold: Epsilon of the threshold's noise.
        epsilon_answers: Epsilon of the answers' noise.
        sensitivity: How much one privacy unit can change each query.
        monotone: Whether adding a unit moves all queries in the same direction; for
            add-or-remove only.

    Raises:
        InvalidCost: If a number is out of range or the epsilons are over- or
            underspecified.
    """

    epsilon_threshold: Fraction
    epsilon_answers: Fraction
    positives: int
    sensitivity: Fraction
    monotone: bool

    def __init__(
        self,
        *,
        positives: int,
        epsilon: Number | None = None,
        epsilon_threshold: Number | None = None,
        epsilon_answers: Number | None = None,
        sensitivity: Number = 1,
        monotone: bool = False,
    ) -> None:
        if not isinstance(monotone, bool):
            msg = f"monotone must be true or false, got {monotone!r}"
            raise InvalidCost(msg, name="monotone", value=str(monotone))
        count = whole_number(positives, name="positives", low=1, high=MOST_CELLS - 1)
        parts = (epsilon_threshold, epsilon_answers)
        if (epsilon is None) == (None in parts) or (epsilon is None) != any(parts):
            msg = (
                "SparseVector takes either epsilon= or both epsilon_threshold= and "
                "epsilon_answers="
            )
            raise InvalidCost(msg, name="epsilon", value=None)
        if epsilon is not None:
            total = exact_epsilon(epsilon)
            first = _best_threshold(total, count if monotone else 2 * count)
            second = total - first
            epsilon_threshold, epsilon_answers = first, second
        first = exact_epsilon(epsilon_threshold, name="epsilon_threshold")
        second = exact_epsilon(epsilon_answers, name="epsilon_answers")
        width = exact(sensitivity, name="sensitivity", low=SCALE_LOW, high=SCALE_HIGH)
        self._set(epsilon_threshold=first, epsilon_answers=second, sensitivity=width)
        object.__setattr__(self, "positives", count)
        object.__setattr__(self, "monotone", monotone)

    @property
    def relations(self) -> tuple[str, ...]:
        """A person who replaces another may raise one query and lower the next."""
        return ("add-or-remove",) if self.monotone else RELATIONS

    @property
    def threshold_scale(self) -> Fraction:
        """Scale of the Laplace noise of the threshold."""
        return self.sensitivity / self.epsilon_threshold

    @property
    def answer_scale(self) -> Fraction:
        """Scale of the Laplace noise of each query."""
        factor = self.positives if self.monotone else 2 * self.positives
        return factor * self.sensitivity / self.epsilon_answers

    def highest(self) -> tuple[Fraction, Fraction]:
        """Return (epsilon of the cell with all positives, 0)."""
        return self.epsilon_threshold + self.epsilon_answers, Fraction(0)

    def output_dp(self) -> OutputDP:
        """Return the cells: the numbers of positive answers."""
        share = self.epsilon_answers / self.positives
        return OutputDP(
            {
                str(k): self.epsilon_threshold + k * share
                for k in range(self.positives + 1)
            }
        )

    def cell(self, outcome: Outcome) -> str:
        """Return the cell of a number of positive answers."""
        return str(
            whole_number(outcome, name="positive answers", low=0, high=self.positives)
        )

    def describe(self) -> dict[str, Any]:
        """Return the cost as JSON-able data."""
        return {
            "mechanism": "SparseVector",
            "epsilon_threshold": number_text(self.epsilon_threshold),
            "epsilon_answers": number_text(self.epsilon_answers),
            "positives": str(self.positives),
            "sensitivity": number_text(self.sensitivity),
            "monotone": self.monotone,
        }

    @classmethod
    def from_description(cls, numbers: Mapping[str, Any]) -> SparseVector:
        """Build the cost from what `describe` wrote, without `mechanism`."""
        return cls(**{name: read_number(value) for name, value in numbers.items()})

    def noisier(self, factor: Fraction) -> SparseVector:
        """Return the mechanism with both noises `factor` times larger."""
        return SparseVector(
            positives=self.positives,
            epsilon_threshold=self.epsilon_threshold / factor,
            epsilon_answers=self.epsilon_answers / factor,
            sensitivity=self.sensitivity,
            monotone=self.monotone,
        )


def _best_threshold(total: Fraction, factor: int) -> Fraction:
    """Return about total / (1 + factor^(2/3)), a number that people can read."""

    def share(mp: Any) -> Any:
        return to_real(mp, total) / (1 + mp.cbrt(mp.mpf(factor) ** 2))

    return Fraction(f"{float(bound_above(share)):.{_SPLIT_DIGITS}g}")
