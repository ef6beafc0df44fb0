"""Counting the steps that fit agrees with trying them one by one."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.noise import Gaussian
from dpflow.accounting.costs.notions import ApproxDP, PureDP
from dpflow.accounting.searches import NO_END, least_noise, most_steps
from dpflow.forecast.counting import reach_of_shares, steps_that_fit
from dpflow.ledger.decision.gates import Gate, announced_gates
from dpflow.policy import parse_policy
from tests.cli.support import ADULT, CDNOW

pytestmark = pytest.mark.quick

GATES = {gate.kind: gate for gate in announced_gates(parse_policy(CDNOW).pinned())}
(BASIC,) = announced_gates(parse_policy(ADULT).pinned())


def one_by_one(gate: Gate, cost: Cost) -> int:
    """Count by adding charge to charge."""
    price, tally, steps = gate.price(cost), gate.rule.zero(), 0
    while gate.admits(tally + price):
        tally, steps = tally + price, steps + 1
    return steps


@given(
    kind=st.sampled_from(sorted(GATES)),
    noise=st.fractions(min_value=1, max_value=30, max_denominator=100),
)
def test_the_count_is_what_trying_gives(kind: str, noise: Fraction) -> None:
    """For every kind of gate."""
    cost = Gaussian(sensitivity=1, noise_multiplier=noise)
    count = one_by_one(GATES[kind], cost)
    assert steps_that_fit(GATES[kind], cost) == (True, count)


@pytest.mark.parametrize(
    ("epsilon", "steps"),
    [("0.1", 10), ("0.3", 3), ("1", 1), ("1.1", 0), ("1e-9", 10**9)],
)
def test_decimals_are_counted_exactly(epsilon: str, steps: int) -> None:
    """A billion steps take no longer to count than ten."""
    assert steps_that_fit(BASIC, PureDP(epsilon=epsilon)) == (True, steps)


@pytest.mark.parametrize("start", [1, 5000])
@pytest.mark.parametrize("limit", [0, 1, 2, 3, 7, 8, 9, 1000, 123_456_789])
def test_the_largest_count_is_found(limit, start):
    """By doubling and halving, whatever the first number is."""
    assert most_steps(lambda n: n <= limit, start) == limit


def test_the_least_noise_may_be_the_most():
    """The largest one is tried before the search gives up."""
    limits = {"low": 1, "high": 2, "most": 10, "close": Fraction(101, 100)}
    assert 9 <= least_noise(lambda noise: noise >= 9, **limits) <= Fraction(91, 10)
    assert least_noise(lambda noise: noise > 10, **limits) is None


def test_a_gate_that_never_refuses_has_no_end():
    """The search is bounded."""
    numbers = []
    assert most_steps(lambda n: numbers.append(n) or True) is None
    assert len(numbers) < 50
    assert max(numbers) > NO_END / 2
    cost = Gaussian(sensitivity=1, noise_multiplier=10**8)
    assert steps_that_fit(GATES["dataset"], cost) == (True, None)


def test_a_gate_without_a_price_says_so() -> None:
    """It is never counted as if the step were free."""
    cost = ApproxDP(epsilon="0.1", delta="1e-9")
    assert steps_that_fit(GATES["dataset"], cost) == (False, None)


@pytest.mark.parametrize(
    ("theorem", "delta", "shares", "part"),
    [
        ("basic", "0", ["1", "1", "1"], 1.0),
        ("basic", "0", ["2", "2.5"], 1.5),
        ("gdp", "1e-6", ["2.5", "0.5"], 0.7559),
        ("auto", "1e-6", ["2.5", "0.5"], None),
        ("basic", "0", [], None),
    ],
)
def test_thresholds_of_shares_add_up(theorem, delta, shares, part):
    """Epsilons do under the sum rule; gdp has mu squared; auto has no one threshold."""
    flows = "".join(
        f"  f{n}: {{epsilon: {share}, delta: {delta}}}\n"
        for n, share in enumerate(shares)
    )
    budget = f"budget: {{epsilon: 3, delta: {delta}}}\nfilter: {theorem}\n"
    text = f"dataset: d\nunit: person\nrelation: add-or-remove\n{budget}"
    pinned = parse_policy(f"{text}flows:\n{flows}  none: {{}}\n").pinned()
    assert reach_of_shares(pinned) == pytest.approx(part, abs=1e-3)
