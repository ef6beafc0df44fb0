"""Adversaries against filters, computed exactly and never sampled.

Full filters: the privacy loss of randomized response lives on a lattice, so what an
adversary can reach is a finite recursion; that of Gaussians has a closed form.

The best adaptive adversary sees all outputs before each step and picks the next
mechanism, or stops; the filter refuses what does not fit. The value of the game is the
hockey-stick divergence E_P[max(0, 1 - exp(epsilon - loss))] of the best strategy: the
true delta at epsilon. For steps without a delta the theorems promise more,
P(loss > epsilon) <= delta, and that is audited as well. Only non-negative terms are
added, so float rounding is below a relative 1e-10.

Each audit of a rule has a wrong rule that the same audit catches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow import ApproxDP, Cost, Gaussian, PureDP
from dpflow.accounting import Filter, make_filter
from dpflow.accounting.published.whitehouse import WhitehouseFilter
from dpflow.accounting.rules.tally import Tally
from dpflow.rounding import from_units
from tests.accounting.oracle import MP, gaussian_delta, real, zcdp_log_delta
from tests.sizes import scaled
from tests.tables import read_tables

# -- what saturating sequences really leak -----------------------------------------


def true_delta(epsilon: Fraction, costs: list[Cost]) -> Any:
    """Return the exact delta at epsilon of a fixed sequence of worst-case steps.

    Gaussians add their mu**2. A pure step is randomized response. An (e, d)-DP step
    reveals everything with probability d and is randomized response otherwise, which
    no (e, d)-DP mechanism leaks more than (Kairouz, Oh, Viswanath 2015).
    """
    mu_squared, hidden, losses = Fraction(0), MP.mpf(1), {Fraction(0): MP.mpf(1)}
    for cost in costs:
        if isinstance(cost, Gaussian):
            mu_squared += (cost.sensitivity / cost.sigma) ** 2
            continue
        hidden *= 1 - real(getattr(cost, "delta", Fraction(0)))
        chance, moved = 1 / (1 + MP.exp(-real(cost.epsilon))), {}
        for loss, weight in losses.items():
            for step, part in ((1, chance), (-1, 1 - chance)):
                place = loss + step * cost.epsilon
                moved[place] = moved.get(place, 0) + weight * part
        losses = moved
    leaks = (
        weight * gaussian_delta(real(epsilon - loss), real(mu_squared))
        for loss, weight in losses.items()
        if mu_squared or loss > epsilon
    )
    return 1 - hidden + hidden * MP.fsum(leaks)


def loosened(rule: Filter) -> Filter:
    """Return the rule with its thresholds wrongly a thousandth larger."""
    rule.thresholds = tuple(t * 1001 // 1000 for t in rule.thresholds)
    return rule


def filled(rule: Filter, costs: Iterator[Cost] | list[Cost]) -> list[Cost]:
    """Return the steps that the rule admits, offered one by one."""
    tally, kept = rule.zero(), []
    for cost in costs:
        more = tally + rule.price(cost)
        if rule.admits(more):
            tally, kept = more, [*kept, cost]
    return kept


def gaussian_filled_up(rule: Filter, sigmas: list[int]) -> list[Cost]:
    """Return Gaussians that leave no room in the rule's first component."""
    kept = filled(rule, [Gaussian(sensitivity=1, sigma=sigma) for sigma in sigmas])
    spent = sum((rule.price(cost) for cost in kept), rule.zero())
    worth = rule.price(Gaussian(sensitivity=1, sigma=1)).amounts[0]  # mu**2 = 1
    rest = Fraction(rule.limit.amounts[0] - spent.amounts[0], worth)
    # Sigma is rounded up at the twentieth digit, so the step fits.
    sigma = Fraction(math.isqrt(math.floor(10**40 / rest)) + 1, 10**20)
    complete = filled(rule, [*kept, Gaussian(sensitivity=1, sigma=sigma)])
    assert len(complete) == len(kept) + 1
    return complete


TABLES = read_tables(__file__)
targets = pytest.mark.parametrize(("epsilon", "delta"), TABLES["targets"])


