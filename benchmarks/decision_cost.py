"""What a decision costs: after ten charges, after a million, per theorem.

    python benchmarks/decision_cost.py           print the table
    python benchmarks/decision_cost.py --check   exit with 1 if a target is missed

Targets: a decision after 1,000,000 charges takes at most 1.2 times one after 10; 50
microseconds for scalar filters, 200 for 64 orders; a price of `residue` that is not
remembered at most 0.2 s; a tally of `auto` under 2 kB;
dpflow.accounting imported in less than 0.3 s. Times are processor time of this thread,
the best of several rounds.
"""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from dpflow.accounting import Filter, Rule, make_filter, make_odometer
from dpflow.accounting.costs.noise import ExponentialMechanism, Gaussian, Laplace
from dpflow.accounting.costs.notions import PureDP
from dpflow.accounting.rules.tally import Tally

FEW, MANY = 10, 1_000_000
RATIO_MOST, SCALAR_MOST, ORDERS_MOST = 1.2, 50.0, 200.0
TALLY_BYTES_MOST, IMPORT_SECONDS_MOST = 2048, 0.3
NEW_SECONDS_MOST = 0.2
ROUNDS, CALLS = 60, 50

#: A million of these still fit (5, 1e-6).
GAUSSIAN = Gaussian(sensitivity=1, sigma=20_000)
PURE = PureDP(epsilon="1e-6")
#: From tiny to as large as the budget.
SIZES = ("1e-9", "1e-4", "0.01", "0.3", "2", "6")
NEW = [
    *(PureDP(epsilon=size) for size in SIZES),
    *(Laplace(sensitivity=1, epsilon=size) for size in SIZES),
    *(ExponentialMechanism(epsilon=size) for size in SIZES),
]
ORDERS = [str(1 + Fraction(round(1.1**n * 1000), 8000)) for n in range(64)]
ORDERS_64 = [float(Fraction(order)) for order in ORDERS]

FILTERS: list[tuple[str, dict[str, Any], Any, float]] = [
    ("basic", {}, PURE, SCALAR_MOST),
    ("rogers", {}, PURE, SCALAR_MOST),
    ("whitehouse", {}, PURE, SCALAR_MOST),
    ("zcdp", {}, GAUSSIAN, SCALAR_MOST),
    ("gdp", {}, GAUSSIAN, SCALAR_MOST),
    ("rdp", {}, GAUSSIAN, SCALAR_MOST),
    ("rdp", {"orders": ORDERS_64}, GAUSSIAN, ORDERS_MOST),
    ("residue", {}, GAUSSIAN, SCALAR_MOST),
    ("residue", {}, PURE, SCALAR_MOST),
    ("auto", {}, GAUSSIAN, ORDERS_MOST),
    ("auto", {}, PURE, ORDERS_MOST),
]
ODOMETERS: list[tuple[str, dict[str, Any], Any, float]] = [
    ("basic", {}, PURE, SCALAR_MOST),
    ("rdp", {}, GAUSSIAN, SCALAR_MOST),
    ("rdp", {"orders": ORDERS_64}, GAUSSIAN, ORDERS_MOST),
    ("rdp-doubling", {"orders": ORDERS_64}, GAUSSIAN, ORDERS_MOST),
]


def charged(rule: Rule, cost: Any, count: int) -> Tally:
    """Return the tally of a number of equal charges."""
    return Tally(tuple(count * amount for amount in rule.price(cost).amounts))


def microseconds(decide: Callable[[Tally], object], *tallies: Tally) -> list[float]:
    """Return the best time of a decision on each tally, measured in turns."""
    best = [math.inf] * len(tallies)
    for _ in range(ROUNDS):
        for index, tally in enumerate(tallies):
            start = time.thread_time_ns()
            for _ in range(CALLS):
                decide(tally)
            taken = (time.thread_time_ns() - start) / CALLS / 1000
            best[index] = min(best[index], taken)
    return best


