"""Costs that settle by outcome, and refined numbers: reserved and settled prices."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from functools import partial
from typing import Any

import mpmath
import pytest

from dpflow import (
    ApproxDP,
    Cost,
    EarlyStopping,
    Gaussian,
    Laplace,
    OutputDP,
    PureDP,
    Refined,
    SparseVector,
)
from dpflow.accounting import FILTERS, ODOMETERS, make_filter, make_odometer
from dpflow.accounting.costs.base import cost_from_description
from dpflow.accounting.costs.text import cost_from_text
from dpflow.accounting.curves.prices import (
    approx_dp,
    approx_zcdp,
    gdp_mu_squared,
    renyi,
)
from dpflow.accounting.rules.groups import group_cost
from dpflow.accounting.rules.rule import Rule
from dpflow.costs import ProposeTestRelease, TopK
from dpflow.exceptions import UnsupportedCost
from dpflow.noise.refining import chance_to_stay, coarsen, happens
from dpflow.rounding import UNITS

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


#: Options of a theorem besides delta and epsilon.
OPTIONS: dict[str, dict[str, Any]] = {
    **{name: {"delta_loss": "1e-5"} for name in ("zcdp", "whitehouse")},
    "rdp": {"order": 8},
    "sequence": {"steps": [EarlyStopping(TWENTY, stops=STOPS), TENTH]},
    "rdp-doubling": {"orders": [4, 8]},
}


def rules() -> list[Any]:
    """Return a filter or odometer of every theorem."""
    made: list[Any] = []
    for make, names, word in (
        (make_filter, FILTERS, "epsilon"),
        (make_odometer, ODOMETERS, "halt_at_epsilon"),
    ):
        budget = {"delta": "1e-4", word: 3}
        made += [make(name, **budget, **OPTIONS.get(name, {})) for name in names]
    return made


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
        for price, steps in (
            (rule.price(cost), totals[20]),
            (rule.price_realised(cost, 4), totals[4]),
        ):
            for one, other in zip(price.amounts, steps.amounts, strict=True):
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


COST = Refined(Gaussian(sensitivity=1, noise_multiplier=5), coarsest=80)
PURE = Refined(Laplace(sensitivity=1, epsilon="0.1"), coarsest=80)
BUDGET = {"epsilon": 3, "delta": "1e-6"}


def refining_rules() -> list[Rule]:
    """Make every rule that lets outputs decide what runs next and prices Gaussians."""
    filters = [
        make_filter(name, **BUDGET)
        for name in ("gdp", "zcdp", "rdp", "auto", "whitehouse")
    ]
    odometers = [
        make_odometer(name, delta="1e-6", halt_at_epsilon=3)
        for name in ("rdp", "mixture", "stitched", "rdp-doubling")
    ]
    return [*filters, make_filter("rdp", **BUDGET, orders=[4, 16, 64]), *odometers]


@pytest.mark.parametrize("rule", refining_rules(), ids=lambda rule: type(rule).__name__)
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


def law(scale: Fraction) -> dict[int, object]:
    """Return the discrete Laplace law, to 50 digits."""
    ratio = mpmath.exp(-mpmath.mpf(scale.denominator) / scale.numerator)
    norm = (1 - ratio) / (1 + ratio)
    return {k: norm * ratio ** abs(k) for k in range(-REACH, REACH + 1)}


def worst(chance: object) -> float:
    """Return how far the coarsened law is from the one that it should be."""
    with mpmath.workdps(50):
        fine, coarse = law(FINE), law(COARSE)
        ratios = [
            chance * fine[k] / coarse[k]
            + (1 - chance)
            * sum(fine[j] * coarse.get(k - j, 0) for j in fine)
            / coarse[k]
            for k in range(-20, 21)
        ]
        return float(max(abs(ratio - 1) for ratio in ratios))


def test_a_coarsened_number_has_exactly_the_coarser_noise() -> None:
    """To the digits of the cut; the chance of continuous noise would not do."""
    with mpmath.workdps(50):
        chance = chance_to_stay(FINE, COARSE, 256)
        exact = mpmath.mpf(chance.numerator) / chance.denominator
    assert worst(exact) < 1e-10
    assert worst(mpmath.mpf(4) / 25) > 1e-3


def losses(chance: float, *, independent: bool = False) -> tuple[float, float]:
    """Return the worst loss of the coarse number alone, and of both numbers."""
    alone, both = 0.0, 0.0
    fine = {k: float(p) for k, p in law(FINE).items()}
    more = {k: float(p) for k, p in law(COARSE).items()}

    def joint(truth: int, first: int, second: int) -> float:
        if independent:
            return more[first - truth] * fine[second - truth]
        moved = (1 - chance) * more[first - second] + chance * (first == second)
        return fine[second - truth] * moved

    reach = range(-15, 16)
    for first in reach:
        here, there = (
            sum(joint(truth, first, k) for k in range(-60, 60)) for truth in (0, 1)
        )
        alone = max(alone, abs(math.log(here / there)))
    for first, second in itertools.product(reach, reach):
        ratio = joint(0, first, second) / joint(1, first, second)
        both = max(both, abs(math.log(ratio)))
    return alone, both


def test_an_adversary_loses_the_epsilon_of_the_last_draw_and_no_more() -> None:
    """The first number alone costs 1/5, both 1/2; independent draws more."""
    chance = float(chance_to_stay(FINE, COARSE, 128))
    alone, both = losses(chance)
    assert alone == pytest.approx(1 / 5, abs=1e-9)
    assert both == pytest.approx(1 / 2, abs=1e-9)
    assert losses(chance, independent=True)[1] == pytest.approx(0.7, abs=1e-9)
    # A chance that is too large is noticed by the same sum.
    assert losses(chance * 1.5)[0] > 1 / 5 + 1e-3


def test_an_event_has_the_chance_that_it_is_drawn_with() -> None:
    """Undecided bits are followed by more; coarse numbers add noise to finer ones."""
    hits = sum(happens(lambda _: Fraction(1, 3)) for _ in range(3000))
    assert abs(hits - 1000) < 170  # beyond six standard errors
    scales = [Fraction(2), Fraction(5), Fraction(11)]
    outcomes = {
        tuple(coarsen(7, scales, lambda scale: 100 * int(scale))) for _ in range(1000)
    }
    assert outcomes == {(7, 7 + a, 7 + a + b) for a in (0, 500) for b in (0, 1100)}
