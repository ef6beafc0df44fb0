# ---
# title: Busy weeks and their counts, with refunds by cells
# description: Sparse vector on 79 weeks, then the saved budget for busy weeks.
# dependencies: the extra `examples` of dpflow
# run: python flows/sparse_report.py
# ---
"""Find the busy weeks of a shop, then count their customers with the saved budget.

Half of the budget searches for weeks with many customers: sparse vector compares one
week after the other with a threshold and ends after 20 weeks above it. It must reserve
the price of all 20. If only k weeks are busy, its output lies in the cell k, and the
filter `output-dp` charges no more than this cell. The other half and the refund pay
for the noise of the k counts. This noise is smaller for two reasons: fewer numbers
share a larger epsilon.

This is the set-up of Figure 1 of Hartmann, Bindschaedler, Bentkamp and West 2022. The
figure is drawn with the exact expectation (`expected_deviation`) in place of the
paper's Chebyshev bound, and printed with the run on real weeks.

Code walkthrough:

1. `busy_weeks` reports its own cell through `sparse_vector`.
2. `customers_in` costs the remaining budget, a function of the released weeks only.
3. `expected_deviation` integrates over the threshold's noise.
4. `draw` draws Figure 1 and the place of this run.
"""

from __future__ import annotations

import functools
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from prefect import task
from scipy import integrate, stats  # type: ignore[import-untyped]

from dpflow import Laplace, SparseVector, dp_flow, dp_task, release
from dpflow.mechanisms import sparse_vector
from flows import data, start

REPORTS = Path("reports")

# A customer counts once in a week or not at all, so each query has sensitivity 1, and
# adding a customer lowers no count: the queries are monotone.
MOST = 20
BUDGET = Fraction(1)
FIND = SparseVector(positives=MOST, epsilon="0.5", monotone=True)
MANY_CUSTOMERS = 1000

# Figure 1: 100 entries that are 0 or 1000, threshold 500, epsilon 0.5 twice.
ENTRIES, LARGE, THRESHOLD = 100, 1000.0, 500.0
FIGURE = SparseVector(positives=MOST, epsilon="0.5")
FIGURE_REST = Fraction(1, 2)

#: Purchases of each week.
Frames = dict[str, pd.DataFrame]


def purchases() -> Frames:
    """Read all weeks before a step is charged: private."""
    return {week: data.purchases(week) for week in data.weeks()}


def deviation(cost: SparseVector, rest: Fraction, found: int) -> float:
    """Return the standard deviation of each released number, with cells.

    Args:
        cost: The sparse vector.
        rest: The epsilon that was set aside for them.
        found: Number of positive answers; they share the remaining budget.
    """
    if found == 0:
        return 0.0
    saved = cost.epsilon_answers * (cost.positives - found) / cost.positives
    return float(np.sqrt(2) * found * cost.sensitivity / (rest + saved))


def expected_deviation(large: int) -> float:
    """Return the expectation of `deviation` in Figure 1, exactly.

    Given the threshold's noise the answers are independent, so their number is the sum
    of two binomials, cut at `MOST`; then the threshold's noise is integrated out.

    Args:
        large: How many of the entries are 1000.
    """
    scale, spread = float(FIGURE.threshold_scale), float(FIGURE.answer_scale)
    values = [deviation(FIGURE, FIGURE_REST, k) for k in range(MOST + 1)]
    values += [values[-1]] * (ENTRIES - MOST)

    def inner(shift: float) -> float:
        level = THRESHOLD + shift
        chances = [stats.laplace.sf(level - x, scale=spread) for x in (LARGE, 0.0)]
        sizes = (large, ENTRIES - large)
        parts = [
            stats.binom.pmf(np.arange(size + 1), size, chance)
            for size, chance in zip(sizes, chances, strict=True)
        ]
        found = np.convolve(*parts)
        return float(found @ values) * float(stats.laplace.pdf(shift, scale=scale))

    reach = 40 * scale
    kinks = sorted({-THRESHOLD, 0.0, LARGE - THRESHOLD})
    value, _ = integrate.quad(inner, -reach, reach, points=kinks, limit=400)
    return float(value)


