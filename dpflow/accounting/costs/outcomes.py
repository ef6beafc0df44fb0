"""Output differential privacy: a guarantee for each cell of the output.

The worst cell is reserved before a step runs; the cell of its output is reported when
it settles. Which part of the worst case comes back is the theorem's business
(`Rule.price_realised`). Delta never comes back with a cell
(docs/derivations/output-dp.md#delta-stays-spent).

The cell must be read from the mechanism's own output, before any post-processing, and
that output counts as released.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from dpflow.accounting.costs.base import Cost, Outcome, whole_number
from dpflow.accounting.costs.notions import ApproxDP, PureDP
from dpflow.exceptions import InvalidCost
from dpflow.rounding import (
    EPSILON_HIGH,
    EPSILON_LOW,
    Number,
    exact,
    exact_delta,
    exact_epsilon,
    number_text,
    short_down,
)

MOST_CELLS = 10_000


class OutcomeCost(Cost, ABC, named=False):
    """Base of the costs that settle by the cell of their output."""

    settlement: ClassVar[str] = "outcome"

    @abstractmethod
    def output_dp(self) -> OutputDP:
        """Return the guarantee cell by cell."""

    @abstractmethod
    def cell(self, outcome: Outcome) -> str:
        """Return the name of an outcome's cell.

        Raises:
            InvalidCost: If the mechanism has no such outcome.
        """

    def highest(self) -> tuple[Fraction, Fraction]:
        """Return (largest epsilon of a cell, delta)."""
        return self.output_dp().highest()

    def worst_case(self) -> ApproxDP | PureDP:
        """Return the plain guarantee over all cells: the reserved cost."""
        epsilon, delta = self.highest()
        if delta:
            return ApproxDP(epsilon=max(epsilon, EPSILON_LOW), delta=delta)
        return PureDP(epsilon=epsilon)

    def realised(self, outcome: Outcome) -> OutputDP:
        """Return the cost of an outcome: its cell alone, with the whole delta.

        Only the filter `output-dp` may charge its price instead of the worst case's;
        for Renyi divergences a cell has a price of its own (`cells`).

        Raises:
            InvalidCost: If the mechanism has no such outcome.
        """
        return self.output_dp().only(self.cell(outcome))


@dataclass(frozen=True, init=False, repr=False)
class OutputDP(OutcomeCost):
    """Any mechanism whose guarantee depends on the cell that its output falls into.

    For all neighbours and all sets S of outputs: P(M(D) in S) <= delta + sum over cells
    p of e^epsilon(p) P(M(D') in S and p). There is one delta for the whole mechanism.

    Source: Hartmann et al. 2022, Def 2; docs/derivations/output-dp.md#output-dp.

    Args:
        cells: The epsilon of each cell, by name; zero where the outputs of a cell
            tell nothing.
        delta: The delta of the whole mechanism.

    Raises:
        InvalidCost: If there is no cell, a number is out of range, or everything is
            zero: a mechanism without information needs no budget.

    Examples:
        >>> OutputDP({"none": 0, "answer": "0.5"})
        OutputDP({'answer': 0.5, 'none': 0}, delta=0)
    """

    cells: tuple[tuple[str, Fraction], ...]
    delta: Fraction

    def __init__(self, cells: Mapping[str, Number], *, delta: Number = 0) -> None:
        if not isinstance(cells, Mapping) or not 1 <= len(cells) <= MOST_CELLS:
            msg = (
                "OutputDP needs a mapping from 1 or more cell names to epsilons, got "
                f"{type(cells).__name__} {str(cells)[:60]}"
            )
            raise InvalidCost(msg, name="cells", value=str(cells)[:60])
        names = {_cell_name(name): _cell_epsilon(name, e) for name, e in cells.items()}
        self._fill(tuple(sorted(names.items())), exact_delta(delta))
        if len(names) != len(cells):
            msg = f"two cells have the same name: {', '.join(map(str, cells))}"
            raise InvalidCost(msg, name="cells", value=str(cells)[:60])
        if not any(self.highest()):
            msg = (
                "no cell of this OutputDP has an epsilon and delta is 0: a step that "
                "reads private data loses something. Leave constants outside of steps."
            )
            raise InvalidCost(msg, name="cells", value=0)

    def _fill(self, cells: tuple[tuple[str, Fraction], ...], delta: Fraction) -> None:
        object.__setattr__(self, "cells", cells)
        object.__setattr__(self, "delta", delta)

    def highest(self) -> tuple[Fraction, Fraction]:
        """Return (largest epsilon of a cell, delta)."""
        return max(epsilon for _, epsilon in self.cells), self.delta

    def output_dp(self) -> OutputDP:
        """Return the guarantee itself."""
        return self

    def cell(self, outcome: Outcome) -> str:
        """Return the cell's name; numbers name cells too."""
        name = str(outcome)
        if isinstance(outcome, bool) or name not in dict(self.cells):
            cells = ", ".join(name for name, _ in self.cells[:8])
            msg = f"unknown cell {outcome!r}; this step has {cells}"
            raise InvalidCost(msg, name="outcome", value=str(outcome))
        return name

    def only(self, cell: str) -> OutputDP:
        """Return the cost of one cell; it may be zero, unlike a declaration."""
        narrowed = object.__new__(OutputDP)
        narrowed._fill(((cell, dict(self.cells)[cell]),), self.delta)
        return narrowed

    def _numbers(self) -> Iterator[tuple[str, Any]]:
        yield "cells", dict(self.cells)
        yield "delta", self.delta

    def _with(self, change: Callable[[Fraction], Number]) -> OutputDP:
        return self.but(cells={name: change(epsilon) for name, epsilon in self.cells})

    def noisier(self, factor: Fraction) -> OutputDP:
        """Return the step with all epsilons divided by `factor` at the same delta."""
        return self._with(lambda epsilon: epsilon / factor)

    def round_noise(self) -> OutputDP:
        """Return the step with all epsilons rounded down to four digits."""
        return self._with(short_down)

    def __repr__(self) -> str:
        """Write the cost as it would be constructed."""
        cells = ", ".join(f"{name!r}: {number_text(e)}" for name, e in self.cells)
        return f"OutputDP({{{cells}}}, delta={number_text(self.delta)})"


def _cell_name(name: object) -> str:
    if isinstance(name, bool) or not isinstance(name, str | int) or name == "":
        msg = f"a cell's name must be text or a whole number, got {name!r}"
        raise InvalidCost(msg, name="cells", value=str(name))
    return str(name)


def _cell_epsilon(name: object, epsilon: object) -> Fraction:
    label = f"epsilon of cell {name!r}"
    number = exact(epsilon, name=label, low=Fraction(0), high=EPSILON_HIGH)
    return exact_epsilon(number, name=label) if number else number


@dataclass(frozen=True, init=False, repr=False)
class ProposeTestRelease(OutcomeCost):
    """Propose a local sensitivity, test it privately, release if it holds.

    Without an answer (outcome "none") it costs epsilon, with one ("answer") 2 epsilon;
    delta is lost either way. With two tries, the second only if the first gave no
    answer (the two shifted discretizations of the interquartile range): 2 epsilon
    without an answer or with one of the first try ("first answer"), 3 epsilon with one
    of the second, and 2 delta - delta^2.

    Source: Dwork, Lei 2009; Hartmann et al. 2022, Def 9 and Lemma 10. Two tries lose up
    to 2 delta - delta^2; the single delta of the lemma is wrong:
    docs/derivations/output-dp.md#two-tries.

    Assumes: the conditions of docs/derivations/output-dp.md#propose-test-release at
    (epsilon, delta); a proposal depends on data through released outputs only.

    Args:
        epsilon: Epsilon of the test; the answer's noise has the same.
        delta: Probability with which a wrong proposal passes the test.
        tries: 1 or 2.

    Raises:
        InvalidCost: If a number is out of range.
    """

    noise_powers = (("epsilon", -1),)

    epsilon: Fraction
    delta: Fraction
    tries: int

    def __init__(self, *, epsilon: Number, delta: Number, tries: int = 1) -> None:
        self._set(epsilon=exact_epsilon(epsilon), delta=exact_delta(delta, zero=False))
        object.__setattr__(
            self, "tries", whole_number(tries, name="tries", low=1, high=2)
        )

    def output_dp(self) -> OutputDP:
        """Return the cells: no answer, an answer, one of the first of two tries."""
        cells = {
            "none": self.tries * self.epsilon,
            "answer": (self.tries + 1) * self.epsilon,
            self.answer_cell(0): 2 * self.epsilon,
        }
        return OutputDP(cells, delta=1 - (1 - self.delta) ** self.tries)

    def answer_cell(self, number: int) -> str:
        """Return the cell of an answer of a try; the first has the number 0."""
        return "answer" if number + 1 == self.tries else "first answer"

    def cell(self, outcome: Outcome) -> str:
        """Return the cell of an outcome: "none", "answer" or "first answer"."""
        return self.output_dp().cell(outcome)
