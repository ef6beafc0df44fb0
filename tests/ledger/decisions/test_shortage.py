"""Shares of budgets that refusals name: of every filter, needed exceeds remaining."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from dpflow import guarded
from dpflow.accounting import make_filter
from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.noise import Gaussian, PoissonSampledGaussian
from dpflow.accounting.costs.notions import ApproxDP, PureDP
from dpflow.exceptions import BudgetRefused, UnsupportedCost
from dpflow.ledger.decisions.refusals import Shortage, describe_members
from tests.projects import POLICY, make_project

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
def test_a_refused_step_needs_more_than_remains(theorem):
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
            reasons = [*describe_members(rule, used, amount)]
            assert len(reasons) == len(rule.members)
            if rule.members:
                ways = ("ended", "cannot price this step", "needs")
                assert all(any(way in each for way in ways) for each in reasons)
                continue
            shortage = Shortage.measure(rule, used, amount)
            assert 0 <= shortage.remaining < shortage.needed
            assert shortage.remaining <= 1
    assert refused > 5


def test_advice_ends_at_ten_times_the_noise(tmp_path, monkeypatch):
    """Above it the refusal says what is missing."""
    make_project(tmp_path, monkeypatch)
    charge(PureDP(epsilon="0.9"))
    assert "times its noise it would still fit" in refusal(PureDP(epsilon="0.98"))
    text = refusal(PureDP(epsilon="1.5"))
    assert "It needs 1.5 times the budget, 10% remain. In its currency it needs" in text
    assert "Missing: 1.4 times the budget. Nothing was charged" in text


def test_a_union_says_what_remains_and_which_member_ended(tmp_path, monkeypatch):
    """In per cent, with a cause for each member."""
    policy = POLICY.replace("{epsilon: 1}", "{epsilon: 3, delta: 1e-6}")
    make_project(tmp_path, monkeypatch, policy.replace("basic", "auto"))
    step = ApproxDP(epsilon="0.5", delta="7e-8")
    charge(step)
    ended = (
        "Each of its members refuses it: residue ended, its budget is used up; rdp "
        "ended at an earlier step that it cannot price; zcdp ended, its budget is used "
        "up; basic "
    )
    assert f"{ended}needs 70% of its budget's delta, 30% remain." in refusal(step)
    noise = Gaussian(sensitivity=1, noise_multiplier=40)
    assert f"{ended}cannot price this step." in refusal(noise)


def charge(cost: Cost) -> None:
    """Charge a step."""
    guarded(dataset="shop", cost=cost, name="step", noise="own")(lambda: 1)()


def refusal(cost: Cost) -> str:
    """Return the words of the refusal of a step."""
    with pytest.raises(BudgetRefused) as caught:
        charge(cost)
    return caught.value.message


def test_the_fullest_of_the_gates_that_refuse_is_named(tmp_path, monkeypatch):
    """A share that is used up, or the dataset that others used up."""
    flows = "flows: {a: {epsilon: 0.5}, b: {epsilon: 0.9}}\n"
    make_project(tmp_path, monkeypatch, POLICY + flows)

    def ask(flow: str, epsilon: str) -> None:
        cost = PureDP(epsilon=epsilon)
        step = guarded(dataset="shop", cost=cost, name="step", flow=flow, noise="own")
        step(lambda: 1)()

    ask("a", "0.5")
    with pytest.raises(BudgetRefused, match="by the share of flow 'a' in dataset"):
        ask("a", "0.6")
    ask("b", "0.49")
    with pytest.raises(BudgetRefused, match="by the basic filter of dataset 'shop'"):
        ask("b", "0.6")
