"""Weekly counts of CDNOW: one budget for all people, and a budget for each.

`python -m benchmarks.person_sums` plays 78 weeks with both on public data, outside of
any ledger, and prints the root of the mean squared error of a count: of the filter that
charges everybody each week, whose noise has to last for 78 weeks, and of budgets of
their own, whose noise may be smaller and which leave out who has spent theirs.
"""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

from dpflow.accounting import make_filter
from flows import data

WEEKS = data.weeks()[:-1]


def visits() -> list[set[int]]:
    """Return who bought in each week."""
    return [set(data.purchases(week)["customer"].tolist()) for week in WEEKS]


def left_out(weeks: list[set[int]], times: int) -> list[int]:
    """Return how many people a week misses if everybody can pay so many times."""
    seen: Counter[int] = Counter()
    missed = []
    for week in weeks:
        missed.append(sum(seen[person] >= times for person in week))
        seen.update(person for person in week if seen[person] < times)
    return missed


def errors(missed: list[list[int]], bound: Fraction) -> list[tuple[float, float, int]]:
    """Return the error, its noise, and how many visits each can pay, from one."""
    found = []
    for times, weeks in enumerate(missed, start=1):
        sigma = math.sqrt(times / bound)
        bias = sum(count**2 for count in weeks) / len(weeks)
        found.append((math.sqrt(sigma**2 + bias), sigma, times))
    return found


def main() -> None:
    """Print a line for each budget."""
    weeks = visits()
    missed = [left_out(weeks, times) for times in range(1, len(weeks) + 1)]
    print(
        "epsilon  worst case: noise = error  of their own: noise, error, visits  "
        "it loses below  and with 17 visits the error is"
    )
    for epsilon in ("0.5", "1", "3"):
        rule = make_filter("individual", epsilon=epsilon, delta="1e-6", measure="gdp")
        bound: Fraction = rule.bound  # type: ignore[attr-defined]
        worst = math.sqrt(len(weeks) / bound)
        found = errors(missed, bound)
        error, sigma, times = min(found)
        wins = next(times for error, _, times in found if error < worst)
        print(
            f"{epsilon:>7} {worst:26.1f} {sigma:20.1f} {error:6.1f} {times:7} "
            f"{wins:11} visits {found[16][0]:18.1f}"
        )


if __name__ == "__main__":
    main()
