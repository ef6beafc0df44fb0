"""The filter `sequence`: a fixed multiset of steps, composed optimally as a whole."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest

from dpflow.accounting import make_filter
from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.early_stopping import EarlyStopping
from dpflow.accounting.costs.noise import Gaussian, Laplace, PoissonSampledGaussian
from dpflow.accounting.costs.notions import ApproxDP, PureDP
from dpflow.accounting.fixed.optimal import fixed_epsilon
from dpflow.accounting.fixed.sequence import SequenceFilter
from dpflow.accounting.fixed.stops import composed_epsilon
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import InvalidCost, UnsupportedCost

TENTH, TWENTY = PureDP(epsilon="0.1"), Gaussian(sensitivity=1, sigma=20)
LAPLACE = Laplace(sensitivity=1, scale=10)
MILLIONTH = Fraction(1, 10**6)


def sequence(*steps: Any, epsilon: int = 3, **options: Any) -> SequenceFilter:
    """Return a sequence at (epsilon, 1e-6)."""
    return SequenceFilter(epsilon=epsilon, delta="1e-6", steps=steps, **options)


def times(cost: Cost, count: int, spares: int = 0) -> dict[str, Any]:
    """Return one line of a sequence."""
    return {"cost": cost, "times": count, "spares": spares}


@pytest.mark.parametrize(
    ("epsilon", "cost", "count"),
    [(1, TENTH, 10), (5, TENTH, 108), (1, TWENTY, 22), (5, TWENTY, 416)],
)
def test_a_sequence_reaches_the_optimum(epsilon: int, cost: Cost, count: int) -> None:
    """As many steps fit as optimal composition allows, and not one more."""
    rule = sequence(times(cost, count), epsilon=epsilon)
    assert rule.admits(Tally((count,)))
    assert not rule.admits(Tally((count + 1,)))
    with pytest.raises(InvalidCost, match="sequence needs epsilon"):
        sequence(times(cost, count + 1), epsilon=epsilon)


def test_mixed_sequences_beat_every_single_theorem() -> None:
    """Gaussians and Laplaces together are composed through their loss distributions."""
    rule = sequence(times(TWENTY, 80), times(LAPLACE, 9), epsilon=3)
    # dp-accounting brackets it by 2.39128 and 2.39167 on a grid of 1e-5.
    assert 2.39128 < rule.epsilons[0] < 2.39169
    separate = fixed_epsilon(((TWENTY, 80),), MILLIONTH) + Fraction("0.9")
    assert rule.epsilons[0] < separate


def test_sampled_gaussians_come_from_dp_accounting() -> None:
    """A sequence of 254 sampled steps fits (1, 1e-5), as dp-accounting says."""
    cost = PoissonSampledGaussian(sampling_rate="0.01", noise_multiplier=1)
    rule = SequenceFilter(epsilon=1, delta="1e-5", steps=[times(cost, 254)])
    assert 0.9995 < rule.epsilons[0] <= 1
    with pytest.raises(InvalidCost):
        SequenceFilter(epsilon=1, delta="1e-5", steps=[times(cost, 255)])


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


def test_a_step_that_is_not_in_the_sequence_is_refused() -> None:
    """Even a cheaper one, or one too many: it is fixed before its first charge."""
    rule = sequence(TENTH, TWENTY)
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
    with pytest.raises(ValueError, match="exceed"):
        rule.spent(Tally((11, 0)))


def test_stops_share_delta_as_told() -> None:
    """The parts of delta may differ, and sum to at most the budget's."""
    rule = sequence(times(TWENTY, 10), stops=(5,), deltas=["2e-7", "8e-7"])
    assert rule.epsilons[1] == fixed_epsilon(((TWENTY, 10),), Fraction("8e-7"))
    for deltas in (["1e-6"], ["5e-7", "6e-7"], "1e-6", [1, 1]):
        with pytest.raises(InvalidCost, match="delta"):
            sequence(times(TWENTY, 10), stops=(5,), deltas=deltas)


def test_stops_need_spares_of_their_own_steps_only() -> None:
    """A spare of a later step is no part of an earlier cell."""
    rule = sequence(times(TWENTY, 2, spares=1), times(TENTH, 2, spares=3), stops=(2,))
    assert rule.epsilons[0] == fixed_epsilon(((TWENTY, 3),), MILLIONTH / 2)
    assert rule.limit == Tally((3, 5))


def test_without_delta_a_sequence_is_a_sum() -> None:
    """At delta 0 the epsilons of pure steps add up exactly."""
    rule = SequenceFilter(epsilon=1, steps=[times(TENTH, 10)])
    assert rule.epsilons == (1,)
    with pytest.raises(InvalidCost):
        SequenceFilter(epsilon=1, steps=[times(TENTH, 11)])
    with pytest.raises(UnsupportedCost):
        SequenceFilter(epsilon=1, steps=[TWENTY])


