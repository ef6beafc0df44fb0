"""The filter `sequence`: a fixed multiset of steps, composed optimally as a whole."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from dpflow import ApproxDP, Cost, EarlyStopping, Gaussian, PureDP
from dpflow.accounting import make_filter
from dpflow.accounting.fixed.optimal import fixed_epsilon
from dpflow.accounting.fixed.sequence import SequenceFilter
from dpflow.accounting.fixed.stops import composed_epsilon
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import InvalidCost, UnsupportedCost

TENTH, TWENTY = PureDP(epsilon="0.1"), Gaussian(sensitivity=1, sigma=20)
MILLIONTH = Fraction(1, 10**6)


def sequence(*steps: Any, epsilon: int = 3, **options: Any) -> SequenceFilter:
    """Return a sequence at (epsilon, 1e-6)."""
    return SequenceFilter(epsilon=epsilon, delta="1e-6", steps=steps, **options)


def times(cost: Cost, count: int, spares: int = 0) -> dict[str, Any]:
    """Return one line of a sequence."""
    return {"cost": cost, "times": count, "spares": spares}


def test_a_sequence_reaches_the_optimum() -> None:
    """As many steps fit as optimal composition allows, and not one more."""
    cases = (1, TENTH, 10), (5, TENTH, 108), (1, TWENTY, 22), (5, TWENTY, 416)
    for epsilon, cost, count in cases:
        rule = sequence(times(cost, count), epsilon=epsilon)
        assert rule.admits(Tally((count,)))
        assert not rule.admits(Tally((count + 1,)))
        with pytest.raises(InvalidCost, match="sequence needs epsilon"):
            sequence(times(cost, count + 1), epsilon=epsilon)


def test_steps_are_counted_by_kind() -> None:
    """The tally holds one counter per distinct cost, in the order of the sequence."""
    rule = sequence(TENTH, TWENTY, TENTH)
    assert rule.price(TENTH) == Tally((1, 0))
    assert rule.price(TWENTY) == Tally((0, 1))
    assert rule.limit == Tally((2, 1))
    assert rule.named(Tally((2, 1))) == {
        "PureDP(epsilon=0.1)": "2",
        "Gaussian(sensitivity=1, sigma=20)": "1",
    }
    assert rule.used_fraction(Tally((1, 1))) == pytest.approx(2 / 3)
    assert rule.used_fraction(Tally((3, 0))) == 1.5
    # Another step has no price, not even a cheaper one.
    with pytest.raises(UnsupportedCost, match="not in the sequence"):
        rule.price(PureDP(epsilon="0.05"))


def test_a_crash_needs_a_spare() -> None:
    """A forfeited execution stays counted; running it again needs a spare."""
    without, with_spare = sequence(times(TENTH, 2)), sequence(times(TENTH, 2, spares=1))
    crashed = Tally((1,))
    assert not without.admits(crashed + Tally((2,)))
    assert with_spare.admits(crashed + Tally((2,)))
    assert not with_spare.admits(crashed + Tally((3,)))
    assert with_spare.epsilons[0] == composed_epsilon(((TENTH, 3),), MILLIONTH, "pld")


def test_stops_say_what_was_spent() -> None:
    """Ending early costs the epsilon of the smallest prefix that holds what ran."""
    rule = sequence(times(TWENTY, 10), times(TENTH, 5), stops=(4, 10))
    assert rule.stops == (4, 10, 15)
    assert rule.deltas == (MILLIONTH / 3,) * 3
    first, second, whole = rule.epsilons
    assert first == fixed_epsilon(((TWENTY, 4),), MILLIONTH / 3)
    assert second == fixed_epsilon(((TWENTY, 10),), MILLIONTH / 3)
    assert whole == fixed_epsilon(((TWENTY, 10), (TENTH, 5)), MILLIONTH / 3)
    assert rule.spent(rule.zero()) == 0
    assert rule.spent(Tally((4, 0))) == first
    assert rule.spent(Tally((5, 0))) == second
    assert rule.spent(Tally((1, 1))) == whole
    assert rule.spent(Tally((11, 0))) is None


def test_descriptions_from_yaml() -> None:
    """Steps may be written as a policy writes them, with plain numbers."""
    written = [
        {"mechanism": "Gaussian", "sensitivity": 1, "noise_multiplier": 20.0},
        {"cost": {"mechanism": "PureDP", "epsilon": 0.1}, "times": 3, "spares": 1},
        {
            "mechanism": "EarlyStopping",
            "step": {"mechanism": "PureDP", "epsilon": 0.01},
            "stops": [2, 4],
        },
    ]
    rule = make_filter("sequence", epsilon=3, delta=1e-6, steps=written)
    iterated = EarlyStopping(PureDP(epsilon="0.01"), stops=(2, 4))
    assert rule == sequence(TWENTY, times(TENTH, 3, spares=1), iterated)


def test_wrong_sequences_are_refused() -> None:
    """Wrong lines, stops and options raise InvalidCost and say what is wrong."""
    nine = [times(TENTH, 9)]
    for steps, words, options in (
        ([], "1 to", {}),
        ("PureDP", "list of costs", {}),
        ([3], "cost or a mapping", {}),
        ([{"cost": TENTH, "time": 3}], "takes cost, times", {}),
        ([{"cost": TENTH, "times": 0}], "times", {}),
        ([{"cost": TENTH, "spares": 1.5}], "spares", {}),
        ([{"mechanism": "Unheard"}], "unknown mechanism", {}),
        (nine, "rising", {"stops": [3, 2]}),
        (nine, "a stop", {"stops": [10]}),
        (nine, "list of whole", {"stops": "3"}),
        ([TENTH], "accountant must be", {"accountant": "optimal"}),
        ([times(TENTH, 10**6), TWENTY], "at most 1000000 steps", {}),
        ([ApproxDP(epsilon=1, delta="0.1")], "delta", {}),
    ):
        with pytest.raises(InvalidCost, match=words):
            SequenceFilter(epsilon=3, delta="1e-6", steps=steps, **options)
