"""Adversaries against the first rules, computed exactly and never sampled.

The privacy loss of randomized response lives on a lattice, so what an adversary can
reach is a finite recursion; that of Gaussians has a closed form. Each audit of a rule
of dpflow stands beside a wrong rule that the same audit catches.

Neighbours are P and Q; everything here is symmetric in the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow import ApproxDP, Gaussian, PureDP
from dpflow.accounting import Filter, make_filter, make_odometer
from dpflow.accounting.costs.base import Cost
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import UnsupportedCost
from dpflow.rounding import UNITS, from_units
from tests.sizes import scaled

#: The referee's own arithmetic: fifty digits and some to spare.
MP: Any = mpmath.mp.clone()
MP.dps = 60


def real(value: Fraction) -> Any:
    """Return a fraction as one of the referee's numbers."""
    return MP.mpf(value.numerator) / value.denominator


def heads(epsilon: Fraction) -> Any:
    """Return how often randomized response shows a loss of +epsilon under P."""
    return 1 / (1 + MP.exp(-real(epsilon)))


# -- odometers: the loss must stay below the reading at every time -----------------


def crossing_probability(
    epsilon: Fraction, rounds: int, reading: Callable[[int], float]
) -> float:
    """Return P(the loss of randomized response ever exceeds the reading).

    Recursion over the number of heads; paths that cross are taken out at once. Which
    lattice points lie above a reading is decided in fractions, so a path is never on
    the wrong side; the probabilities are floats, correct to about 1e-12.
    """
    head = float(heads(epsilon))
    alive, crossed = np.zeros(rounds + 2), 0.0
    alive[0] = 1.0
    for taken in range(1, rounds + 1):
        alive[1 : taken + 1] = alive[1 : taken + 1] * (1 - head) + alive[:taken] * head
        alive[0] *= 1 - head
        # The loss is epsilon * (2 * heads - taken): above the reading from here on.
        surplus = math.floor(Fraction(reading(taken)) / epsilon)
        first = (taken + surplus) // 2 + 1
        crossed += float(alive[first : taken + 1].sum())
        alive[first : taken + 1] = 0.0
    return crossed


def odometer_readings(epsilon: Fraction, delta: str, order: str) -> Callable:
    """Return what dpflow's Renyi odometer reads after so many equal steps."""
    rule = make_odometer("renyi", delta=delta, order=order)
    renyi, uncovered = rule.charge(PureDP(epsilon=epsilon)).amounts
    return lambda taken: rule.read(Tally((renyi * taken, uncovered * taken)))


@pytest.mark.parametrize(
    ("epsilon", "rounds", "delta", "order"),
    [
        ("0.5", 2000, "0.05", "1.1"),
        ("0.5", 2000, "0.05", "1.5"),
        ("0.5", 2000, "0.05", "4"),
        ("1", 1000, "0.05", "1.2"),
        ("0.01", 10_000, "0.1", "3"),
        ("0.01", 10_000, "0.01", "8"),
        ("0.01", 10_000, "0.001", "20"),
        ("0.1", 4000, "1e-6", "3"),
        ("3", 300, "0.01", "1.3"),
    ],
)
def test_the_loss_stays_below_the_renyi_reading(epsilon, rounds, delta, order):
    """An adversary that stops at the first crossing succeeds with at most delta."""
    eps = Fraction(epsilon)
    probability = crossing_probability(
        eps, rounds, odometer_readings(eps, delta, order)
    )
    assert 0 < probability <= float(delta)


def test_the_renyi_reading_has_little_to_give():
    """The audit is sharp: at a low order the adversary reaches nine tenths of delta."""
    eps = Fraction(1, 2)
    probability = crossing_probability(eps, 2000, odometer_readings(eps, "0.05", "1.5"))
    assert 0.045 < probability <= 0.05


