"""Shares of budgets that refusals name: of every filter, needed exceeds remaining."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from dpflow.accounting import make_filter
from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.noise import Gaussian, PoissonSampledGaussian
from dpflow.accounting.costs.notions import ApproxDP, PureDP
from dpflow.exceptions import UnsupportedCost
from dpflow.ledger.decisions.shortage import describe_members, measure_shortage

pytestmark = pytest.mark.quick

FILTERS = ("auto", "gdp", "residue", "rdp", "zcdp", "basic", "rogers", "whitehouse")


def draw_cost(draw: random.Random) -> Cost:
    """Return a step of any kind and size."""
    size = draw.choice(["0.01", "0.3", "2", "50"])
    noise = draw.choice([1, 5, 40])
    return draw.choice(
        [
            PureDP(epsilon=size),
            ApproxDP(epsilon=size, delta=draw.choice(["1e-9", "7e-8", "1e-3"])),
            Gaussian(sensitivity=1, noise_multiplier=noise),
            PoissonSampledGaussian(noise_multiplier=noise, sampling_rate="0.01"),
        ]
    )


@pytest.mark.parametrize("theorem", FILTERS)
def test_a_refused_step_needs_more_than_remains(theorem: str) -> None:
    """Needed and remaining shares are of one component, and never negative."""
    draw, refused = random.Random(7), 0
    for _ in range(40):
        rule = make_filter(theorem, epsilon=Fraction(2), delta=Fraction("1e-6"))
        used = rule.zero()
        for _ in range(30):
            try:
                amount = rule.price(draw_cost(draw), used)
            except UnsupportedCost:
                continue
            if rule.admits(used + amount):
                used += amount
                continue
            refused += 1
            shortage = measure_shortage(rule, used, amount)
            reasons = [*describe_members(rule, used, amount)]
            assert len(reasons) == len(rule.members)
            if shortage is None:
                assert not any("needs" in reason for reason in reasons)
                continue
            assert 0 <= shortage.remaining < shortage.needed
            assert shortage.remaining <= 1
    assert refused > 5