@targets
@settings(max_examples=scaled(5))
@given(sigmas=st.lists(st.integers(2, 300), max_size=30))
def test_gaussians_that_fill_a_filter_keep_delta(epsilon, delta, sigmas):
    """A full gdp filter leaks nearly its delta, a full zcdp filter less than that."""
    for theorem, least in (("gdp", 1 - MP.mpf("1e-10")), ("zcdp", MP.mpf("0.01"))):
        rule = make_filter(theorem, epsilon=epsilon, delta=delta)
        leaked = true_delta(rule.epsilon, gaussian_filled_up(rule, sigmas))
        assert real(rule.delta) * least < leaked <= real(rule.delta)


@targets
def test_a_gdp_threshold_a_thousandth_too_large_is_caught(epsilon, delta):
    """With 0.1 % more mu**2 the same audit finds more than delta."""
    rule = loosened(make_filter("gdp", epsilon=epsilon, delta=delta))
    leaked = true_delta(rule.epsilon, gaussian_filled_up(rule, [20]))
    assert leaked > real(rule.delta)


@targets
def test_a_zcdp_threshold_a_thousandth_too_large_is_caught(epsilon, delta):
    """A full filter proves delta at its best order; with 0.1 % more no order does."""
    for loose in (False, True):
        rule = make_filter("zcdp", epsilon=epsilon, delta=delta)
        costs = gaussian_filled_up(loosened(rule) if loose else rule, [20, 30])
        spent = sum((rule.price(cost) for cost in costs), rule.zero())
        log_delta = zcdp_log_delta(rule.epsilon, from_units(spent.amounts[0]))
        assert (log_delta > MP.log(real(rule.delta))) == loose
        assert loose or log_delta > MP.log(real(rule.delta)) - MP.mpf("1e-12")


@pytest.mark.parametrize("theorem", ["basic", "gdp", "zcdp"])
def test_randomized_responses_that_fill_a_filter_keep_delta(theorem):
    """The worst pure steps, as many as fit, leak at most delta at epsilon."""
    for epsilon, delta, step in TABLES["responses"]:
        rule = make_filter(theorem, epsilon=epsilon, delta=delta)
        kept = filled(rule, [PureDP(epsilon=step)] * 200)
        assert 0 < len(kept) < 200
        assert true_delta(rule.epsilon, kept) <= real(rule.delta)


def test_a_basic_threshold_a_thousandth_too_large_is_caught():
    """A full filter leaks at most delta; with 0.1 % more the audit finds more."""
    steps = [ApproxDP(epsilon=e, delta=d) for e, d in TABLES["steps"]]
    rule = make_filter("basic", epsilon=1, delta="1e-6")
    kept = filled(rule, steps)
    assert sum(cost.epsilon for cost in kept) == 1
    assert sum(cost.delta for cost in kept) == rule.delta
    leaked = true_delta(rule.epsilon, kept)
    assert real(rule.delta) * (1 - MP.mpf("1e-6")) < leaked <= real(rule.delta)
    assert true_delta(rule.epsilon, filled(loosened(rule), steps)) > real(rule.delta)


# -- sums in floats ----------------------------------------------------------------


def test_float_sums_are_caught():
    """A full float budget admits any number of crumbs, and leaks more than delta.

    So do Gaussians of sigma 1e9 as crumbs.
    """
    full = ApproxDP(epsilon="0.5", delta="1e-6")
    crumb = ApproxDP(epsilon="1e-12", delta="1e-23")
    assert float(full.delta) + float(crumb.delta) == float(full.delta)
    leaked = 1 - (1 - real(full.delta)) * (1 - real(crumb.delta)) ** 10_000
    assert leaked > real(Fraction("1e-6"))
    rule = make_filter("basic", epsilon=1, delta="1e-6")
    assert filled(rule, [full, crumb, crumb]) == [full]
    rule = make_filter("gdp", epsilon=1, delta="1e-6")
    costs = gaussian_filled_up(rule, [20, 7])
    crumb = Gaussian(sensitivity=1, sigma=10**9)
    spent = float(from_units(sum(map(rule.price, costs), rule.zero()).amounts[0]))
    assert spent + float(from_units(rule.price(crumb).amounts[0])) == spent
    assert true_delta(rule.epsilon, [*costs, *[crumb] * 10_000]) > real(rule.delta)
    assert filled(rule, [*costs, crumb]) == costs


#: How many units of loss each mechanism of the adversary moves by.
SIZES = (1, 2, 1)