@pytest.mark.parametrize(
    ("delta", "expected"),
    [(0.1, 0.258704), (0.01, 0.0329582), (0.001, 0.00375933)],
)
def test_advanced_composition_is_caught_as_an_odometer(delta, expected):
    """The formula for a fixed number of steps fails more than twice too often."""
    epsilon = 0.01
    probability = crossing_probability(
        Fraction("0.01"),
        10_000,
        lambda taken: (
            taken * epsilon**2 / 2
            + epsilon * math.sqrt(2 * taken * math.log(1 / delta))
        ),
    )
    assert probability == pytest.approx(expected, rel=3e-6)
    assert probability > 2.5 * delta


@pytest.mark.parametrize("forgotten", ["the idle term", "the order of the price"])
def test_a_wrong_renyi_odometer_is_caught(forgotten):
    """Without log(1/delta), or with prices of another order, the audit fails."""
    eps, delta = Fraction(1, 2), "0.05"
    rule = make_odometer("renyi", delta=delta, order=2)
    if forgotten == "the idle term":
        price, idle = rule.price(PureDP(epsilon=eps)).amounts[0], 0.0
    else:
        cheap = make_odometer("renyi", delta=delta, order="1.0001")
        price = cheap.price(PureDP(epsilon=eps)).amounts[0]
        idle = rule.read(rule.zero())
    probability = crossing_probability(
        eps, 2000, lambda taken: float(from_units(price * taken)) + idle
    )
    assert probability > 0.1


def best_adaptive_crossing(
    unit: Fraction, factors: tuple[int, int], rounds: int, delta: str, order: str
) -> float:
    """Return the largest crossing probability over all adaptive strategies.

    After every answer the adversary picks one of two randomized responses, whose
    epsilons are multiples of a unit. Backward induction over (how often each was
    used, loss) finds the best strategy.
    """
    rule = make_odometer("renyi", delta=delta, order=order)
    menu = [(factor, PureDP(epsilon=factor * unit)) for factor in factors]
    prices = [rule.charge(cost).amounts[0] for _, cost in menu]
    chances = [float(heads(cost.epsilon)) for _, cost in menu]
    reach = rounds * max(factors) + max(factors)
    losses = np.arange(-reach, reach + 1)
    later: dict[int, np.ndarray] = {}
    for taken in range(rounds, -1, -1):
        now: dict[int, np.ndarray] = {}
        for first in range(taken + 1):
            spent = prices[0] * first + prices[1] * (taken - first)
            limit = math.floor(Fraction(rule.read(Tally((spent, 0)))) / unit)
            value = np.zeros(len(losses))
            for index, (factor, _) in enumerate(menu):
                if later:
                    after = later[first + (1 - index)]
                    up = np.append(after[factor:], np.zeros(factor))
                    down = np.append(np.zeros(factor), after[:-factor])
                    chance = chances[index]
                    value = np.maximum(value, chance * up + (1 - chance) * down)
            value[losses > limit] = 1.0
            now[first] = value
        later = now
    return float(later[0][reach])


@pytest.mark.parametrize(
    ("unit", "factors", "delta", "order"),
    [
        ("0.5", (1, 2), "0.05", "1.5"),
        ("0.1", (1, 5), "0.05", "3"),
        ("1", (1, 3), "0.01", "1.5"),
    ],
)
def test_choosing_steps_by_the_answers_does_not_help(unit, factors, delta, order):
    """The best adaptive strategy of all crosses the reading with at most delta."""
    probability = best_adaptive_crossing(Fraction(unit), factors, 60, delta, order)
    assert 0 < probability <= float(delta)


# -- filters: what saturating sequences really leak --------------------------------


def gaussian_stick(epsilon: Any, mu_squared: Fraction) -> Any:
    """Return E[(1 - e^(epsilon - L))+] for Gaussians of that mu**2, any epsilon."""
    if mu_squared == 0:
        return MP.mpf(0) if epsilon >= 0 else 1 - MP.exp(epsilon)
    mu = MP.sqrt(real(mu_squared))
    low = MP.erfc((epsilon / mu - mu / 2) / MP.sqrt(2)) / 2
    high = MP.erfc((epsilon / mu + mu / 2) / MP.sqrt(2)) / 2
    return low - MP.exp(epsilon) * high


