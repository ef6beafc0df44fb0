# ---
# title: A median age by robust statistics, with refunds
# description: Interquartile range, then a median with the remaining budget, on Adult.
# dependencies: the extra `examples` of dpflow
# run: python flows/typical_age.py
# ---
"""Release the spread of ages, then the median with the remaining budget.

The application of Sec. 4.2 of Hartmann, Bindschaedler, Bentkamp and West 2022. The
interquartile range is released by propose-test-release: noise of a bin's width if many
people would have to be replaced before the range leaves its bin, else "none". Of two
discretizations, half a bin apart, at least one answers nearly always. A fair coin
chooses the first one, so with probability one half or more the second is not
necessary.

"None" costs half of an answer, and an omitted second try costs nothing. The rest pays
for the median. Its proposal is the range over the cube root of the number of people,
as in Dwork and Lei 2009, and a public range if there is no answer.

Code walkthrough:

1. `first_try` tosses the coin; `second_try` uses the other discretization.
2. `left_over` computes the cost of the median from the refunds of the cells.
3. `middle_age` is the median.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dpflow import dp_flow, dp_task
from dpflow.costs import ProposeTestRelease
from dpflow.mechanisms import interquartile_range, median
from flows import adult, start

BUDGET = Fraction(1)
DELTA = "1e-6"
SPREAD = ProposeTestRelease(epsilon="0.2", delta=DELTA)
#: Where the edges of the two discretizations lie, in bins.
SHIFTS = (0.0, 0.5)
#: A range of ages that needs no data.
PUBLIC_RANGE = 30.0
PEOPLE = 48_842


@dataclass(frozen=True, slots=True)
class Ages:
    """What the flow releases.

    Attributes:
        range: The interquartile range, or None.
        median: The median age, or None.
        tries: Number of discretizations that were tried.
        epsilon: What the median was offered.
    """

    range: float | None
    median: float | None
    tries: int
    epsilon: Fraction


def coin() -> float:
    """Choose the first discretization, each with probability one half."""
    return secrets.choice(SHIFTS)


def read_ages() -> adult.Floats:
    """Read everybody's age before a step is charged: private."""
    return adult.age()


@dp_task(
    dataset="adult", cost=SPREAD, load=read_ages, release_key="range-of-ages/first"
)
def first_try(ages: adult.Floats) -> dict[str, Any]:
    """Release the coin, which depends on no data, and its discretization's answer."""
    shift = coin()
    return {"shift": shift, "range": interquartile_range(ages, shift=shift)}


@dp_task(
    dataset="adult",
    cost=SPREAD,
    load=read_ages,
    release_key="range-of-ages/second/{shift}",
)
def second_try(ages: adult.Floats, shift: float) -> float | None:
    """Release what the other discretization answers."""
    return interquartile_range(ages, shift=shift)


def left_over(tries: int, *, answered: bool) -> Fraction:
    """Return what the cells of the tries leave of the budget.

    Args:
        tries: Number of tries; all but the last had no answer.
        answered: Whether the last one gave an answer.
    """
    cells = dict(SPREAD.output_dp().cells)
    last = cells["answer" if answered else "none"]
    return BUDGET - (tries - 1) * cells["none"] - last


# An answer costs twice the epsilon of the test: the test's, and that of the noise.
@dp_task(
    dataset="adult",
    cost=lambda bound, rest: ProposeTestRelease(epsilon=rest / 2, delta=DELTA),  # noqa: ARG005 (the body reads it)
    load=read_ages,
    release_key="median-age/{bound}/{rest}",
)
def middle_age(
    ages: adult.Floats,
    bound: float,
    rest: Fraction,  # noqa: ARG001 (the cost reads it)
) -> float | None:
    """Release the median age, if no one person can move it by more than the bound."""
    return median(ages, bound=bound)


@dp_flow(name="typical-age")
def typical_age() -> Ages:
    """Release the range of ages and the median age."""
    first = first_try()
    tries, found = 1, first["range"]
    if found is None:
        tries, found = 2, second_try(SHIFTS[1] - first["shift"])
    rest = left_over(tries, answered=found is not None)
    bound = (PUBLIC_RANGE if found is None else found) / PEOPLE ** (1 / 3)
    return Ages(found, middle_age(bound, rest), tries, rest)


def main() -> None:
    """Run the flow and say what the median was offered."""
    start.make_first_ledger()
    ages = typical_age()
    print(f"tries: {ages.tries}, and {float(ages.epsilon):g} of {BUDGET} was left")
    print(f"interquartile range: {ages.range}")
    print(f"median age: {ages.median}")


if __name__ == "__main__":
    main()
