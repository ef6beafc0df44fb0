"""A step passes the gates of all its accounts or none; a refusal says which and why."""

from __future__ import annotations

import random
import re
from fractions import Fraction

import pytest

from dpflow import ApproxDP, Gaussian, PoissonSampledGaussian, PureDP
from dpflow.accounting import make_filter
from dpflow.accounting.costs.base import Cost
from dpflow.accounting.rules.rule import Odometer
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import UnsupportedCost
from dpflow.ledger.decisions.gates import preview_gates
from dpflow.ledger.decisions.refusals import Shortage, amount_text, describe_members
from dpflow.ledger.views.accounts import standing_gates
from tests.ledger.support import (
    audit,
    body,
    granted,
    make_policy,
    read,
    refused,
    sums,
)
from tests.sizes import scaled

pytestmark = pytest.mark.quick


# Refusals


def test_used_amounts_round_up_and_remaining_ones_down():
    """A refusal never promises what is not there."""
    texts = [amount_text("epsilon", "0.123456789", up=up) for up in (True, False)]
    assert texts == ["0.1235", "0.1234"]


def test_a_refusal_is_journaled_and_costs_nothing(ledger, path):
    """With the request, the rest and a cost that fits."""
    granted(ledger, "0.75")
    error = refused(ledger, "0.5", step="big", flow="f", flow_run="r")
    assert (error.asked["epsilon"], error.left["epsilon"]) == ("0.5", "0.25")
    assert (error.dataset, error.gate, error.theorem) == ("a", "dataset", "basic")
    assert (error.step, error.flow, error.flow_run) == ("big", "f", "r")
    assert error.cost == {"mechanism": "PureDP", "epsilon": "0.5"}
    assert sums(path) == (0, Fraction(3, 4))
    said = body(path, "refuse")
    facts = (said["asked"], said["left"], said["fits"], said["message"])
    assert (error.asked, error.left, error.fits, error.message) == facts
    names = said["refusal"], said["step"], said["flow_run"]
    assert names == ("BudgetRefused", "big", "r")
    assert read(path, "SELECT id, dataset, refusals FROM run") == [("r", "a", 1)]
    audit(path)


def test_what_would_fit_fits(ledger):
    """The factor of noise that a refusal names is admitted, and not far too much."""
    granted(ledger, "0.7")
    error = refused(ledger, "0.5")
    factor = Fraction(error.fits.split()[1])
    assert Fraction(5, 3) <= factor <= Fraction(17, 10)
    (suggested,) = re.findall(r"PureDP\(epsilon=(0\.\d{1,4})\)", error.fits)
    granted(ledger, suggested)


def test_a_reading_at_the_halt_is_admitted(ledger):
    """Exactly at it, and not a hair above; an undefined reading is above any."""
    policy = make_policy(
        budget="{epsilon: 20, delta: 1e-6}",
        filter="gdp",
        odometer="{theorem: rdp, delta: 1e-6, order: 8}",
        flows="{weekly: {halt_at_epsilon: 3}}",
    )
    step = Gaussian(sensitivity=1, sigma=5)
    granted(ledger, step, policies=[policy], flow="weekly")
    gate = standing_gates(ledger, "a")["a#1/odometer/weekly"]
    assert isinstance(gate.rule, Odometer)
    price = gate.price(step)
    reading_at = Fraction(gate.rule.read(gate.used + price))
    assert gate._replace(halt=reading_at).admits(price)
    assert not gate._replace(halt=reading_at - Fraction(1, 10**40)).admits(price)
    assert not gate._replace(used=Tally((0, 1))).admits(price)


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
    for _ in range(scaled(40, push=4)):
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


def test_a_policy_shows_the_gate_of_each_flow_before_any_charge():
    """Of the flows that it names, and of any other."""
    shares = {"flows": "{weekly: {share: 50%}}", "other_flows": "{share_each: 10%}"}
    gates = preview_gates(make_policy(**shares).to_pinned())
    assert [gate.name for gate in gates] == ["", "weekly", "each other flow"]
    limits = [int(gate.rule.thresholds[0]) for gate in gates]
    assert [limits[0] // 2, limits[0] // 10] == limits[1:]
