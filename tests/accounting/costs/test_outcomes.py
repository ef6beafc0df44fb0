"""Costs that settle by outcome: what they reserve, what they settle, how they read."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import Any

import pytest

from dpflow import (
    ApproxDP,
    Cost,
    EarlyStopping,
    Gaussian,
    OutputDP,
    PureDP,
    SparseVector,
)
from dpflow.accounting import FILTERS, ODOMETERS, make_filter, make_odometer
from dpflow.accounting.curves.prices import (
    approx_dp,
    approx_zcdp,
    gdp_mu_squared,
    renyi,
)
from dpflow.costs import ProposeTestRelease, TopK
from dpflow.exceptions import InvalidCost, UnsupportedCost

TENTH, TWENTY = PureDP(epsilon="0.1"), Gaussian(sensitivity=1, sigma=20)
TOY = OutputDP({"none": 0, "answer": "0.5"})
STOPS = (5, 10, 20)

COSTS: list[Cost] = [
    TOY,
    OutputDP({1: "0.25", "b": "1e-9"}, delta="1e-7"),
    OutputDP({"all": 0}, delta="0.01"),
    SparseVector(positives=3, epsilon="0.6"),
    SparseVector(positives=20, epsilon="0.4", sensitivity="2.5", monotone=True),
    ProposeTestRelease(epsilon="0.2", delta="1e-8"),
    ProposeTestRelease(epsilon="0.2", delta="1e-8", tries=2),
    TopK(epsilon="0.3", delta="1e-8", most=3, among=7),
    EarlyStopping(TENTH, stops=STOPS),
    EarlyStopping(TWENTY, stops=STOPS),
    EarlyStopping(TWENTY, stops=STOPS, accountant="gdp", delta="1e-6"),
    EarlyStopping(TENTH, stops=[7], accountant="kov", delta=["1e-7"]),
    EarlyStopping(TENTH, stops=STOPS, accountant="optimal", delta="1e-6"),
    EarlyStopping(ApproxDP(epsilon="0.1", delta="1e-9"), stops=(2, 4)),
    EarlyStopping(TOY, stops=(2, 4)),
]


def outcomes_of(cost: Cost) -> list[str | int]:
    """Return every outcome that a cost may report."""
    if isinstance(cost, EarlyStopping):
        return list(range(1, cost.stops[-1] + 1))
    if isinstance(cost, SparseVector):
        return list(range(cost.positives + 1))
    assert isinstance(cost, OutputDP | ProposeTestRelease | TopK)
    return [name for name, _ in cost.output_dp().cells]


def rules() -> list[Any]:
    """Return a filter or odometer of every theorem."""
    options: dict[str, dict[str, Any]] = {
        "zcdp": {"delta_loss": "1e-5"},
        "whitehouse": {"delta_loss": "1e-5"},
        "rdp": {"order": 8},
        "sequence": {"steps": [EarlyStopping(TWENTY, stops=STOPS), TENTH]},
    }
    special = {"rdp": {"order": 8}, "rdp-doubling": {"orders": [4, 8]}}
    filters = [
        make_filter(name, epsilon=3, delta="1e-4", **options.get(name, {}))
        for name in FILTERS
    ]
    odometers = [
        make_odometer(name, delta="1e-4", halt_at_epsilon=3, **special.get(name, {}))
        for name in ODOMETERS
    ]
    return filters + odometers


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: type(rule).__name__)
def test_realised_never_exceeds_reserved(rule: Any) -> None:
    """Under every theorem, every outcome of every cost settles downwards."""
    for cost in COSTS:
        try:
            reserved = rule.price(cost)
        except UnsupportedCost:
            with pytest.raises(UnsupportedCost):
                rule.price_realised(cost, None)
            continue
        assert reserved == rule.price_realised(cost, None)
        for outcome in outcomes_of(cost):
            realised = rule.price_realised(cost, outcome)
            assert realised.fits_within(reserved)
            settles = getattr(cost, "settlement", "full")
            if settles not in rule.settlements:
                assert reserved == realised


def test_only_output_dp_and_rdp_refund_cells() -> None:
    """A cheap cell is charged in full by everything else."""
    for rule in rules():
        charge = getattr(rule, "charge_realised", rule.price_realised)
        if rule.theorem in {"output-dp", "rdp"}:
            assert charge(TOY, "none") == rule.zero()
        elif rule.theorem != "sequence":
            full = getattr(rule, "charge", rule.price)
            assert charge(TOY, "none") == full(TOY)


def test_every_adaptive_theorem_refunds_substeps() -> None:
    """Twenty sub-steps are twenty steps, and four that ran are four."""
    cost = EarlyStopping(TENTH, stops=STOPS)
    for rule in rules():
        if "steps" not in rule.settlements:
            continue
        totals = [rule.zero()]
        for _ in range(20):
            totals.append(totals[-1] + rule.price(TENTH, totals[-1]))
        # Sub-steps are rounded up once, and steps one by one.
        for found, steps in (
            (rule.price(cost), totals[20]),
            (rule.price_realised(cost, 4), totals[4]),
        ):
            for one, other in zip(found.amounts, steps.amounts, strict=True):
                assert 0 <= other - one <= other // 10**30


def test_other_notions_see_the_worst_cell() -> None:
    """Elsewhere a cost of cells is its largest epsilon with its delta."""
    sparse = SparseVector(positives=4, epsilon_threshold="0.2", epsilon_answers="0.4")
    worst = PureDP(epsilon="0.6")
    assert approx_dp(sparse) == (Fraction("0.6"), 0)
    assert approx_zcdp(sparse) == approx_zcdp(worst)
    assert gdp_mu_squared(sparse) == gdp_mu_squared(worst)
    assert renyi(sparse, Fraction(5)) == renyi(worst, Fraction(5))
    tested = ProposeTestRelease(epsilon="0.2", delta="1e-8")
    worst_two = ApproxDP(epsilon="0.4", delta="1e-8")
    assert approx_zcdp(tested) == approx_zcdp(worst_two)
    with pytest.raises(UnsupportedCost):
        renyi(tested, Fraction(5))


early = partial(EarlyStopping, TENTH)


BAD: list[tuple[Any, str]] = [
    # A journal could not be read any more that holds such a part.
    (lambda: early(stops=STOPS, accountant="kov", delta="2e-35"), "delta of a stop"),
    (lambda: SparseVector(positives=3, epsilon="1e-12"), "epsilon_threshold"),
    (lambda: OutputDP({}), "needs a mapping"),
    (lambda: OutputDP({"a": 0}), "no cell"),
    (lambda: OutputDP({"a": -1}), "epsilon of cell"),
    (lambda: OutputDP({"a": 1}, delta=1), "delta must be"),
    (lambda: OutputDP({"": 1}), "name must be"),
    (lambda: OutputDP({1: 1, "1": 2}), "same name"),
    (lambda: TOY.realised("other"), "unknown cell"),
    (lambda: SparseVector(positives=1.5, epsilon=1), "whole number"),  # type: ignore[arg-type]
    (lambda: SparseVector(positives=1), "either epsilon"),
    (lambda: SparseVector(positives=1, epsilon=1, monotone=1), "monotone"),  # type: ignore[arg-type]
    (lambda: SparseVector(positives=3, epsilon=1).realised(4), "positive answers"),
    (lambda: ProposeTestRelease(epsilon=1, delta=0), "delta must be"),
    (lambda: ProposeTestRelease(epsilon=1, delta="0.1", tries=3), "tries"),
    (lambda: early(stops=()), "rising"),
    (lambda: early(stops=(0, 2)), "a stop"),
    (lambda: early(stops="12"), "list of whole"),
    (lambda: early(stops=(1,), accountant="kov"), "needs a delta"),
    (lambda: early(stops=(1,), delta="0.1"), "takes no delta"),
    (lambda: early(stops=(1, 2), accountant="kov", delta=["0.1"]), "as many deltas"),
    (lambda: EarlyStopping(early(stops=(1,)), stops=(1,)), "one sub-step"),
    # A body that counted nothing: the guard settles in full.
    (lambda: early(stops=STOPS).realised(0), "sub-steps"),
]


def test_nonsense_is_refused() -> None:
    """Wrong numbers, names and outcomes raise InvalidCost and say what is wrong."""
    for make, words in BAD:
        with pytest.raises(InvalidCost, match=words):
            make()