def true_delta(epsilon: Fraction, costs: list[Cost]) -> Any:
    """Return the exact delta at epsilon of a fixed sequence of worst-case steps.

    Gaussians add their mu**2. A pure step is randomized response. An (e, d)-DP step
    reveals everything with probability d and is randomized response otherwise, which
    no (e, d)-DP mechanism leaks more than (Kairouz, Oh, Viswanath 2015).
    """
    mu_squared = sum(
        ((c.sensitivity / c.sigma) ** 2 for c in costs if isinstance(c, Gaussian)),
        Fraction(0),
    )
    hidden, losses = MP.mpf(1), {Fraction(0): MP.mpf(1)}
    for cost in costs:
        if isinstance(cost, Gaussian):
            continue
        hidden *= 1 - real(getattr(cost, "delta", Fraction(0)))
        chance, moved = heads(cost.epsilon), {}
        for loss, weight in losses.items():
            for step, part in ((1, chance), (-1, 1 - chance)):
                place = loss + step * cost.epsilon
                moved[place] = moved.get(place, 0) + weight * part
        losses = moved
    sticks = (
        weight * gaussian_stick(real(epsilon - loss), mu_squared)
        for loss, weight in losses.items()
        if mu_squared or loss > epsilon
    )
    return 1 - hidden + hidden * MP.fsum(sticks)


def filled(rule: Filter, costs: Iterator[Cost] | list[Cost]) -> list[Cost]:
    """Return the steps that the rule admits, offered one by one."""
    tally, kept = rule.zero(), []
    for cost in costs:
        more = tally + rule.price(cost)
        if rule.admits(more):
            tally, kept = more, [*kept, cost]
    return kept


def last_gaussian(rule: Filter, kept: list[Cost], worth: int) -> Gaussian:
    """Return the Gaussian that uses up the rest of the first component.

    Args:
        rule: The rule whose limit it fills.
        kept: What was admitted so far.
        worth: Units of the component that mu**2 = 1 costs.
    """
    spent = sum((rule.price(cost) for cost in kept), rule.zero())
    rest = Fraction(rule.limit.amounts[0] - spent.amounts[0], worth)
    # Sigma is rounded up at the twentieth digit, so the step fits.
    digits = math.isqrt(math.floor(10**40 / rest)) + 1
    return Gaussian(sensitivity=1, sigma=Fraction(digits, 10**20))


def loosened(rule: Filter, factor: Fraction) -> Filter:
    """Return the rule with its thresholds wrongly made larger by a factor."""
    rule.thresholds = tuple(math.floor(t * factor) for t in rule.thresholds)
    return rule


def gaussian_filled_up(rule: Filter, sigmas: list[int], worth: int) -> list[Cost]:
    """Return Gaussians that leave no room in the rule's first component."""
    kept = filled(rule, [Gaussian(sensitivity=1, sigma=sigma) for sigma in sigmas])
    complete = filled(rule, [*kept, last_gaussian(rule, kept, worth)])
    assert len(complete) == len(kept) + 1
    return complete


TARGETS = [
    ("1", "1e-6"),
    ("5", "1e-6"),
    ("0.1", "1e-9"),
    ("20", "0.01"),
    ("1", "1e-30"),
]
targets = pytest.mark.parametrize(("epsilon", "delta"), TARGETS)
sigma_lists = st.lists(st.integers(2, 300), max_size=30)