def left_over(weeks: list[str]) -> Fraction:
    """Return the epsilon that remains after the search, for the counts."""
    cells = dict(FIND.output_dp().cells)
    left = BUDGET - cells[str(len(weeks))]
    # Down, for prices are rounded up in the 36th place.
    return Fraction(math.floor(left * 10**9), 10**9)


@dp_task(
    dataset="cdnow-weeks", cost=FIND, load=purchases, release_key="busy/{at_least}"
)
def busy_weeks(frames: Frames, at_least: int) -> list[str]:
    """Release which weeks had at least this number of customers."""
    queries = [
        functools.partial(data.active_customers, frame) for frame in frames.values()
    ]
    answers = sparse_vector(queries, at_least)
    return [week for week, busy in zip(frames, answers, strict=False) if busy]


# A customer may be in all of these weeks: the L1 sensitivity is their number.
@dp_task(
    dataset="cdnow-weeks",
    cost=lambda weeks: Laplace(sensitivity=len(weeks), epsilon=left_over(weeks)),
    release_key="customers/{weeks}",
    load=purchases,
    length=lambda weeks: len(weeks),  # noqa: PLW0108 (arguments go by name)
)
def customers_in(frames: Frames, weeks: list[str]) -> list[int]:
    """Release how many customers each of the weeks had."""
    return release([data.active_customers(frames[week]) for week in weeks], as_int=True)


@dp_flow(name="sparse-report")
def sparse_report(at_least: int = MANY_CUSTOMERS) -> dict[str, int]:
    """Release the busy weeks and their customers."""
    weeks = busy_weeks(at_least)
    counts = customers_in(weeks) if weeks else []
    return dict(zip(weeks, counts, strict=True))


@task
def draw(found: int, points: int = 21) -> Path:
    """Draw Figure 1 and the run on real weeks."""
    from matplotlib.figure import Figure  # noqa: PLC0415 (slow to import)

    large = np.unique(np.linspace(0, MOST, points).astype(int))
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes: Any = figure.subplots()
    axes.plot(large, [expected_deviation(n) for n in large], label="with cells, exact")
    without = deviation(FIGURE, FIGURE_REST, MOST)
    axes.axhline(without, color="tab:red", ls="--", label="without cells")
    counts = range(1, MOST + 1)
    real = [deviation(FIND, BUDGET / 2, k) for k in counts]
    axes.plot(counts, real, ":", color="tab:green", label="real weeks, monotone")
    if found:
        axes.plot(found, real[found - 1], "o", color="tab:green", label="this run")
    axes.set(xlabel="large entries, of 100", ylabel="standard deviation of a count")
    axes.set_xticks(range(0, MOST + 1, 2))
    axes.legend(frameon=False)
    REPORTS.mkdir(exist_ok=True)
    path = REPORTS / "sparse-report.png"
    figure.savefig(path, dpi=150, facecolor="white")
    return path


def main() -> None:
    """Run the flow, print the noise with and without cells, draw the figure."""
    start.make_first_ledger()
    report = sparse_report()
    found = len(report)
    print(f"{found} of {len(data.weeks())} weeks had {MANY_CUSTOMERS} customers:")
    for week, count in report.items():
        true = data.active_customers(data.purchases(week))
        print(f"  {week}  {count:6}   (true, and public here: {true})")
    with_cells = deviation(FIND, BUDGET / 2, found)
    without = deviation(FIND, BUDGET / 2, MOST)
    print(f"standard deviation: {with_cells:.2f}, without cells {without:.2f}")
    print("Figure 1: large entries, expected deviation with cells")
    for large in (0, 1, 5, 10, 15, 20):
        print(f"  {large:3}  {expected_deviation(large):10.6f}")
    print(f"without cells: {deviation(FIGURE, FIGURE_REST, MOST):.6f}")
    print(f"drawn in {draw.fn(found)}")


if __name__ == "__main__":
    main()