def game_delta(rule, unit, own="0", *, tail=False):
    """Return the value of the game for randomized responses of unit and 2 unit.

    The third mechanism is the randomized response of unit that reveals everything with
    probability `own`. With `tail`, the value is P(loss > epsilon) instead.
    """
    steps = 300
    costs = [
        ApproxDP(epsilon=unit, delta=0),
        ApproxDP(epsilon=2 * unit, delta=0),
        ApproxDP(epsilon=unit, delta=own),
    ]
    prices = [rule.price(cost) for cost in costs[: 3 if own != "0" else 2]]
    reach = 2 * steps + 3
    grid = np.arange(-reach, reach + 1)
    if tail:
        stop = 1.0 * (grid > math.floor(rule.epsilon / unit))
    else:
        stop = np.maximum(0, -np.expm1(float(rule.epsilon) - grid * float(unit)))

    @cache
    def value(counts: tuple[int, ...]) -> bytes:
        best = stop.copy()
        for index, cost in enumerate(costs[: len(counts)]):
            later = tuple(n + (i == index) for i, n in enumerate(counts))
            paid = [price.times(n) for price, n in zip(prices, later, strict=True)]
            if not rule.admits(sum(paid, rule.zero())):
                continue
            assert sum(later) <= steps
            ahead = np.frombuffer(value(later))
            size, delta = SIZES[index], float(cost.delta)
            up = 1 / (1 + math.exp(-size * float(unit)))
            moved = np.zeros(len(grid))
            shown = up * ahead[2 * size :] + (1 - up) * ahead[: -2 * size]
            moved[size:-size] = shown * (1 - delta) + delta
            best = np.maximum(best, moved)
        return best.tobytes()

    return float(np.frombuffer(value((0,) * len(prices)))[reach])


@pytest.mark.parametrize("row", TABLES["budgets"])
def test_no_adaptive_strategy_exceeds_the_budget(row):
    """The whole interaction is (epsilon, delta)-DP against the best adversary."""
    name, options, epsilon, delta, unit = row
    rule = make_filter(name, epsilon=epsilon, delta=delta, **options)
    reached = game_delta(rule, Fraction(unit))
    tail = game_delta(rule, Fraction(unit), tail=True)
    assert 0 < reached < tail
    assert tail * (1 + 1e-10) <= float(delta)


def test_basic_composition_never_exceeds_the_budget_at_all():
    """Without deltas the loss is at most epsilon on every path, and reaches it."""
    rule = make_filter("basic", epsilon=1)
    assert game_delta(rule, Fraction("0.1"), tail=True) == 0
    tighter = make_filter("basic", epsilon="1.05")
    tighter.epsilon = Fraction("0.99")
    assert game_delta(tighter, Fraction("0.1"), tail=True) > 0


@pytest.mark.parametrize("row", TABLES["splits"])
def test_steps_with_a_delta_stay_in_their_share(row):
    """Revealing everything now and then is paid from the part kept for steps."""
    name, options, epsilon, delta, own = row
    rule = make_filter(name, epsilon=epsilon, delta=delta, **options)
    reached = game_delta(rule, Fraction("0.25"), own)
    assert reached * (1 + 1e-10) <= float(delta)
    assert reached > float(own)


class Forgets(WhitehouseFilter):
    """The mistakes: a loss that the admission forgets, or a part of the deltas."""

    loss, part = 0, 1

    def admits(self, tally: Tally) -> bool:
        """Decide by what is not forgotten."""
        loss, delta = tally.amounts
        return super().admits(Tally((max(loss - self.loss, 0), delta // self.part)))


def test_a_filter_that_looks_after_running_fails_the_audit():
    """Admission must include the step that asks at its worst case."""
    wrong = Forgets(epsilon=3, delta="0.01")
    wrong.loss = wrong.price(ApproxDP(epsilon=Fraction("1.2"), delta=0)).amounts[0]
    assert game_delta(wrong, Fraction("0.6")) > 0.02


def test_a_filter_that_refunds_delta_fails_the_audit():
    """A step's delta is paid whatever its output was; here up to a hundred are free.

    See docs/derivations/output-dp.md#delta-stays-spent.
    """
    wrong = Forgets(epsilon=2, delta="0.05", delta_loss="0.02")
    wrong.part = 100
    assert game_delta(wrong, Fraction("0.25"), "0.01") > 0.05
