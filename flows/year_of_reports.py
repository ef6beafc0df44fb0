# ---
# title: A year of weekly reports with a reserved share
# description: Noise from the budget, customers within 10 %, and a reserved share.
# dependencies: the extra `examples` of dpflow
# run: python flows/year_of_reports.py
# ---
"""Publish 52 weeks of a shop while others ask questions until they are refused.

Code walkthrough:

1. `revenue` declares no noise: its policy requires that 52 runs fit.
2. `customers` declares the accuracy of its number and is charged for its final noise.
3. `year_report` is a week; the share of its 52 runs is reserved.
4. `questions` requests the baskets of a week repeatedly, from the rest.
5. `year` alternates both: the questions end, and the report does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from dpflow import BudgetRefused, Estimate, Gaussian, Refined, dp_flow, dp_task, release
from flows import data, start

DATASET = "cdnow-year"
WEEKS = 52
PLANNED = Gaussian(sensitivity=data.CLIP_CENTS, noise="planned")
WORST = Refined(Gaussian(sensitivity=1, noise_multiplier=15), coarsest=80)
# The baskets of a customer's week are a histogram of norm 1 at most.
QUESTION = Gaussian(sensitivity=1, noise_multiplier=12)


@dp_task(
    dataset=DATASET, cost=PLANNED, load=data.purchases, release_key="revenue/{week}"
)
def revenue(rows: pd.DataFrame) -> float:
    """Release the week's revenue in cents, clipped for each customer."""
    return release(data.revenue_cents(rows))


@dp_task(
    dataset=DATASET, cost=WORST, load=data.purchases, release_key="customers/{week}"
)
def customers(rows: pd.DataFrame) -> Estimate:
    """Release how many customers bought something, within 10 % at 95 %."""
    count = data.active_customers(rows)
    return release(count, within="10%", confidence="95%")


@dp_task(
    dataset=DATASET,
    cost=QUESTION,
    load=data.purchases,
    release_key="baskets/{week}",
    length=len(data.BASKET_LABELS),
)
def baskets(rows: pd.DataFrame) -> list[float]:
    """Release how many customers bought how many records, for somebody who asks."""
    counts = release(data.basket_sizes(rows))
    numbers: list[float] = counts.tolist()
    return numbers


@dp_flow(name="year-report", flow_run_name="year-report {week}")
def year_report(week: str) -> str:
    """Release and publish one week."""
    money, found = revenue(week), customers(week)
    low, high = found.interval
    return f"{week}: {money / 100:.0f} dollars, {low:.0f} to {high:.0f} customers"


@dp_flow(name="questions", flow_run_name="questions {week}")
def questions(week: str) -> list[float]:
    """Answer one question about a week."""
    return baskets(week)


@dataclass(frozen=True, slots=True)
class Year:
    """Result of a year: published numbers, answered questions, and the refusal."""

    published: tuple[str, ...]
    answered: int
    refusal: BudgetRefused | None


def year(weeks: Sequence[str]) -> Year:
    """Run the report of each week, and a question about it before."""
    published, answered, refusal = [], 0, None
    for week in weeks:
        asked: Any = questions(week, return_state=True)
        outcome = asked.result(raise_on_failure=False)
        if isinstance(outcome, BudgetRefused):
            refusal = refusal or outcome
        else:
            answered += 1
        published.append(year_report(week))
    return Year(tuple(published), answered, refusal)


def main() -> None:
    """Run a year of the shop, and say what became of the questions."""
    start.make_first_ledger()
    found = year(data.weeks()[:WEEKS])
    print("\n".join(found.published))
    print(f"{len(found.published)} weeks; questions answered: {found.answered}")
    if found.refusal is not None:
        print(found.refusal)


if __name__ == "__main__":
    main()
