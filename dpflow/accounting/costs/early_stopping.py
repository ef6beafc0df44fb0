"""Iterative steps that may end early, as the sub-steps that ran or as cells."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from dpflow.accounting.costs.base import Cost, Outcome, relations_of, whole_number
from dpflow.accounting.costs.composed import OfSteps, check_one_step
from dpflow.accounting.costs.outcomes import MOST_CELLS, OutputDP
from dpflow.exceptions import InvalidCost
from dpflow.rounding import Number, exact_delta, number_text

#: How `EarlyStopping` composes its sub-steps under the filter `output-dp`.
ACCOUNTANTS = ("basic", "kov", "pld", "rdp", "gdp", "optimal")


_MOST_SUBSTEPS = 10**6


@dataclass(frozen=True, init=False, repr=False)
class EarlyStopping(OfSteps):
    """An iterative step that may end early: after some number of equal sub-steps.

    Every fully adaptive theorem prices it as its sub-steps, reserves all of them and
    settles those that ran, wherever it stopped. The filter `output-dp` can do better
    with an accountant: then the stop is a cell with an epsilon of its own, and
    `delta` is spent at every stop.

    Source: Hartmann et al. 2022, Sec 5;
    docs/derivations/output-dp.md#early-stopping and
    docs/derivations/output-dp.md#optimal-delta-of-stops. The outcome is the number of
    sub-steps that ran; between two stops it counts as the later one.

    Assumes: each sub-step is as declared, given the outputs before it; nothing outside
    of the sub-steps reads private data; whether to stop depends on released outputs.

    Args:
        step: What one sub-step does.
        stops: Numbers of sub-steps after which it may end, rising. The last is the
            largest number that can run.
        accountant: For the filter `output-dp`: "basic" (default), or one of "kov",
            "pld", "rdp", "gdp" through Lemma 11, or "optimal", which spends
            delta exactly by Theorem 15 for (epsilon, delta)-DP sub-steps.
        delta: For accountants other than basic: one number, split equally over the
            stops, or one number per stop.

    Raises:
        InvalidCost: If stops do not rise, or delta is missing or out of range.

    Examples:
        >>> from dpflow.accounting.costs.base import Gaussian
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
        check_one_step(step)
        if accountant not in ACCOUNTANTS:
            names = ", ".join(ACCOUNTANTS)
            msg = f"accountant must be one of {names}, got {accountant!r}"
            raise InvalidCost(msg, name="accountant", value=str(accountant))
        checked = rising_stops(stops, high=_MOST_SUBSTEPS, most=MOST_CELLS)
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
        # What composes them is below this room; it needs numpy, which loads slowly.
        from dpflow.accounting.fixed.stops import stop_epsilons  # noqa: PLC0415

        return stop_epsilons(self)

    def output_dp(self) -> OutputDP:
        """Return the guarantee cell by cell; a cell is named by its stop."""
        from dpflow.accounting.fixed.stops import stop_delta  # noqa: PLC0415

        cells, delta = zip(self.stops, self.epsilons(), strict=True), stop_delta(self)
        return OutputDP({str(stop): eps for stop, eps in cells}, delta=delta)

    def cell(self, outcome: Outcome) -> str:
        """Return the cell of a number of sub-steps: the stop at or after it."""
        ran = self._count(outcome)
        return str(self.stops[bisect.bisect_left(self.stops, ran)])

    def _numbers(self) -> Iterator[tuple[str, Any]]:
        yield "step", self.step
        yield "stops", self.stops
        yield "accountant", self.accountant
        yield "delta", self.deltas or None

    def __repr__(self) -> str:
        """Write the cost as it would be constructed."""
        more = ""
        if self.accountant != "basic":
            deltas = ", ".join(number_text(delta) for delta in self.deltas)
            more = f", accountant={self.accountant!r}, delta=({deltas})"
        return f"EarlyStopping({self.step!r}, stops={self.stops}{more})"


def rising_stops(stops: object, *, high: int, most: int) -> tuple[int, ...]:
    """Read numbers of steps after which something may end.

    Raises:
        InvalidCost: If they do not rise, or are too large or too many.
    """
    if isinstance(stops, str | bytes) or not isinstance(stops, Sequence):
        msg = f"stops must be a list of whole numbers, got {stops!r}"
        raise InvalidCost(msg, name="stops", value=str(stops)[:60])
    numbers = [whole_number(stop, name="a stop", low=1, high=high) for stop in stops]
    if not 1 <= len(numbers) <= most or sorted(set(numbers)) != numbers:
        msg = f"stops must be 1 to {most} rising numbers, got {str(stops)[:60]}"
        raise InvalidCost(msg, name="stops", value=str(stops)[:60])
    return tuple(numbers)


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
