# ---
# title: A weekly private report that halts when its budget is exhausted
# description: Active customers, revenue and basket sizes of an online shop, each week.
# dependencies: the extra `examples` of dpflow
# run: python -m flows.weekly_report
# ---
"""A weekly report over real purchases, released with differential privacy.

Each week three numbers leave the private data. Each is a DP step that is charged to the
budget in policies/cdnow.yaml. The flow runs week after week against one ledger. When a
week no longer fits, its run ends as `BudgetExhausted`, later steps do not run, and
nothing is published for it. A published week is replayed at no cost.

Code walkthrough:

1. Three DP steps, each with a sensitivity for one customer, and one read of the week.
2. `publish` writes releases; it reads noisy numbers only.
3. `weekly_report` is the flow of one week.
4. `run_weeks` runs week after week until the budget refuses one.
5. `draw_burn_down` draws the budget over these weeks.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from prefect import task
from prefect.artifacts import create_image_artifact
from prefect.runtime import flow_run

from dpflow import BudgetRefused, Gaussian, dp_flow, dp_task, release
from dpflow.plots import alt_text, burn_down, data_uri
from flows import data, start

REPORTS = Path("reports")

# The privacy unit is a customer; two neighbouring data sets differ in all purchases
# of one. Within a week, each statistic changes by at most its sensitivity in L2 norm:
#
# - active customers: one customer counts once or not at all, so by 1;
# - revenue: each customer's spend in the week is clipped to [0, 10000] cents, so one
#   customer changes the sum by at most 10000 cents. Cents are integers: sums of floats
#   round, and can change by more than the customer's own spend;
# - basket sizes: each customer falls into exactly one bucket of the histogram, so one
#   count changes by 1, and the L2 norm of the change is 1.
#
# A customer may buy in many weeks. That is what the filter adds up: the guarantee holds
# for all of one customer's purchases in all reports together.
CUSTOMERS = Gaussian(sensitivity=1, noise_multiplier=21)
REVENUE = Gaussian(sensitivity=data.CLIP_CENTS, noise_multiplier=13)
BASKETS = Gaussian(sensitivity=1, noise_multiplier=17)


@functools.lru_cache(maxsize=1)
def _read(week: str) -> pd.DataFrame:
    return data.purchases(week)


def purchases(week: str) -> pd.DataFrame:
    """Read the week before a step is charged; the three steps share one read."""
    return _read(week)


@dp_task(
    dataset="cdnow",
    cost=CUSTOMERS,
    load=purchases,
    release_key="active-customers/{week}",
)
def active_customers(rows: pd.DataFrame) -> int:
    """Release how many customers bought something in the week."""
    return release(data.active_customers(rows), as_int=True)


@dp_task(dataset="cdnow", cost=REVENUE, load=purchases, release_key="revenue/{week}")
def revenue(rows: pd.DataFrame) -> int:
    """Release the week's revenue in cents, clipped per customer."""
    return release(data.revenue_cents(rows), as_int=True)


@dp_task(
    dataset="cdnow",
    cost=BASKETS,
    load=purchases,
    release_key="basket-sizes/{week}",
    length=len(data.BASKET_LABELS),
)
def basket_sizes(rows: pd.DataFrame) -> list[int]:
    """Release how many customers bought 1, 2, 3, 4, 5-9 and 10 or more CDs."""
    counts = release(data.basket_sizes(rows), as_int=True)
    numbers: list[int] = counts.tolist()
    return numbers


@task
def publish(week: str, customers: int, cents: int, baskets: list[int]) -> Path:
    """Write the week's report; everything here has been released."""
    REPORTS.mkdir(exist_ok=True)
    report = {
        "week": week,
        "active_customers": customers,
        "revenue_dollars": round(cents / 100, 2),
        "basket_sizes": dict(zip(data.BASKET_LABELS, baskets, strict=True)),
    }
    path = REPORTS / f"{week}.json"
    path.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    return path


def _due(
    week: str | None = None, seconds_per_week: float = data.SECONDS_PER_WEEK
) -> str:
    """Return the week to report: the argument, or the week of the schedule."""
    # By the time the run was scheduled for, and not by the clock: a late run, or a
    # second one, then asks for the same releases.
    return week or data.week_at(flow_run.scheduled_start_time, seconds_per_week)


def _run_name() -> str:
    return f"weekly-report {_due(**flow_run.parameters)}"


@dp_flow(name="weekly-report", flow_run_name=_run_name)
async def weekly_report(
    week: str | None = None, seconds_per_week: float = data.SECONDS_PER_WEEK
) -> Path:
    """Release and publish one week's report.

    Args:
        week: Such as "1997-W05". Default: the week of a scheduled run.
        seconds_per_week: How long a week lasts on the schedule; see `data.week_at`.
    """
    week = _due(week, seconds_per_week)
    # An unknown week or a missing file is named here; the text of an error of a load is
    # withheld.
    data.week_days(week)
    data.purchases_file()
    customers = active_customers(week)
    cents = revenue(week)
    baskets = basket_sizes(week)
    return publish(week, customers, cents, baskets)


@dataclass(frozen=True, slots=True)
class Season:
    """What running week after week came to.

    Attributes:
        published: The weeks whose reports were published.
        halted: The week that the budget refused, if it refused one.
        refusal: The ledger's refusal: requested, remaining and fitting amounts.
    """

    published: tuple[str, ...]
    halted: str | None
    refusal: BudgetRefused | None


async def run_weeks(
    weeks: Sequence[str], progress: Callable[[str], object] = lambda _: None
) -> Season:
    """Run the report week after week until the budget refuses one.

    Args:
        weeks: The weeks, in order.
        progress: Called with each week that was published.
    """
    published: list[str] = []
    for week in weeks:
        state: Any = await weekly_report(week, return_state=True)
        if not state.is_completed():
            outcome = await state.aresult(raise_on_failure=False)
            if not isinstance(outcome, BudgetRefused):
                raise RuntimeError(state.message) from outcome
            return Season(tuple(published), week, outcome)
        published.append(week)
        progress(week)
    return Season(tuple(published), None, None)


@task
def draw_burn_down() -> Path:
    """Draw how the budget was used up, as a picture and as a Prefect artifact."""
    figure = burn_down("cdnow")
    REPORTS.mkdir(exist_ok=True)
    path = REPORTS / "burn-down.png"
    figure.savefig(path, dpi=150, facecolor="white")
    create_image_artifact(
        image_url=data_uri(figure),
        key="dpflow-burn-down-cdnow",
        description=alt_text(figure),
    )
    return path


def main() -> None:
    """Run all weeks, print what happened, draw the burn-down."""
    start.make_first_ledger()
    season = asyncio.run(run_weeks(data.weeks(), print))
    print(f"{len(season.published)} weeks published in {REPORTS}/")
    if season.refusal is not None:
        print(f"{season.halted}: {season.refusal}")
    print(f"burn-down: {draw_burn_down.fn()}")


if __name__ == "__main__":
    main()
