"""How many steps each theorem admits, with dpflow and as computed without it.

python benchmarks/theorem_sheet.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from counting import cost_of, scaled, total_of, tuned_order
from workloads import WORKLOADS, Workload, largest

from dpflow.accounting import Filter, make_filter, make_odometer
from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.noise import Gaussian
from dpflow.accounting.costs.notions import ZCDP, ApproxDP
from dpflow.accounting.fixed.optimal import fixed_epsilon
from dpflow.exceptions import InvalidCost

DELTA = Fraction(1, 10**6)
LECUYER = [Fraction(n, 4) for n in range(5, 41)] + [Fraction(16), Fraction(32)]
DOUBLING = [Fraction(2**n) for n in range(1, 13)]

#: Shares of delta tried for the deltas of Gaussians that are declared as (e0, d0)-DP.
_SHARES = [Fraction(n, 20) for n in range(1, 20)]

Fits = Callable[[int], bool]
Make = Callable[[Workload, Fraction], Fits]


@dataclass(frozen=True)
class Line:
    """One line of the sheet.

    Args:
        name: The rule, and the theorem's number.
        sheet: Steps of (0.1, 0)-DP at epsilon 1 and 5, of Gaussian 20 at 1 and 5.
        make: From workload and epsilon to a test of a number of steps.
        step: What runs instead of the (0.1, 0)-DP step, if something else.
    """

    name: str
    sheet: tuple[int | None, int | None, int | None, int | None]
    make: Make
    step: str = "P.1"


def _by_filter(rule: Filter, workload: Workload, cost: Cost | None = None) -> Fits:
    if cost is None:
        return lambda n: rule.admits(total_of(rule, workload, n))
    price = rule.price(cost)
    return lambda n: rule.admits(scaled(price, n))


def _named(theorem: str, **options: object) -> Make:
    return lambda workload, epsilon: _by_filter(
        make_filter(theorem, epsilon=epsilon, delta=DELTA, **options), workload
    )


def _basic(workload: Workload, epsilon: Fraction) -> Fits:
    return _by_filter(make_filter("basic", epsilon=epsilon), workload)


def _tuned(conversion: str) -> Make:
    def make(workload: Workload, epsilon: Fraction) -> Fits:
        order = tuned_order(workload, epsilon, DELTA, conversion)
        return _named("rdp", order=order, conversion=conversion)(workload, epsilon)

    return make


def _any_order(share: int) -> Make:
    """Admit while some order has room, each at 1 / share of delta."""

    def rules(epsilon: Fraction) -> Iterator[Filter]:
        for order in LECUYER:
            try:
                yield make_filter(
                    "rdp", epsilon=epsilon, delta=DELTA / share, order=order
                )
            except InvalidCost:
                continue  # allows nothing

    def make(workload: Workload, epsilon: Fraction) -> Fits:
        tests = [_by_filter(rule, workload) for rule in rules(epsilon)]
        return lambda n: any(test(n) for test in tests)

    return make


def _rogers_as_filter(workload: Workload, epsilon: Fraction) -> Fits:
    rule = make_odometer("rogers", delta=DELTA, people=10**4)
    return lambda n: rule.read(total_of(rule, workload, n)) <= epsilon


def _classic_rate(workload: Workload, epsilon: Fraction) -> Fits:
    rule = make_filter("zcdp", epsilon=epsilon, delta=DELTA)
    cost = cost_of(workload.cycle[0])
    if not isinstance(cost, Gaussian):
        cost = ZCDP(rho=Fraction(workload.cycle[0].amount) ** 2 / 2)
    return _by_filter(rule, workload, cost)


def _declared(workload: Workload, epsilon: Fraction) -> Fits:
    """Whitehouse et al. with Gaussians turned into (e0, d0)-DP, best split."""
    gaussian = cost_of(workload.cycle[0])

    def fits(steps: int) -> bool:
        for share in _SHARES:
            each = share * DELTA / steps
            e0 = fixed_epsilon(((gaussian, 1),), each)
            rule = make_filter(
                "whitehouse",
                epsilon=epsilon,
                delta=DELTA,
                delta_loss=DELTA * (1 - share),
            )
            price = rule.price(ApproxDP(epsilon=e0, delta=each))
            if rule.admits(scaled(price, steps)):
                return True
        return False

    return fits


def _sequence(workload: Workload, epsilon: Fraction) -> Fits:
    cost = cost_of(workload.cycle[0])

    def fits(steps: int) -> bool:
        try:
            make_filter(
                "sequence",
                epsilon=epsilon,
                delta=DELTA,
                steps=[{"cost": cost, "times": steps}],
            )
        except InvalidCost:
            return False
        return True

    return fits


def _mixture(orders: list[Fraction]) -> Make:
    return _named("rdp", orders=orders)


LINES = (
    Line("basic sum (3.6)", (10, 50, None, None), _basic),
    Line("Rogers 5.1", (1, 34, None, None), _named("rogers")),
    Line("Rogers 6.5 as a filter, n=1e4", (0, 21, None, None), _rogers_as_filter),
    Line("Whitehouse 2", (3, 77, 13, 308), _named("whitehouse")),
    Line("Whitehouse 2, G20 as (e0, d0)-DP", (None, None, 0, 14), _declared),
    Line("zCDP at eps^2/2, CKS", (4, 92, 19, 370), _classic_rate),
    Line("RDP, tuned order, Mironov", (9, 82, 13, 308), _tuned("classic")),
    Line("RDP, tuned order, CKS", (10, 97, 19, 370), _tuned("tight")),
    Line("the same, Laplace", (10, 100, None, None), _tuned("tight"), "L.1"),
    Line("38 orders, some order (INVALID)", (8, 97, 17, 370), _any_order(1)),
    Line("38 orders, union", (7, 79, 14, 295), _any_order(38)),
    Line("38 orders, mixture", (7, 91, 14, 340), _mixture(LECUYER)),
    Line("orders 2..4096, mixture", (10, 84, 15, 310), _mixture(DOUBLING)),
    Line("GDP", (3, 66, 22, 416), _named("gdp")),
    Line(
        "exponential mechanism, zCDP",
        (19, 370, None, None),
        _named("zcdp"),
        "EM.1",
    ),
    Line("sequence (optimum)", (10, 108, 22, 416), _sequence),
)


def compare() -> list[tuple[Line, list[int | None]]]:
    """Return each line with the numbers computed here."""
    by_name = {workload.name: workload for workload in WORKLOADS}
    found = []
    for line in LINES:
        cells = [(by_name[line.step], 1), (by_name[line.step], 5)]
        cells += [(by_name["G20"], 1), (by_name["G20"], 5)]
        numbers = [
            None
            if expected is None
            else largest(line.make(workload, Fraction(epsilon)))
            for (workload, epsilon), expected in zip(cells, line.sheet, strict=True)
        ]
        found.append((line, numbers))
    return found


def lines_of(found: list[tuple[Line, list[int | None]]]) -> list[str]:
    """Return the table as Markdown, differences marked."""
    text = [
        "| rule | 0.1 @1 | 0.1 @5 | G20 @1 | G20 @5 | computed independently |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for line, numbers in found:
        shown = " | ".join("-" if n is None else str(n) for n in numbers)
        same = list(line.sheet) == numbers
        verdict = "same" if same else f"says {line.sheet}"
        text.append(f"| {line.name} | {shown} | {verdict} |")
    return text


if __name__ == "__main__":
    print("\n".join(lines_of(compare())))
    print("Not run: the GDP residual update, which dpflow does not have.")
