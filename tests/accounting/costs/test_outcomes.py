"""Costs that settle by outcome, and refined numbers: reserved and settled prices."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import mpmath
import pytest

from dpflow import EarlyStopping, Gaussian, Laplace, PureDP, Refined, SparseVector
from dpflow.accounting import FILTERS, ODOMETERS, make_filter, make_odometer
from dpflow.accounting.costs.base import cost_from_description
from dpflow.accounting.costs.text import cost_from_text
from dpflow.accounting.curves.prices import approx_zcdp, gdp_mu_squared, renyi
from dpflow.accounting.rules.groups import group_cost
from dpflow.accounting.rules.rule import Rule
from dpflow.exceptions import UnsupportedCost
from dpflow.noise import refining
from dpflow.noise.refining import chance_to_stay, coarsen, happens
from dpflow.rounding import UNITS
from tests.tables import read_costs, read_tables

TENTH, TWENTY = PureDP(epsilon="0.1"), Gaussian(sensitivity=1, sigma=20)
TABLES = read_tables(__file__)
TOY, *_ = COSTS = read_costs(TABLES["costs"])


def outcomes_of(cost: Any) -> list[str | int]:
    """Return every outcome that a cost may report."""
    if isinstance(cost, EarlyStopping):
        return list(range(1, cost.stops[-1] + 1))
    if isinstance(cost, SparseVector):
        return list(range(cost.positives + 1))
    return [name for name, _ in cost.output_dp().cells]


#: A filter or odometer of every theorem.
RULES: list[Any] = [
    make(name, delta="1e-4", **{budget: 3}, **TABLES["options"].get(name, {}))
    for make, names, budget in (
        (make_filter, FILTERS, "epsilon"),
        (make_odometer, ODOMETERS, "halt_at_epsilon"),
    )
    for name in names
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
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
    for rule in RULES:
        charge = getattr(rule, "charge_realised", rule.price_realised)
        if rule.theorem in {"output-dp", "rdp"}:
            assert charge(TOY, "none") == rule.zero()
        elif rule.theorem != "sequence":
            full = getattr(rule, "charge", rule.price)
            assert charge(TOY, "none") == full(TOY)


def test_every_adaptive_theorem_refunds_substeps() -> None:
    """Twenty sub-steps are twenty steps, and four that ran are four."""
    cost = EarlyStopping(TENTH, stops=(5, 10, 20))
    for rule in RULES:
        if "steps" not in rule.settlements:
            continue
        totals = [rule.zero()]
        for _ in range(20):
            totals.append(totals[-1] + rule.price(TENTH, totals[-1]))
        # Sub-steps are rounded up once, and steps one by one.
        for price, steps in (
            (rule.price(cost), totals[20]),
            (rule.price_realised(cost, 4), totals[4]),
        ):
            for one, other in zip(price.amounts, steps.amounts, strict=True):
                assert 0 <= other - one <= other // 10**30


def test_other_notions_see_the_worst_cell() -> None:
    """Elsewhere a cost of cells is its largest epsilon with its delta."""
    sparse, tested, worst_two = read_costs(TABLES["worst cells"])
    worst = PureDP(epsilon="0.6")
    basic = make_filter("basic", epsilon=1)
    assert basic.price(sparse).amounts == (UNITS * 6 // 10, 0)
    for price in (approx_zcdp, gdp_mu_squared, lambda cost: renyi(cost, Fraction(5))):
        assert price(sparse) == price(worst)
    assert approx_zcdp(tested) == approx_zcdp(worst_two)
    with pytest.raises(UnsupportedCost):
        renyi(tested, Fraction(5))


COST = Refined(Gaussian(sensitivity=1, noise_multiplier=5), coarsest=80)
PURE = Refined(Laplace(sensitivity=1, epsilon="0.1"), coarsest=80)
BUDGET = {"epsilon": 3, "delta": "1e-6"}


#: Every rule that lets outputs decide what runs next and prices Gaussians.
REFINING: list[Rule] = [
    *(make_filter(name, **BUDGET, **row) for name, row in TABLES["refining filters"]),
    *(
        make_odometer(name, delta="1e-6", halt_at_epsilon=3)
        for name in TABLES["refining odometers"]
    ),
]


@pytest.mark.parametrize("rule", REFINING, ids=lambda rule: type(rule).__name__)
def test_the_price_after_each_draw_is_the_sum_of_its_draws(rule: Rule) -> None:
    """Each draw is a step of its own; roundings apart, no rule charges more or less."""
    total = rule.zero().amounts
    for draw, part in enumerate(COST.refinements(), 1):
        paid = rule.price(part).amounts
        total = tuple(a + b for a, b in zip(total, paid, strict=True))
        charged = rule.price_realised(COST, draw).amounts
        for summed, amount in zip(total, charged, strict=True):
            assert summed - draw <= amount <= summed + summed // 10**20 + draw
    assert rule.price(COST) == rule.price(COST.finest)
    assert rule.price_realised(COST, None) == rule.price(COST)


def test_a_draw_that_is_left_out_is_caught() -> None:
    """The control: the price of the last draw alone is far less than the sum."""
    rule = make_filter("gdp", **BUDGET)
    last = rule.price(COST.refinements()[-1]).amounts[0]
    assert last < rule.price_realised(COST, len(COST.spreads)).amounts[0] / 2


def test_laplace_has_a_cell_for_each_number_of_draws() -> None:
    """Under output and at one Renyi order; elsewhere the worst stays charged."""
    rule = make_filter("output-dp", epsilon=1)
    for draw, scale in enumerate(PURE.spreads, 1):
        epsilon = rule.price(Laplace(sensitivity=1, scale=scale))
        assert rule.price_realised(PURE, draw) == epsilon
    assert rule.price(PURE).amounts == (UNITS // 10, 0)
    renyi = make_filter("rdp", **BUDGET)
    assert renyi.price_realised(PURE, 1).fits_within(renyi.price(PURE))
    assert renyi.price_realised(PURE, 1) != renyi.price(PURE)
    pure = make_filter("basic", epsilon=1)
    assert pure.price_realised(PURE, 1) == pure.price(PURE)


@pytest.mark.parametrize("cost", [COST, PURE])
def test_a_description_makes_the_same_cost(cost: Refined) -> None:
    """So do noisier ones, and those of a group, which keep the spreads."""
    assert cost.noisier(Fraction(3)).spreads[0] == 3 * cost.spreads[0]
    group = group_cost(cost, 7)
    assert isinstance(group, Refined)
    assert (group.finest.sensitivity, group.spreads) == (7, cost.spreads)
    each = Refined(cost.finest, spreads=[90, 40])
    assert cost_from_text(repr(each)) == cost_from_description(each.describe()) == each


# The law of Laplace noise that is coarsened

FINE, COARSE = Fraction(2), Fraction(5)
REACH = 160


def law(scale: Fraction) -> dict[int, Any]:
    """Return the discrete Laplace law, to 50 digits."""
    ratio = mpmath.exp(-mpmath.mpf(scale.denominator) / scale.numerator)
    norm = (1 - ratio) / (1 + ratio)
    return {k: norm * ratio ** abs(k) for k in range(-REACH, REACH + 1)}


def losses(chance: Any, *, independent: bool = False) -> tuple[float, float, float]:
    """Return worst numbers of two draws, of which an adversary sees the coarser first.

    Args:
        chance: The chance that the coarse number is the fine one.
        independent: Whether both numbers have noise of their own.

    Returns:
        How far the coarse number's law is from the one that it should be, relatively;
        the worst loss of the coarse number alone, and of both numbers.
    """
    away = alone = both = mpmath.mpf(0)
    fine, more = law(FINE), law(COARSE)

    def joint(truth: int, first: int, second: int) -> Any:
        if independent:
            return more[first - truth] * fine[second - truth]
        moved = (1 - chance) * more[first - second] + chance * (first == second)
        return fine[second - truth] * moved

    reach = range(-15, 16)
    for first in reach:
        here, there = (
            mpmath.fsum(joint(truth, first, k) for k in range(-100, 100))
            for truth in (0, 1)
        )
        away = max(away, abs(here / more[first] - 1))
        alone = max(alone, abs(mpmath.log(here / there)))
    for first, second in itertools.product(reach, reach):
        ratio = joint(0, first, second) / joint(1, first, second)
        both = max(both, abs(mpmath.log(ratio)))
    return float(away), float(alone), float(both)


def test_an_adversary_loses_the_epsilon_of_the_last_draw_and_no_more() -> None:
    """A coarsened number has the coarser noise, and loses 1/5; both numbers lose 1/2.

    To the digits of the cut. The chance of continuous noise would not do, and
    independent draws lose more.
    """
    with mpmath.workdps(50):
        share = chance_to_stay(FINE, COARSE, 256)
        chance = mpmath.mpf(share.numerator) / share.denominator
        away, alone, both = losses(chance)
        assert away < 1e-10
        assert alone == pytest.approx(1 / 5, abs=1e-9)
        assert both == pytest.approx(1 / 2, abs=1e-9)
        assert losses(mpmath.mpf(4) / 25)[0] > 1e-3
        assert losses(chance, independent=True)[2] == pytest.approx(0.7, abs=1e-9)
        # A chance that is too large is noticed by the same sum.
        assert losses(chance * 1.5)[1] > 1 / 5 + 1e-3


@pytest.mark.parametrize(
    ("first", "then", "answer"),
    [(2**127, 1, False), (2**127 - 1, 2**128 - 2, True)],
)
def test_a_chance_is_computed_until_it_decides(
    monkeypatch: pytest.MonkeyPatch, first: int, then: int, answer: bool
) -> None:
    """Bits within the error of the chance decide nothing, on both of its sides."""
    drawn = [first, then]
    monkeypatch.setattr(refining, "random_bytes", lambda n: drawn.pop(0).to_bytes(n))
    assert happens(lambda _: Fraction(1, 2)) is answer
    assert drawn == []


def test_an_event_has_the_chance_that_it_is_drawn_with() -> None:
    """Undecided bits are followed by more; coarse numbers add noise to finer ones."""
    hits = sum(happens(lambda _: Fraction(1, 3)) for _ in range(3000))
    assert abs(hits - 1000) < 170  # beyond six standard errors
    scales = [Fraction(2), Fraction(5), Fraction(11)]
    outcomes = {
        tuple(coarsen(7, scales, lambda scale: 100 * int(scale))) for _ in range(1000)
    }
    assert outcomes == {(7, 7 + a, 7 + a + b) for a in (0, 500) for b in (0, 1100)}
