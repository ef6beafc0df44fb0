"""Exact draws: the law of the code, by every path through its tosses."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from dpflow.noise.exact import choose, exponential_coin, pick
from tests.sizes import scaled
from tests.walks import law_of

#: Paths of a smaller probability are cut.
LEAST = 1e-15


class Lost(Exception):
    """A path that is too improbable to follow, or that tries again."""


def law(run):
    """Return the probability of each result of a run that tosses and picks."""

    def follow(walk):
        def take(chances):
            index = walk.take(chances)
            if walk.chance < LEAST:
                raise Lost
            return index

        toss = lambda chance: take([float(chance), 1 - float(chance)]) == 0
        try:
            return run(toss, lambda count: take([1 / count] * count))
        except Lost:
            return "lost"

    return law_of(follow)


@pytest.mark.parametrize("rate", ["0", "1/3", "1", "5/4", "3"])
def test_the_coin_shows_its_side_with_the_probability_of_its_rate(rate):
    """Summed over every path but the improbable."""
    chances = law(lambda toss, _: exponential_coin(Fraction(rate), toss))
    assert chances.get(True, 0) == pytest.approx(math.exp(-Fraction(rate)), abs=1e-11)


def test_a_choice_has_exponential_weights():
    """Of three rates, of which only the differences matter."""
    rates = [Fraction(7, 2), Fraction(5, 2), Fraction(4)]

    # The first try: what it keeps has the weights, whatever is tried again.
    def first_try(toss, pick):
        picks = []

        def pick_once(count):
            if picks:
                raise Lost
            picks.append(count)
            return pick(count)

        return choose(rates, toss=toss, pick=pick_once)

    kept = law(first_try)
    weights = [math.exp(-rate) for rate in rates]
    whole = sum(kept[index] for index in range(len(rates)))
    for index, weight in enumerate(weights):
        expected = weight / sum(weights)
        assert kept[index] / whole == pytest.approx(expected, abs=1e-10)


def test_drawn_choices_have_these_frequencies():
    """Draws of the system's randomness, within Hoeffding's bound at 1e-9."""
    runs = scaled(20_000, push=5_000)
    hits = sum(choose([Fraction(0), Fraction(1)]) == 0 for _ in range(runs))
    wanted = 1 / (1 + math.exp(-1))
    assert abs(hits / runs - wanted) < math.sqrt(math.log(2e9) / (2 * runs))


@pytest.mark.parametrize("count", [1, 2, 3, 256, 257])
def test_a_pick_is_in_range_and_reaches_both_ends(count):
    """Of 40 times as many picks as there are numbers, none misses by chance."""
    picks = {pick(count) for _ in range(40 * count)}
    assert min(picks) == 0
    assert max(picks) == count - 1
