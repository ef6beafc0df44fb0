"""A refined number costs no more than its last noise, under every rule."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import mpmath
import pytest

from dpflow import DiscreteLaplace, Gaussian, Laplace, Refined
from dpflow.accounting import make_filter, make_odometer
from dpflow.accounting.costs.base import cost_from_description
from dpflow.accounting.costs.text import cost_from_text
from dpflow.accounting.rules.groups import group_cost
from dpflow.accounting.rules.rule import Rule
from dpflow.exceptions import InvalidCost
from dpflow.noise.refining import chance_to_stay, coarsened, happens
from dpflow.rounding import UNITS

COST = Refined(Gaussian(sensitivity=1, noise_multiplier=5), coarsest=80)
PURE = Refined(Laplace(sensitivity=1, epsilon="0.1"), coarsest=80)
BUDGET = {"epsilon": 3, "delta": "1e-6"}


def rules() -> list[Rule]:
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


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: type(rule).__name__)
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


def test_noise_that_cannot_be_refined_is_refused():
    """Each draw is finer than the one before, and there are at most 200."""
    gaussian = Gaussian(sensitivity=1, sigma=5)
    for finest, coarsest in (
        (gaussian, 5),
        (gaussian, 0),
        (Gaussian(sensitivity=1, sigma="1e-3"), "1e9"),
        (DiscreteLaplace(sensitivity=1, scale=5), 80),
    ):
        with pytest.raises(InvalidCost):
            Refined(finest, coarsest=coarsest)  # type: ignore[arg-type]
    for spreads in (None, [], [5], [80, 80], [80, 90]):
        with pytest.raises(InvalidCost):
            Refined(gaussian, spreads=spreads)


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
    found = {
        tuple(coarsened(7, scales, lambda scale: 100 * int(scale))) for _ in range(1000)
    }
    assert found == {(7, 7 + a, 7 + a + b) for a in (0, 500) for b in (0, 1100)}
