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


def best(weeks: list[set[int]], bound: Fraction) -> tuple[float, float, int]:
    """Return the least error, its noise, and how many visits each can pay."""
    found = []
    for times in range(1, len(weeks) + 1):
        sigma = math.sqrt(times / bound)
        missed = left_out(weeks, times)
        bias = sum(count**2 for count in missed) / len(weeks)
        found.append((math.sqrt(sigma**2 + bias), sigma, times))
    return min(found)


def main() -> None:
    """Print a line for each budget."""
    weeks = visits()
    print("epsilon  worst case: noise = error  of their own: noise, error, visits")
    for epsilon in ("0.5", "1", "3"):
        rule = make_filter(
            "individual", epsilon=epsilon, delta="1e-6", measure="gaussian"
        )
        bound: Fraction = rule.bound  # type: ignore[attr-defined]
        worst = math.sqrt(len(weeks) / bound)
        error, sigma, times = best(weeks, bound)
        print(f"{epsilon:>7} {worst:26.1f} {sigma:20.1f} {error:6.1f} {times:7}")


if __name__ == "__main__":
    main()
