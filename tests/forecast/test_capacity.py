"""Counting the steps that fit agrees with trying them one by one."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.noise import Gaussian
from dpflow.accounting.costs.notions import ApproxDP, PureDP
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import UnsupportedCost
from dpflow.forecast.capacity import is_priced, steps_that_fit
from dpflow.ledger.decision.announced import announced_gates
from dpflow.ledger.decision.gates import Gate
from dpflow.policy import parse_policy
from dpflow.rounding import UNITS
from tests.cli.support import ADULT, CDNOW

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
    assert one_by_one(GATES[kind], cost) == steps_that_fit(GATES[kind], cost)


@pytest.mark.parametrize(
    ("epsilon", "steps"),
    [("0.1", 10), ("0.3", 3), ("1", 1), ("1.1", 0), ("1e-9", 10**9)],
)
def test_decimals_are_counted_exactly(epsilon: str, steps: int) -> None:
    """A billion steps take no longer to count than ten."""
    assert steps == steps_that_fit(BASIC, PureDP(epsilon=epsilon))


def test_too_many_to_count_have_no_end() -> None:
    """The search is bounded."""
    gate = GATES["dataset"]
    assert steps_that_fit(gate, Gaussian(sensitivity=1, noise_multiplier=10**8)) is None


def test_a_gate_without_a_price_says_so() -> None:
    """It is never counted as if the step were free."""
    cost = ApproxDP(epsilon="0.1", delta="1e-9")
    gate = GATES["dataset"]
    assert not is_priced(gate, cost)
    with pytest.raises(UnsupportedCost):
        steps_that_fit(gate, cost)


def test_a_charged_gate_has_room_for_fewer() -> None:
    """What fits is counted from where the gate stands."""
    half = Tally((UNITS // 2, 0))
    charged = BASIC._replace(used=half)
    assert steps_that_fit(charged, PureDP(epsilon="0.1")) == 5