def row(rule: Rule, name: str, cost: Any, most: float) -> bool:
    """Print a rule's row, and say whether it meets its targets.

    A decision is what a reservation does: add the step's price, then ask.
    """
    price = rule.price(cost)

    def add(tally: Tally) -> Tally:
        return tally + (price if rule.steady else rule.price(cost, tally))

    ask: Callable[[Tally], object] = (
        rule.admits if isinstance(rule, Filter) else rule.read  # type: ignore[attr-defined]
    )
    tallies = charged(rule, cost, FEW), charged(rule, cost, MANY)
    few, many = microseconds(lambda tally: ask(add(tally)), *tallies)
    last = ask if rule.steady else lambda tally: ask(add(tally))
    # The slowest decision is at the edge of what is admitted.
    edge = max(many, *microseconds(last, *edges(rule, tallies[1])))
    fine = many <= RATIO_MOST * few and edge <= most
    print(
        f"{name:34} {few:9.1f} {many:9.1f} {many / few:7.2f} {edge:9.1f} "
        f"{most:8.0f}  {'ok' if fine else 'MISSED'}"
    )
    return fine


def edges(rule: Rule, tally: Tally) -> list[Tally]:
    """Return multiples of a tally around the last one that a filter admits."""
    if not isinstance(rule, Filter):
        return [tally]
    share = Fraction(rule.used_fraction(tally))
    parts = [share * (1 + Fraction(n, 10**6)) for n in (-10, -1, 0, 1, 10)]
    return [Tally(tuple(math.ceil(a / part) for a in tally.amounts)) for part in parts]


def named(kind: str, theorem: str, options: dict[str, Any]) -> str:
    """Return a row's name."""
    several = "" if "orders" not in options else f" {len(options['orders'])} orders"
    return f"{kind} {theorem}{several}{' grid' if 'rule' in options else ''}"


def decisions() -> bool:
    """Print the table of decisions."""
    print(
        f"{'microseconds per decision':34} {FEW:>9} {MANY:>9} {'ratio':>7} "
        f"{'edge':>9} {'target':>8}"
    )
    fine = True
    for theorem, options, cost, most in FILTERS:
        rule: Rule = make_filter(theorem, epsilon=5, delta="1e-6", **options)
        fine &= row(rule, named("filter", theorem, options), cost, most)
    for theorem, options, cost, most in ODOMETERS:
        rule = make_odometer(theorem, delta="1e-6", halt_at_epsilon=5, **options)
        fine &= row(rule, named("odometer", theorem, options), cost, most)
    return fine


def new_prices() -> bool:
    """Print the slowest price of `residue` that was never asked for before."""
    rule, slowest = make_filter("residue", epsilon=10, delta="1e-6"), 0.0
    for cost in NEW:
        for part in range(1, 16):
            used = Tally((rule.thresholds[0] * part // 16, 0))  # type: ignore[attr-defined]
            start = time.thread_time()
            rule.price(cost, used)
            slowest = max(slowest, time.thread_time() - start)
    print(f"new price of residue: {slowest:.3f} s at most (target {NEW_SECONDS_MOST})")
    return slowest < NEW_SECONDS_MOST


def tally_size() -> bool:
    """Print the size of the tally of `auto` after a million steps."""
    rule = make_filter("auto", epsilon=5, delta="1e-6")
    text = charged(rule, GAUSSIAN, MANY).to_text()
    print(f"tally of auto: {len(text)} bytes (target {TALLY_BYTES_MOST})")
    return len(text) < TALLY_BYTES_MOST


def import_seconds() -> bool:
    """Print how long `import dpflow.accounting` takes in a fresh interpreter."""
    code = (
        "import time; s = time.perf_counter(); import dpflow.accounting; "
        "print(time.perf_counter() - s)"
    )
    runs = [
        float(subprocess.check_output([sys.executable, "-c", code]))  # noqa: S603
        for _ in range(5)
    ]
    print(f"import dpflow.accounting: {min(runs):.3f} s (target {IMPORT_SECONDS_MOST})")
    return min(runs) < IMPORT_SECONDS_MOST


def main() -> None:
    """Print everything."""
    fine = decisions()
    fine &= new_prices()
    fine &= tally_size()
    fine &= import_seconds()
    if "--check" in sys.argv[1:] and not fine:
        sys.exit(1)


if __name__ == "__main__":
    main()
