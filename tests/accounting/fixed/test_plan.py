"""The filter `plan`: a fixed multiset of steps, composed optimally as a whole."""

from __future__ import annotations

import itertools
import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow.accounting import make_filter
from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.early_stopping import EarlyStopping
from dpflow.accounting.costs.noise import Gaussian, Laplace, PoissonSampledGaussian
from dpflow.accounting.costs.notions import ApproxDP, PureDP
from dpflow.accounting.fixed.optimal import fixed_epsilon
from dpflow.accounting.fixed.plan import PlanFilter
from dpflow.accounting.fixed.stops import composed_epsilon
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import InvalidCost, UnsupportedCost
from tests.sizes import scaled

TENTH, TWENTY = PureDP(epsilon="0.1"), Gaussian(sensitivity=1, sigma=20)
LAPLACE = Laplace(sensitivity=1, scale=10)
MILLIONTH = Fraction(1, 10**6)


def plan(*steps: Any, epsilon: int = 3, **options: Any) -> PlanFilter:
    """Return a plan at (epsilon, 1e-6)."""
    return PlanFilter(epsilon=epsilon, delta="1e-6", steps=steps, **options)


def times(cost: Cost, count: int, spares: int = 0) -> dict[str, Any]:
    """Return one line of a plan."""
    return {"cost": cost, "times": count, "spares": spares}


@pytest.mark.parametrize(
    ("epsilon", "cost", "count"),
    [(1, TENTH, 10), (5, TENTH, 108), (1, TWENTY, 22), (5, TWENTY, 416)],
)
def test_a_plan_reaches_the_optimum(epsilon: int, cost: Cost, count: int) -> None:
    """As many steps fit as optimal composition allows, and not one more."""
    rule = plan(times(cost, count), epsilon=epsilon)
    assert rule.admits(Tally((count,)))
    assert not rule.admits(Tally((count + 1,)))
    with pytest.raises(InvalidCost, match="plan needs epsilon"):
        plan(times(cost, count + 1), epsilon=epsilon)


def test_mixed_plans_beat_every_single_theorem() -> None:
    """Gaussians and Laplaces together are composed through their loss distributions."""
    rule = plan(times(TWENTY, 80), times(LAPLACE, 9), epsilon=3)
    # dp-accounting brackets it by 2.39128 and 2.39167 on a grid of 1e-5.
    assert 2.39128 < rule.epsilons[0] < 2.39169
    separate = fixed_epsilon(((TWENTY, 80),), MILLIONTH) + Fraction("0.9")
    assert rule.epsilons[0] < separate


def test_sampled_gaussians_come_from_dp_accounting() -> None:
    """A plan of 254 sampled steps fits (1, 1e-5), as dp-accounting says."""
    cost = PoissonSampledGaussian(sampling_rate="0.01", noise_multiplier=1)
    rule = PlanFilter(epsilon=1, delta="1e-5", steps=[times(cost, 254)])
    assert 0.9995 < rule.epsilons[0] <= 1
    with pytest.raises(InvalidCost):
        PlanFilter(epsilon=1, delta="1e-5", steps=[times(cost, 255)])


def test_steps_are_counted_by_kind() -> None:
    """The tally holds one counter per distinct cost, in the order of the plan."""
    rule = plan(TENTH, TWENTY, TENTH)
    assert rule.price(TENTH) == Tally((1, 0))
    assert rule.price(TWENTY) == Tally((0, 1))
    assert rule.limit == Tally((2, 1))
    assert rule.named(Tally((2, 1))) == {
        "PureDP(epsilon=0.1)": "2",
        "Gaussian(sensitivity=1, sigma=20)": "1",
    }
    assert rule.used_fraction(Tally((1, 1))) == pytest.approx(2 / 3)
    assert rule.used_fraction(Tally((3, 0))) == 1.5


def test_a_step_that_is_not_in_the_plan_is_refused() -> None:
    """Even a cheaper one: a plan is fixed before its first charge."""
    rule = plan(TENTH, TWENTY)
    with pytest.raises(UnsupportedCost, match="not in the plan"):
        rule.price(PureDP(epsilon="0.05"))