@targets
@settings(max_examples=scaled(5))
@given(sigmas=sigma_lists)
def test_gaussians_that_fill_the_gaussian_filter_keep_delta(epsilon, delta, sigmas):
    """The exact delta of a full filter is at most the budget, and nearly all of it."""
    rule = make_filter("gaussian", epsilon=epsilon, delta=delta)
    leaked = true_delta(rule.epsilon, gaussian_filled_up(rule, sigmas, UNITS))
    assert leaked <= real(rule.delta)
    assert leaked > real(rule.delta) * (1 - MP.mpf(10) ** -10)


@targets
def test_a_gaussian_threshold_a_thousandth_too_large_is_caught(epsilon, delta):
    """With 0.1 % more mu**2 the same audit finds more than delta."""
    rule = make_filter("gaussian", epsilon=epsilon, delta=delta)
    loosened(rule, Fraction(1001, 1000))
    assert true_delta(rule.epsilon, gaussian_filled_up(rule, [20], UNITS)) > real(
        rule.delta
    )


@targets
@settings(max_examples=scaled(5))
@given(sigmas=sigma_lists)
def test_gaussians_that_fill_the_concentrated_filter_keep_delta(epsilon, delta, sigmas):
    """The exact delta of a full filter is below the budget, which zCDP never fills."""
    rule = make_filter("concentrated", epsilon=epsilon, delta=delta)
    leaked = true_delta(rule.epsilon, gaussian_filled_up(rule, sigmas, UNITS // 2))
    assert real(rule.delta) / 100 < leaked <= real(rule.delta)


@pytest.mark.parametrize(("epsilon", "delta"), TARGETS[:3])
def test_a_concentrated_threshold_that_gaussians_break_is_caught(epsilon, delta):
    """Charging Gaussians half of their rho is found by their exact delta."""
    rule = make_filter("concentrated", epsilon=epsilon, delta=delta)
    loosened(rule, Fraction(2))
    assert true_delta(rule.epsilon, gaussian_filled_up(rule, [20], UNITS // 2)) > real(
        rule.delta
    )


def concentrated_delta(epsilon: Fraction, rho: Fraction) -> Any:
    """Return the least delta that any order of CKS Prop. 12 proves for rho-zCDP."""
    eps, r = real(epsilon), real(rho)

    def log_delta(log_excess: Any) -> Any:
        a = 1 + MP.exp(log_excess)
        return (a - 1) * (a * r - eps) - log_excess + a * MP.log1p(-1 / a)

    # In the order the logarithm is convex: bisection on its derivative.
    low, high = MP.mpf(-100), MP.mpf(100)
    for _ in range(260):
        middle = (low + high) / 2
        a = 1 + MP.exp(middle)
        if (2 * a - 1) * r - eps + MP.log1p(-1 / a) > 0:
            high = middle
        else:
            low = middle
    return MP.exp(log_delta(low))


@targets
def test_a_concentrated_threshold_a_thousandth_too_large_is_caught(epsilon, delta):
    """A full filter proves delta at its best order; with 0.1 % more no order does."""
    rule = make_filter("concentrated", epsilon=epsilon, delta=delta)
    spent = sum(
        (rule.price(c) for c in gaussian_filled_up(rule, [20, 30], UNITS // 2)),
        rule.zero(),
    )
    proved = concentrated_delta(rule.epsilon, from_units(spent.amounts[0]))
    assert real(rule.delta) * (1 - MP.mpf(10) ** -12) < proved <= real(rule.delta)
    more = from_units(spent.amounts[0]) * Fraction(1001, 1000)
    assert concentrated_delta(rule.epsilon, more) > real(rule.delta)


@pytest.mark.parametrize("theorem", ["basic", "gaussian", "concentrated"])
@pytest.mark.parametrize(
    ("epsilon", "delta", "step"),
    [
        ("5", "1e-6", "0.1"),
        ("1", "1e-6", "0.1"),
        ("3", "0.05", "1"),
        ("2", "1e-3", "0.3"),
    ],
)
def test_randomized_responses_that_fill_a_filter_keep_delta(
    theorem, epsilon, delta, step
):
    """The worst pure steps, as many as fit, leak at most delta at epsilon."""
    rule = make_filter(theorem, epsilon=epsilon, delta=delta)
    kept = filled(rule, [PureDP(epsilon=step)] * 200)
    assert 0 < len(kept) < 200
    assert true_delta(rule.epsilon, kept) <= real(rule.delta)


@pytest.mark.parametrize(
    ("theorem", "worth"), [("gaussian", UNITS), ("concentrated", UNITS // 2)]
)
@pytest.mark.parametrize(("epsilon", "delta"), [("5", "1e-6"), ("1", "1e-3")])
def test_mixed_steps_that_fill_a_filter_keep_delta(theorem, worth, epsilon, delta):
    """Randomized responses topped up with a Gaussian leak at most delta."""
    rule = make_filter(theorem, epsilon=epsilon, delta=delta)
    kept = filled(rule, [PureDP(epsilon="0.1"), PureDP(epsilon="0.05")] * 4)
    kept = filled(rule, [*kept, last_gaussian(rule, kept, worth)])
    assert isinstance(kept[-1], Gaussian)
    leaked = true_delta(rule.epsilon, kept)
    assert real(rule.delta) / 1000 < leaked <= real(rule.delta)


def basic_filled_up(rule: Filter) -> list[Cost]:
    """Return worst-case steps of several sizes that leave no room in a basic filter."""
    sizes = [("0.3", "3e-7"), ("0.25", "3e-7"), ("0.3", "0"), ("0.1", "3e-7")]
    ends = [("0.05", "1e-7"), ("0.001", "1e-9")]
    return filled(rule, [ApproxDP(epsilon=e, delta=d) for e, d in [*sizes, *ends]])


def test_steps_that_fill_the_basic_filter_keep_delta():
    """Leaks add up to at most delta and no path of answers exceeds epsilon."""
    rule = make_filter("basic", epsilon=1, delta="1e-6")
    kept = basic_filled_up(rule)
    assert sum(cost.epsilon for cost in kept) == 1
    assert sum(cost.delta for cost in kept) == rule.delta
    leaked = true_delta(rule.epsilon, kept)
    assert real(rule.delta) * (1 - MP.mpf(10) ** -6) < leaked <= real(rule.delta)


def test_a_basic_threshold_a_thousandth_too_large_is_caught():
    """With 0.1 % more the same audit finds more than delta."""
    rule = loosened(make_filter("basic", epsilon=1, delta="1e-6"), Fraction(1001, 1000))
    assert true_delta(rule.epsilon, basic_filled_up(rule)) > real(rule.delta)


@pytest.mark.parametrize("steps", [1, 4, 10, 20])
def test_pure_steps_that_fill_a_pure_budget_leak_nothing(steps):
    """At delta zero nothing at all leaks at epsilon, however the budget is cut."""
    rule = make_filter("basic", epsilon=1)
    kept = filled(rule, [PureDP(epsilon=Fraction(1, steps))] * (steps + 5))
    assert len(kept) == steps
    assert true_delta(rule.epsilon, kept) == 0
    assert true_delta(rule.epsilon, [*kept, kept[0]]) > 0


# -- sums in floats ----------------------------------------------------------------


@dataclass
class FloatSums:
    """A filter that adds up floats, as many accountants do.

    Args:
        limits: Threshold of each component.
    """

    limits: tuple[float, ...]

    def admitted(self, steps: list[tuple[float, ...]]) -> int:
        """Count how many steps fit, refusing only those that do not."""
        sums, count = [0.0] * len(self.limits), 0
        for step in steps:
            after = [a + b for a, b in zip(sums, step, strict=True)]
            if all(a <= b for a, b in zip(after, self.limits, strict=True)):
                sums, count = after, count + 1
        return count


def test_float_sums_of_deltas_are_caught():
    """A full float budget admits crumbs for ever; the audit finds more than delta."""
    full = ApproxDP(epsilon="0.5", delta="1e-6")
    crumb = ApproxDP(epsilon="1e-12", delta="1e-23")
    steps = [(0.5, 1e-6)] + [(1e-12, 1e-23)] * 10_000
    assert FloatSums((1.0, 1e-6)).admitted(steps) == len(steps)
    leaked = 1 - (1 - real(full.delta)) * (1 - real(crumb.delta)) ** 10_000
    assert leaked > real(Fraction("1e-6"))
    rule = make_filter("basic", epsilon=1, delta="1e-6")
    assert filled(rule, [full, crumb, crumb]) == [full]


def test_float_sums_of_mus_are_caught():
    """The same crumbs as Gaussians of sigma 1e9 exceed delta under float sums."""
    rule = make_filter("gaussian", epsilon=1, delta="1e-6")
    full = gaussian_filled_up(rule, [20, 7], UNITS)
    crumb = Gaussian(sensitivity=1, sigma=10**9)
    prices = [float(from_units(rule.price(cost).amounts[0])) for cost in full]
    limit = math.fsum(prices)
    steps = [(price,) for price in prices] + [(1e-18,)] * 10_000
    assert FloatSums((limit,)).admitted(steps) == len(steps)
    assert true_delta(rule.epsilon, [*full, *[crumb] * 10_000]) > real(rule.delta)
    assert filled(rule, [*full, crumb]) == full


# -- adaptive adversaries ----------------------------------------------------------


@dataclass(frozen=True)
class Move:
    """Something that the adversary may run, and what it declares.

    Args:
        cost: The declared cost, which the mechanism really has.
        loss: Epsilon of its randomized response in tenths; 0 for none.
        leak: Probability with which it reveals everything.
    """

    cost: Cost
    loss: int
    leak: Fraction = Fraction(0)


def response(tenths: int) -> Move:
    """Return randomized response with an epsilon of so many tenths."""
    return Move(PureDP(epsilon=Fraction(tenths, 10)), tenths)


def leak(delta: Fraction) -> Move:
    """Return "reveal everything with probability delta", which is (0, delta)-DP."""
    return Move(ApproxDP(epsilon="1e-12", delta=delta), 0, delta)


def worst_delta(
    epsilon: Fraction,
    menu: list[Move],
    admits: Callable[[tuple[int, ...]], bool],
) -> Any:
    """Return the exact delta at epsilon of the best adaptive adversary.

    Args:
        epsilon: Where delta is taken.
        menu: What the adversary may run after each answer.
        admits: Whether the rule admits so many of each move.
    """

    @cache
    def value(counts: tuple[int, ...], loss: int) -> Any:
        rest = epsilon - Fraction(loss, 10)
        best = 1 - MP.exp(real(rest)) if rest < 0 else MP.mpf(0)
        for index, move in enumerate(menu):
            after = tuple(n + (i == index) for i, n in enumerate(counts))
            if not admits(after):
                continue
            future = value(after, loss + move.loss)
            if move.loss:
                chance = heads(Fraction(move.loss, 10))
                future *= chance
                future += (1 - chance) * value(after, loss - move.loss)
            lost = real(move.leak)
            best = max(best, lost + (1 - lost) * future)
        return best

    return value((0,) * len(menu), 0)


def dpflow_admits(rule: Filter, menu: list[Move]) -> Callable:
    """Return the decision of a rule of dpflow; what has no price is never admitted."""
    prices: list[Tally | None] = []
    for move in menu:
        try:
            prices.append(rule.price(move.cost))
        except UnsupportedCost:
            prices.append(None)

    def admits(counts: tuple[int, ...]) -> bool:
        tally = rule.zero()
        for price, count in zip(prices, counts, strict=True):
            if price is None and count:
                return False
            for _ in range(count):
                tally = tally + price
        return rule.admits(tally)

    return admits


def natural_admits(epsilon: Fraction, delta: Any, menu: list[Move]) -> Callable:
    """Return the natural filter: admit while the exact delta of what ran is in budget.

    This is what a PLD accountant does when it is used step by step; it is no filter.
    """

    @cache
    def admits(counts: tuple[int, ...]) -> bool:
        hidden, costs = MP.mpf(1), []
        for move, count in zip(menu, counts, strict=True):
            hidden *= (1 - real(move.leak)) ** count
            costs += [move.cost] * count if move.loss else []
        leaked = 1 - hidden + hidden * true_delta(epsilon, costs)
        return leaked <= delta * (1 + MP.mpf(10) ** -40)

    return admits


ONE = Fraction(1)
NATURAL_DELTA = (
    heads(Fraction("0.5")) * heads(Fraction("0.6")) * (1 - MP.exp(MP.mpf(-1) / 10))
)
#: Delta of the two-round counterexample, rounded up to whole units of a tally.
DELTA = from_units(int(MP.ceil(NATURAL_DELTA * UNITS)))
TWO_BRANCHES = [response(5), response(6), leak(DELTA)]
FIRST_RULES = {
    "basic": make_filter("basic", epsilon=1, delta=DELTA),
    "gaussian": make_filter("gaussian", epsilon=1, delta=DELTA),
    **{
        f"concentrated {conversion} {part}0%": make_filter(
            "concentrated",
            epsilon=1,
            delta=DELTA,
            delta_loss=DELTA * part / 10,
            conversion=conversion,
        )
        for part in (1, 5, 9, 10)
        for conversion in ("tight", "classic")
    },
}
every_rule = pytest.mark.parametrize("rule", FIRST_RULES.values(), ids=FIRST_RULES)


def test_the_natural_filter_is_caught():
    """Both branches compose to exactly delta, and together they leak 1.38 deltas."""
    natural = natural_admits(ONE, real(DELTA), TWO_BRANCHES)
    assert natural((1, 1, 0))
    assert natural((1, 0, 1))
    assert not natural((1, 1, 1))
    leaked = worst_delta(ONE, TWO_BRANCHES, natural)
    assert abs(real(DELTA) - MP.mpf("0.038245346")) < 1e-9
    assert abs(leaked - MP.mpf("0.052684520")) < 1e-9
    assert leaked == pytest.approx(real(DELTA) * (2 - heads(Fraction("0.5"))))


@every_rule
def test_no_rule_admits_both_branches(rule):
    """After the first answer, a rule of dpflow has room for one branch at most."""
    admits = dpflow_admits(rule, TWO_BRANCHES)
    assert not (admits((1, 1, 0)) and admits((1, 0, 1)))


@every_rule
def test_the_two_branch_adversary_stays_below_delta(rule):
    """Whatever the adversary picks after each answer, the leak is at most delta."""
    leaked = worst_delta(ONE, TWO_BRANCHES, dpflow_admits(rule, TWO_BRANCHES))
    assert leaked <= real(DELTA)


@every_rule
def test_the_best_adversary_with_a_larger_menu_stays_below_delta(rule):
    """More kinds of steps, smaller leaks, any order and any length: at most delta."""
    menu = [response(1), response(3), response(7), leak(DELTA / 2)]
    leaked = worst_delta(ONE, menu, dpflow_admits(rule, menu))
    assert 0 < leaked <= real(DELTA)


def test_the_audit_of_adaptive_adversaries_is_sharp():
    """A basic filter is really filled: the adversary reaches all of its delta."""
    menu = [response(1), response(3), leak(DELTA)]
    rule = make_filter("basic", epsilon=1, delta=DELTA)
    assert dpflow_admits(rule, TWO_BRANCHES)((1, 0, 1))
    leaked = worst_delta(ONE, menu, dpflow_admits(rule, menu))
    assert abs(leaked - real(DELTA)) < 1e-40
    loose = loosened(make_filter("basic", epsilon=1, delta=DELTA), Fraction(11, 10))
    assert worst_delta(ONE, menu, dpflow_admits(loose, menu)) > real(DELTA)
