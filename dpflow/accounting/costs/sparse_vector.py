"""The sparse vector technique: its cost is that of the answers it gave."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, overload

from dpflow.accounting.costs.base import RELATIONS, Outcome, whole_number
from dpflow.accounting.costs.outcomes import MOST_CELLS, OutcomeCost, OutputDP
from dpflow.exceptions import InvalidCost
from dpflow.rounding import Number, bound_above, exact_epsilon, exact_scale, to_real

_SPLIT_DIGITS = 12


@dataclass(frozen=True, init=False, repr=False)
class SparseVector(OutcomeCost):
    """The sparse vector technique: which of many queries exceed a threshold.

    Noise Lap(sensitivity / epsilon_threshold) is added to the threshold, once; noise
    Lap(2 positives sensitivity / epsilon_answers) to each query (without the 2 if all
    queries move the same way). It ends after `positives` positive answers. An output
    with k of them costs epsilon_threshold + (k / positives) epsilon_answers.

    Source: Lyu, Su, Li 2017, Alg 1; cells: Hartmann et al. 2022, Lemma 8;
    docs/derivations/output-dp.md#sparse-vector. The outcome is the number of positive
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

    noise_powers = (("epsilon_threshold", -1), ("epsilon_answers", -1))

    epsilon_threshold: Fraction
    epsilon_answers: Fraction
    positives: int
    sensitivity: Fraction
    monotone: bool

    @overload
    def __init__(
        self,
        *,
        positives: int,
        epsilon: Number,
        sensitivity: Number = 1,
        monotone: bool = False,
    ) -> None: ...
    @overload
    def __init__(
        self,
        *,
        positives: int,
        epsilon_threshold: Number,
        epsilon_answers: Number,
        sensitivity: Number = 1,
        monotone: bool = False,
    ) -> None: ...
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
        width = exact_scale(sensitivity, name="sensitivity")
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


def _best_threshold(total: Fraction, factor: int) -> Fraction:
    """Return about total / (1 + factor^(2/3)), a number that people can read."""

    def share(mp: Any) -> Any:
        return to_real(mp, total) / (1 + mp.cbrt(mp.mpf(factor) ** 2))

    return Fraction(f"{float(bound_above(share)):.{_SPLIT_DIGITS}g}")