@settings(max_examples=scaled(12), deadline=None)
@given(st.permutations([0, 0, 0, 1, 1, 2]), st.data())
def test_charges_are_additive(order: list[int], data: st.DataObject) -> None:
    """Reserved, settled and voided in any order, the counts are what happened."""
    rule = plan(times(TENTH, 3), times(TWENTY, 2), LAPLACE)
    held, settled = rule.zero(), rule.zero()
    for kind in order:
        price = rule.price(rule.kinds[kind])
        assert rule.admits(settled + held + price)
        held += price
        fate = data.draw(st.sampled_from(["settle", "void and again", "forfeit"]))
        if fate == "void and again":
            held -= price
            assert rule.admits(settled + held + price)
            held += price
        if fate != "forfeit":
            held -= price
            settled += rule.price_realised(rule.kinds[kind], 1)
    assert settled + held == rule.limit
    for cost in rule.kinds:
        assert not rule.admits(settled + held + rule.price(cost))


def test_a_crash_needs_a_spare() -> None:
    """A forfeited execution stays counted; running it again needs a spare."""
    without, with_spare = plan(times(TENTH, 2)), plan(times(TENTH, 2, spares=1))
    crashed = Tally((1,))
    assert not without.admits(crashed + Tally((2,)))
    assert with_spare.admits(crashed + Tally((2,)))
    assert not with_spare.admits(crashed + Tally((3,)))
    assert with_spare.epsilons[0] == composed_epsilon(((TENTH, 3),), MILLIONTH, "pld")


def test_the_planned_order_can_be_kept() -> None:
    """With `order: planned`, a step that is not next is refused."""
    rule = plan(TENTH, TWENTY, TENTH, order="planned")
    first, second = rule.price(TENTH), rule.price(TWENTY)
    assert not rule.admits(second)
    assert rule.admits(first)
    assert not rule.admits(first + first)
    assert rule.admits(first + second)
    assert rule.admits(first + second + first)
    assert not rule.admits(first + second + first + first)
    assert plan(TENTH, TWENTY, TENTH).admits(first + first)


def test_spares_fit_into_the_planned_order() -> None:
    """A crashed step may be repeated in its place, not before it."""
    rule = plan(times(TENTH, 2), times(TWENTY, 1, spares=1), order="planned")
    admitted = {
        counts
        for counts in itertools.product(range(4), range(4))
        if rule.admits(Tally(counts))
    }
    # A forfeit cannot be told from a step that is early: a spare is what it may use.
    assert admitted == {(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (2, 2)}


@settings(max_examples=scaled(8), deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 3), st.integers(0, 1)),
        min_size=1,
        max_size=4,
    ),
    st.tuples(*[st.integers(0, 8)] * 3),
)
def test_planned_order_by_search(
    lines: list[tuple[int, int, int]], counts: tuple[int, ...]
) -> None:
    """A tally is in order if it is some prefix of the plan plus some spares."""
    costs = [TENTH, TWENTY, PureDP(epsilon="0.05")]
    rule = plan(
        *(times(costs[kind], n, spares) for kind, n, spares in lines), order="planned"
    )
    counts = counts[: len(rule.kinds)]
    sequence = [rule.kinds.index(costs[k]) for k, n, _ in lines for _ in range(n)]
    spares = [sum(s for k, _, s in lines if costs[k] == cost) for cost in rule.kinds]
    fits = False
    for end in range(len(sequence) + 1):
        prefix = [sequence[:end].count(k) for k in range(len(rule.kinds))]
        fits = fits or all(
            p <= n <= p + s for p, n, s in zip(prefix, counts, spares, strict=True)
        )
    assert fits == rule.admits(Tally(counts))


def test_stops_say_what_was_spent() -> None:
    """Ending early costs the epsilon of the smallest prefix that holds what ran."""
    rule = plan(times(TWENTY, 10), times(TENTH, 5), stops=(4, 10))
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
    rule = plan(times(TWENTY, 10), stops=(5,), deltas=["2e-7", "8e-7"])
    assert rule.epsilons[1] == fixed_epsilon(((TWENTY, 10),), Fraction("8e-7"))
    for deltas in (["1e-6"], ["5e-7", "6e-7"], "1e-6", [1, 1]):
        with pytest.raises(InvalidCost, match="delta"):
            plan(times(TWENTY, 10), stops=(5,), deltas=deltas)


def test_stops_need_spares_of_their_own_steps_only() -> None:
    """A spare of a later step is no part of an earlier cell."""
    rule = plan(times(TWENTY, 2, spares=1), times(TENTH, 2, spares=3), stops=(2,))
    assert rule.epsilons[0] == fixed_epsilon(((TWENTY, 3),), MILLIONTH / 2)
    assert rule.limit == Tally((3, 5))


