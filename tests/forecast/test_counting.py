"""Counting the steps that fit agrees with trying them one by one."""

from __future__ import annotations

from fractions import Fraction

import pytest

from dpflow.accounting.costs.noise import Gaussian
from dpflow.accounting.costs.notions import ApproxDP, PureDP
from dpflow.accounting.searches import NO_END, least_noise, most_steps
from dpflow.forecast.counting import reach_of_shares, steps_that_fit
from dpflow.ledger.decision.gates import announced_gates
from dpflow.policy import Policy, parse_policy
from tests.cli.support import ADULT, CDNOW

pytestmark = pytest.mark.quick

GATES = {gate.kind: gate for gate in announced_gates(parse_policy(CDNOW).pinned())}
(BASIC,) = announced_gates(parse_policy(ADULT).pinned())


def test_decimals_are_counted_exactly() -> None:
    """A billion steps take no longer to count than ten."""
    for epsilon, steps in (("0.1", 10), ("0.3", 3), ("1.1", 0), ("1e-9", 10**9)):
        assert steps_that_fit(BASIC, PureDP(epsilon=epsilon)) == (True, steps)


def test_the_largest_count_is_found():
    """By doubling and halving, whatever the first number is."""
    for limit in (0, 1, 2, 3, 7, 8, 9, 1000, 123_456_789):
        for start in (1, 5000):
            assert most_steps(lambda n, most=limit: n <= most, start) == limit


def test_the_least_noise_may_be_the_most():
    """The largest one is tried before the search gives up."""
    limits = {"low": 1, "high": 2, "most": 10, "close": Fraction(101, 100)}
    assert 9 <= least_noise(lambda noise: noise >= 9, **limits) <= Fraction(91, 10)
    assert least_noise(lambda noise: noise > 10, **limits) is None


def test_a_gate_that_never_refuses_has_no_end():
    """The search is bounded; a gate without a price is not counted as free."""
    numbers = []
    assert most_steps(lambda n: numbers.append(n) or True) is None
    assert len(numbers) < 50
    assert max(numbers) > NO_END / 2
    for cost, supported in (
        (Gaussian(sensitivity=1, noise_multiplier=10**8), True),
        (ApproxDP(epsilon="0.1", delta="1e-9"), False),
    ):
        assert steps_that_fit(GATES["dataset"], cost) == (supported, None)


SHARES = [
    ("basic", "0", ["1", "1", "1"], 1.0),
    ("basic", "0", ["2", "2.5"], 1.5),
    ("gdp", "1e-6", ["2.5", "0.5"], 0.7559),
    ("auto", "1e-6", ["2.5", "0.5"], None),
    ("basic", "0", [], None),
]


def test_thresholds_of_shares_add_up():
    """Epsilons do under the sum rule; gdp has mu squared; auto has no one threshold."""
    for theorem, delta, shares, part in SHARES:
        flows = {f"f{n}": {"epsilon": e, "delta": delta} for n, e in enumerate(shares)}
        policy = Policy(
            dataset="d",
            unit="person",
            relation="add-or-remove",
            budget={"epsilon": 3, "delta": delta},
            filter=theorem,
            flows={**flows, "none": {}},
        )
        assert reach_of_shares(policy.pinned()) == pytest.approx(part, abs=1e-3)
