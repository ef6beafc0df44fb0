# ---
# title: Each week within 10 %, charged for its final noise
# description: Weekly customers; the noise follows from an error target.
# dependencies: the extra `examples` of dpflow
# run: python flows/good_enough.py
# ---
"""Count the customers of each week within 10 %, at 95 %, until the budget is exhausted.

One noise for all weeks is that of the week with the fewest customers, and weeks with
nine times as many customers pay for it, too. Here each week draws coarse noise first,
and finer noise until its number is within 10 %. Only the final noise is charged.

Code walkthrough:

1. `customers` declares the accuracy of its number and the largest cost.
2. `good_enough` publishes a week with the interval of the release.
3. `run_weeks` continues until the budget refuses a week.
4. `one_noise_for_all` counts the weeks that a single noise would allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pandas as pd
from prefect import task

from dpflow import BudgetRefused, Estimate, Gaussian, Refined, dp_flow, dp_task, release
from dpflow.accounting import make_filter
from flows import data, start

WITHIN, CONFIDENCE = "10%", "95%"

# A customer counts once in a week or not at all. The worst case is reserved before each
# week: noise for about 280 customers.
COST = Refined(Gaussian(sensitivity=1, noise_multiplier=14), coarsest=80)

# The fewest customers of a whole week, which the shop may know from its till.
FEWEST, QUANTILE = 334, Fraction("1.96")


@dp_task(
    dataset="cdnow-good-enough",
    cost=COST,
    load=data.purchases,
    release_key="customers/{week}",
)
def customers(rows: pd.DataFrame) -> Estimate:
    """Release how many customers bought something in the week."""
    count = data.active_customers(rows)
    return release(count, within=WITHIN, confidence=CONFIDENCE)


@task
def publish(week: str, found: Estimate) -> str:
    """Write a line; everything in it has been released."""
    low, high = found.interval
    return f"{week}: {found:.0f} customers, {low:.0f} to {high:.0f}"


@dp_flow(name="good-enough", flow_run_name="good-enough {week}")
def good_enough(week: str) -> str:
    """Release and publish one week."""
    return publish(week, customers(week))


@dataclass(frozen=True, slots=True)
class Season:
    """What running week after week came to: what was said, and why it ended."""

    published: tuple[str, ...]
    refusal: BudgetRefused | None


def run_weeks(weeks: Sequence[str]) -> Season:
    """Run week after week until the budget refuses one."""
    published: list[str] = []
    for week in weeks:
        state: Any = good_enough(week, return_state=True)
        outcome = state.result(raise_on_failure=False)
        if isinstance(outcome, BudgetRefused):
            return Season(tuple(published), outcome)
        published.append(state.result())
    return Season(tuple(published), None)


def one_noise_for_all() -> int:
    """Return how many weeks one noise does that is within 10 % in the worst week."""
    rule = make_filter("gdp", epsilon=1, delta="1e-6")
    each = Gaussian(sensitivity=1, sigma=Fraction(1, 10) * FEWEST / QUANTILE)
    tally, weeks = rule.zero(), 0
    while rule.admits(tally + rule.price(each)):
        tally, weeks = tally + rule.price(each), weeks + 1
    return weeks


def main() -> None:
    """Run the weeks of the shop, and say how many one noise would have done."""
    # The last week of the data is not a whole one.
    start.make_first_ledger()
    season = run_weeks(data.weeks()[:-1])
    print("\n".join(season.published))
    print(f"{len(season.published)} weeks; one noise for all: {one_noise_for_all()}")
    if season.refusal is not None:
        print(season.refusal)


if __name__ == "__main__":
    main()
