"""Exact audits of fixed sequences: stopping early, adaptive order, the natural filter.

Steps are the worst (epsilon, delta)-DP mechanisms: randomized responses that reveal
everything with probability delta. Values of games are finite sums of maxima.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow import ApproxDP, PureDP
from dpflow.accounting.fixed.optimal import optimal_delta, optimal_epsilon
from dpflow.accounting.fixed.sequence import SequenceFilter
from dpflow.accounting.fixed.stops import best_epsilons, lemma_11, theorem_15
from dpflow.accounting.rules.tally import Tally
from tests.adversaries.games import excess, game
from tests.sizes import scaled


def gains(step, at, depth, p, q):
    """Return the gain of each prefix-free family of outputs below a node."""
    result = [0.0]
    if depth < max(at):
        top, lost = 1 / (1 + math.exp(-float(step[0]))), float(step[1])
        pairs = [((1 - lost) * a, (1 - lost) * (1 - a)) for a in (top, 1 - top)]
        pairs += [(lost, 0.0), (0.0, lost)] if lost else []
        below = [gains(step, at, depth + 1, p * a, q * b) for a, b in pairs]
        result = [sum(choice) for choice in itertools.product(*below)]
    if depth in at:
        result.append(p - at[depth] * q)
    return result


@settings(max_examples=scaled(12, push=6), deadline=None)
@given(st.sampled_from(["0.1", "0.5", "0.9", "2"]), st.integers(1, 4), st.data())
def test_theorem_15_against_all_families(size, count, data):
    """The maximum over every family of stopped sequences, of steps with a delta too."""
    lost = ["0"] if count > 2 else ["0", "0.01", "0.3"]
    step = (Fraction(size), Fraction(data.draw(st.sampled_from(lost))))
    stops = sorted(data.draw(st.sets(st.integers(1, count), min_size=1, max_size=3)))
    shares = st.sampled_from(["0", "0.2", "0.7", "1.1"]).map(Fraction)
    epsilons = [data.draw(shares) * step[0] * k for k in stops]
    at = {k: math.exp(float(e)) for k, e in zip(stops, epsilons, strict=True)}
    reached = float(theorem_15(step, stops, epsilons))
    assert reached == pytest.approx(max(gains(step, at, 0, 1.0, 1.0)), abs=1e-13)


def stopping_game(size, stops, epsilons, budget):
    """Return the value of stopping early and spending what is left of the budget.

    The adversary sees every randomized response, stops when it likes, and then runs
    the worst pure mechanism that the filter `output-dp` still admits.
    """
    at = dict(zip(stops, epsilons, strict=True))
    top = 1 / (1 + math.exp(-float(size)))
    limit = float(budget)

    @cache
    def value(depth: int, tops: int) -> float:
        loss = (2 * tops - depth) * float(size)
        highest = 0.0
        if depth in at:
            rest = max(0.0, float(budget - at[depth]))
            chance = 1 / (1 + math.exp(-rest))
            gained = chance * excess(limit, loss + rest)
            gained += (1 - chance) * excess(limit, loss - rest)
            highest = max(excess(limit, loss), gained)
        if depth < stops[-1]:
            later = top * value(depth + 1, tops + 1)
            highest = max(highest, later + (1 - top) * value(depth + 1, tops))
        return highest

    return value(0, 0)


TENTH = Fraction(1, 10)


#: Stops, delta, and the shares of delta that Theorem 15 says Lemma 11 spends, and that
#: the game reaches against Lemma 11 and against the solved epsilons.
STOPPED = [
    ((10, 20, 30), "1e-3", (0.747, 0.545, 0.737)),
    ((5, 40), "1e-6", (0.740, 0.696, 0.9386)),
    ((2, 4, 6), "0.05", (0.435, 0.333, 0.7557)),
]


@pytest.mark.parametrize(("stops", "delta", "shares"), STOPPED)
def test_stopping_early_keeps_delta(stops, delta, shares):
    """Lemma 11 keeps delta with room to spare; Theorem 15 spends all of it, soundly."""
    whole, step = Fraction(delta), (TENTH, Fraction(0))
    parts = [((PureDP(epsilon="0.1"), k),) for k in stops]
    each = (whole / len(stops),) * len(stops)
    lemma, solved = lemma_11(parts, each, "kov"), best_epsilons(step, stops, each)
    spent = [float(theorem_15(step, stops, e) / whole) for e in (lemma, solved)]
    games = [
        stopping_game(TENTH, stops, e, max(e)) / float(whole) for e in (lemma, solved)
    ]
    assert games[0] <= spent[0] < 1
    assert games[1] <= spent[1] <= 1
    assert spent[1] > 0.999
    assert (spent[0], *games) == pytest.approx(shares, abs=6e-4)


def test_giving_every_stop_the_whole_delta_is_caught() -> None:
    """Reading the realised composition at each stop, without a split, breaks delta."""
    stops, delta = (5, 10, 20, 40, 80), Fraction(1, 100)
    naive = [optimal_epsilon(((PureDP(epsilon="0.1"), k),), delta) for k in stops]
    assert float(theorem_15((TENTH, Fraction(0)), stops, naive)) > 1.5 * float(delta)
    assert stopping_game(TENTH, stops, naive, max(naive)) > 1.5 * float(delta)


MIXED = tuple(
    ApproxDP(epsilon=epsilon, delta=delta)
    for epsilon, delta in (("0.5", 0), ("0.6", "0.001"), ("0.2", "0.02"))
)
LIMITS = (3, 2, 2)


def adaptive_value(epsilon: Fraction, admits: Callable[[Tally], bool]) -> float:
    """Return the value of the game of an adversary who picks each next step."""
    menu = []
    for place, cost in enumerate(MIXED):
        once = Tally(tuple(int(place == i) for i in range(len(MIXED))))
        lost, top = float(cost.delta), 1 / (1 + math.exp(-cost.epsilon))
        losses = {cost.epsilon: top, -cost.epsilon: 1 - top}
        shown = [((1 - lost) * p, loss, once) for loss, p in losses.items()]
        menu.append((once, [*shown, (lost, math.inf, once)]))
    stop = lambda _, loss: excess(float(epsilon), loss)
    return game(menu, admits, stop, 10, Tally((0,) * len(MIXED)))


def product(limits: tuple[int, ...], epsilon: Fraction) -> float:
    """Return the delta of a fixed sequence of these steps."""
    return float(optimal_delta(tuple(zip(MIXED, limits, strict=True)), epsilon))


@pytest.mark.parametrize("epsilon", ["0.3", "0.9", "1.4", "2"])
def test_order_and_stopping_of_a_sequence_are_free(epsilon: str) -> None:
    """An adversary who orders a sequence as it likes gains nothing over its product."""
    steps = [{"cost": c, "times": n} for c, n in zip(MIXED, LIMITS, strict=True)]
    rule = SequenceFilter(epsilon=5, delta="0.9", steps=steps, accountant="kov")
    reached = adaptive_value(Fraction(epsilon), rule.admits)
    assert reached == pytest.approx(product(LIMITS, Fraction(epsilon)), rel=1e-12)


def test_uncounted_crashes_are_caught() -> None:
    """Running a crashed step again without a spare exceeds the sequence's delta."""
    target, spared = Fraction("0.9"), (4, 2, 2)
    forgetful = adaptive_value(target, lambda t: t.fits_within(Tally(spared)))
    assert forgetful > product(LIMITS, target) * 1.05
    assert forgetful == pytest.approx(product(spared, target), rel=1e-12)
