"""Options that make no rule, and how many equal steps each filter admits."""

from __future__ import annotations

from fractions import Fraction

import pytest

from dpflow import ZCDP, ExponentialMechanism, Gaussian, Laplace, PureDP
from dpflow.accounting import make_filter, make_odometer
from dpflow.accounting.curves.conversions import gdp_budget, zcdp_budget
from dpflow.accounting.rules.rdp_doubling import PAPER_ORDERS
from dpflow.exceptions import InvalidCost
from dpflow.forecast.counting import WorkloadStep, runs_of
from dpflow.rounding import UNITS

NO_FINITE = (float("nan"), float("inf"), True, "half")
#: Filters with an option that they refuse, and what the error says; bad numbers of
#: epsilon, delta and options that no rule has stand in the laws.
FILTERS = {
    "gdp": {"delta_loss": [0, -1, "1.0000001e-6", *NO_FINITE]},
    "individual": {
        "order": ["0.5", "1.0001"],
        "measure": ["pure", None],
        "orders": [[2, 4]],
    },
    "rdp": {
        "order": [1, 2, "1e7", *NO_FINITE],
        "conversion": ["best"],
        "weights": [[1]],
        "orders": ["2, 4", [], [2, 2], list(range(2, 300))],
    },
    "whitehouse": {"delta_loss": [0, "2e-6"], "drift": ["tan"], "beta": [1]},
    "zcdp": {
        "delta_loss": [0, -1, "1.0000001e-6", *NO_FINITE],
        "conversion": ["best", "Tight", None, True, ["tight"]],
    },
}
#: The same of odometers, with their other options.
ODOMETERS = [
    ("rdp", {}, {"order": [None, 1, "1.00009", 0.5, -2, 10**6 + 1, *NO_FINITE]}),
    ("rogers", {}, {"people": [1, "10.5", True], "granularity": [0, "0.26"]}),
    ("rogers", {}, {"beta": [0]}),
    ("rogers", {"beta": 1}, {"people": [10], "granularity": ["0.1"], "rho": [1]}),
    ("rogers", {"beta": 1}, {"delta": ["0.3679"]}),
    ("mixture", {}, {"rho": [-1], "halt_at_epsilon": [0]}),
    ("mixture", {"rho": 1}, {"sides": [2], "form": ["rdp"], "delta_loss": ["1e-5"]}),
    ("stitched", {}, {"v0": ["nan", True]}),
    ("basic", {}, {"order": [8]}),
]
#: Weights of the orders 4 and 8.
WEIGHTS = [[1], [".6", ".5"], ["1/0", ".5"], [0, 1], [-1, 1]]


def test_an_option_that_makes_no_rule_is_refused_by_name() -> None:
    """It is no number, out of range, an unknown word, or excluded by another one."""
    for theorem, options in FILTERS.items():
        for name, values in options.items():
            for value in values:
                with pytest.raises(InvalidCost, match=name):
                    make_filter(theorem, epsilon=1, delta="1e-6", **{name: value})
    for theorem, given, options in ODOMETERS:
        for name, values in options.items():
            for value in values:
                with pytest.raises(InvalidCost, match=name):
                    make_odometer(theorem, **{"delta": "1e-6", **given, name: value})
    for odd in [*({"weights": each} for each in WEIGHTS), {"order": 4}]:
        with pytest.raises(InvalidCost):
            make_filter("rdp", epsilon=1, delta="1e-6", orders=[4, 8], **odd)
    for theorem, needed in (("rogers", "beta"), ("mixture", "rho"), ("stitched", "v0")):
        with pytest.raises(InvalidCost, match=f"needs {needed}=, or halt_at_epsilon="):
            make_odometer(theorem, delta="1e-6")


TENTH, TWENTY = PureDP(epsilon="0.1"), Gaussian(sensitivity=1, sigma=20)
HUNDREDTH, RANGE = PureDP(epsilon="0.01"), ExponentialMechanism(epsilon="0.1")
LAPLACE = Laplace(sensitivity=1, epsilon="0.01")
CLASSIC = {"conversion": "classic"}
#: Theorem and options, a cost, and how many fit at epsilon 1, 5 (delta 1e-6) and 10
#: (delta 1e-5); None: not known.
ADMITTED = [
    ("basic", {}, TENTH, (10, 50, 100)),
    ("gdp", {}, TWENTY, (22, 416, 1600)),
    ("gdp", {}, Gaussian(sensitivity=2, sigma=20), (5, None, None)),
    ("gdp", {}, Gaussian(sensitivity=1, sigma="4.2246"), (0, None, None)),
    ("gdp", {}, Gaussian(sensitivity=1, sigma="4.2247"), (1, None, None)),
    ("gdp", {}, TENTH, (3, 66, None)),
    ("zcdp", {}, TWENTY, (19, 370, None)),
    ("zcdp", CLASSIC, TWENTY, (13, 308, None)),
    ("zcdp", {}, TENTH, (4, 92, None)),
    ("zcdp", {}, ZCDP(rho="0.0243559703595383"), (1, None, None)),
    ("zcdp", {}, ZCDP(rho="0.0243559703595384"), (0, None, None)),
    ("rdp", {}, TENTH, (7, 97, None)),
    ("rdp", {}, TWENTY, (19, 370, None)),
    ("rdp", CLASSIC, TWENTY, (None, 308, None)),
    ("rdp", {"order": 1586}, TENTH, (10, None, None)),
    ("rdp", {"orders": [*PAPER_ORDERS]}, TWENTY, (14, 340, None)),
    ("rdp", {"orders": [2**n for n in range(1, 13)]}, TENTH, (10, 84, None)),
    ("residue", {}, HUNDREDTH, (558, None, None)),
    ("residue", {}, LAPLACE, (560, None, None)),
    ("residue", {}, TENTH, (4, 102, 398)),
    ("residue", {}, RANGE, (20, 413, 1597)),
    ("residue", {}, TWENTY, (22, 416, 1600)),
]
BUDGETS = [(1, "1e-6"), (5, "1e-6"), (10, "1e-5")]


def test_known_numbers_of_steps() -> None:
    """A filter admits as many equal steps as theory says, and no more."""
    for theorem, options, cost, counts in ADMITTED:
        for (epsilon, delta), count in zip(BUDGETS, counts, strict=True):
            if count is not None:
                rule = make_filter(theorem, epsilon=epsilon, delta=delta, **options)
                found = runs_of(rule, (WorkloadStep(cost),))
                assert count == found, (theorem, options, cost)
    for epsilon in (0.1, "0.1", Fraction(1, 10)):
        rule = make_filter("basic", epsilon="0.3")
        assert runs_of(rule, (WorkloadStep(PureDP(epsilon=epsilon)),)) == 3


def test_a_limit_is_what_the_conversion_allows() -> None:
    """In whole units, rounded down to 36 decimals."""
    for theorem, conversion in (("gdp", gdp_budget), ("zcdp", zcdp_budget)):
        rule = make_filter(theorem, epsilon=1, delta="1e-6")
        budget = conversion(rule.epsilon, rule.delta)
        limit = rule.limit.amounts[0]
        assert limit <= budget * UNITS < limit + UNITS // 10**36