@pytest.mark.parametrize(
    ("delta", "steps", "epsilon"),
    [
        ("1e-6", [(1, "1e-6", 1)], 1),
        ("0.28", [(1, "0.1", 1), (2, "0.2", 1)], 3),
        ("0.001999", [("0.1", "0.001", 2)], "0.2"),
        (Fraction(2, 10**35) - Fraction(1, 10**70), [("0.3", "1e-35", 2)], "0.6"),
    ],
)
@pytest.mark.parametrize("laplace", [0, 1])
def test_a_delta_that_is_used_up_exactly(
    delta: Any, steps: list[tuple[Any, str, int]], epsilon: Any, laplace: int
) -> None:
    """It admits the sum of the epsilons, with Laplace noise too, and no less delta."""
    lines = [times(ApproxDP(epsilon=e, delta=d), count) for e, d, count in steps]
    lines += [times(LAPLACE, 1)] * laplace
    budget = Fraction(epsilon) + laplace * Fraction("0.1")
    for more in (Fraction(0), Fraction(1, 10**400)):
        options = {"delta": Fraction(delta) + more, "steps": lines}
        assert SequenceFilter(epsilon=budget, **options).epsilons == (budget,)
        with pytest.raises(InvalidCost, match="sequence needs epsilon"):
            SequenceFilter(epsilon=budget * Fraction(999, 1000), **options)
    less = Fraction(delta) - Fraction(1, 10**400)
    with pytest.raises(InvalidCost, match="does not cover"):
        SequenceFilter(epsilon=budget, delta=less, steps=lines)


def test_the_deltas_of_steps_come_to_less_than_their_sum() -> None:
    """The refusal prints 1 - 0.9 x 0.8; a Gaussian beside them needs more than that."""
    steps = [ApproxDP(epsilon=1, delta=d) for d in ("0.1", "0.2")]
    with pytest.raises(InvalidCost, match=r"deltas come to 0\.28, .* all 1 - delta\."):
        SequenceFilter(epsilon=9, delta="0.2799", steps=steps)
    with pytest.raises(InvalidCost, match="Gaussian noise needs more"):
        SequenceFilter(epsilon=9, delta="0.28", steps=[*steps, TWENTY])


def test_iterated_steps_are_sequencened_whole() -> None:
    """An early-stopping step takes all its sub-steps and gives none back."""
    cost = EarlyStopping(TWENTY, stops=(5, 10))
    rule = sequence(cost, TWENTY)
    assert rule.epsilons[0] == fixed_epsilon(((TWENTY, 11),), MILLIONTH)
    assert rule.price_realised(cost, 5) == rule.price(cost) == Tally((1, 0))


@pytest.mark.parametrize("accountant", ["basic", "kov", "pld", "rdp"])
def test_accountants_of_a_sequence(accountant: str) -> None:
    """Every accountant composes the sequence as `composed_epsilon` does."""
    rule = sequence(times(TENTH, 20), epsilon=4, accountant=accountant)
    assert rule.epsilons == (composed_epsilon(((TENTH, 20),), MILLIONTH, accountant),)


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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"steps": []}, "1 to"),
        ({"steps": "PureDP"}, "list of costs"),
        ({"steps": [3]}, "cost or a mapping"),
        ({"steps": [{"cost": TENTH, "time": 3}]}, "takes cost, times"),
        ({"steps": [{"cost": TENTH, "times": 0}]}, "times"),
        ({"steps": [{"cost": TENTH, "spares": 1.5}]}, "spares"),
        ({"steps": [{"mechanism": "Unheard"}]}, "unknown mechanism"),
        ({"steps": [times(TENTH, 9)], "stops": [3, 2]}, "rising"),
        ({"steps": [times(TENTH, 9)], "stops": [10]}, "a stop"),
        ({"steps": [times(TENTH, 9)], "stops": "3"}, "list of whole"),
        ({"steps": [TENTH], "accountant": "optimal"}, "accountant must be"),
        ({"steps": [times(TENTH, 10**6), TWENTY]}, "at most 1000000 steps"),
        ({"steps": [ApproxDP(epsilon=1, delta="0.1")]}, "delta"),
    ],
)
def test_wrong_sequences_are_refused(options: dict[str, Any], words: str) -> None:
    """Wrong lines, stops and options raise InvalidCost and say what is wrong."""
    with pytest.raises(InvalidCost, match=words):
        SequenceFilter(epsilon=3, delta="1e-6", **options)


def test_a_delta_too_small_for_its_stops_is_refused() -> None:
    """An account could not be opened again whose parts of delta cannot be read."""
    with pytest.raises(InvalidCost, match="delta of a stop"):
        SequenceFilter(epsilon=3, delta="2e-35", steps=[times(TENTH, 9)], stops=[3, 6])
    rule = SequenceFilter(epsilon=3, delta="2e-35", steps=[times(TENTH, 9)], stops=[3])
    assert rule == make_filter(**json.loads(json.dumps(rule.parameters())))