def test_without_delta_a_plan_is_a_sum() -> None:
    """At delta 0 the epsilons of pure steps add up exactly."""
    rule = PlanFilter(epsilon=1, steps=[times(TENTH, 10)])
    assert rule.epsilons == (1,)
    with pytest.raises(InvalidCost):
        PlanFilter(epsilon=1, steps=[times(TENTH, 11)])
    with pytest.raises(UnsupportedCost):
        PlanFilter(epsilon=1, steps=[TWENTY])


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
        assert PlanFilter(epsilon=budget, **options).epsilons == (budget,)
        with pytest.raises(InvalidCost, match="plan needs epsilon"):
            PlanFilter(epsilon=budget * Fraction(999, 1000), **options)
    less = Fraction(delta) - Fraction(1, 10**400)
    with pytest.raises(InvalidCost, match="does not cover"):
        PlanFilter(epsilon=budget, delta=less, steps=lines)


def test_the_deltas_of_steps_come_to_less_than_their_sum() -> None:
    """The refusal prints 1 - 0.9 x 0.8; a Gaussian beside them needs more than that."""
    steps = [ApproxDP(epsilon=1, delta=d) for d in ("0.1", "0.2")]
    with pytest.raises(InvalidCost, match=r"deltas come to 0\.28, .* all 1 - delta\."):
        PlanFilter(epsilon=9, delta="0.2799", steps=steps)
    with pytest.raises(InvalidCost, match="Gaussian noise needs more"):
        PlanFilter(epsilon=9, delta="0.28", steps=[*steps, TWENTY])


def test_iterated_steps_are_planned_whole() -> None:
    """An early-stopping step takes all its sub-steps and gives none back."""
    cost = EarlyStopping(TWENTY, stops=(5, 10))
    rule = plan(cost, TWENTY)
    assert rule.epsilons[0] == fixed_epsilon(((TWENTY, 11),), MILLIONTH)
    assert rule.price_realised(cost, 5) == rule.price(cost) == Tally((1, 0))


@pytest.mark.parametrize("accountant", ["basic", "kov", "pld", "renyi"])
def test_accountants_of_a_plan(accountant: str) -> None:
    """Every accountant composes the plan as `composed_epsilon` does."""
    rule = plan(times(TENTH, 20), epsilon=4, accountant=accountant)
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
    rule = make_filter("plan", epsilon=3, delta=1e-6, steps=written)
    iterated = EarlyStopping(PureDP(epsilon="0.01"), stops=(2, 4))
    assert rule == plan(TWENTY, times(TENTH, 3, spares=1), iterated)


@pytest.mark.parametrize(
    "rule",
    [
        plan(TENTH),
        plan(times(TWENTY, 10, spares=2), TENTH, stops=(3, 10), order="planned"),
        plan(ApproxDP(epsilon="0.1", delta="1e-9"), LAPLACE, accountant="kov"),
    ],
    ids=lambda rule: rule.order,
)
def test_parameters_rebuild_the_plan(rule: PlanFilter) -> None:
    """What a policy pins makes an equal plan, stops and shares included."""
    again = make_filter(**json.loads(json.dumps(rule.parameters())))
    assert isinstance(again, PlanFilter)
    assert rule == again
    assert rule.epsilons == again.epsilons
    assert rule.limit == again.limit


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
        ({"steps": [TENTH], "order": "any"}, "order must be"),
        ({"steps": [times(TENTH, 10**6), TWENTY]}, "at most 1000000 steps"),
        ({"steps": [ApproxDP(epsilon=1, delta="0.1")]}, "delta"),
    ],
)
def test_wrong_plans_are_refused(options: dict[str, Any], words: str) -> None:
    """Wrong lines, stops and options raise InvalidCost and say what is wrong."""
    with pytest.raises(InvalidCost, match=words):
        PlanFilter(epsilon=3, delta="1e-6", **options)


def test_a_delta_too_small_for_its_stops_is_refused() -> None:
    """An account could not be opened again whose parts of delta cannot be read."""
    with pytest.raises(InvalidCost, match="delta of a stop"):
        PlanFilter(epsilon=3, delta="2e-35", steps=[times(TENTH, 9)], stops=[3, 6])
    rule = PlanFilter(epsilon=3, delta="2e-35", steps=[times(TENTH, 9)], stops=[3])
    assert rule == make_filter(**json.loads(json.dumps(rule.parameters())))
