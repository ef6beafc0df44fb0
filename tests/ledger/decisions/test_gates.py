"""A step passes the gates of all its accounts or none; a refusal says which and why."""

from __future__ import annotations

import random
import re
from fractions import Fraction
from typing import Any

import pytest

from dpflow import ApproxDP, Gaussian, PoissonSampledGaussian, PureDP
from dpflow.accounting import make_filter
from dpflow.accounting.costs.base import Cost
from dpflow.accounting.rules.rule import Odometer
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import (
    BudgetExhausted,
    BudgetRefused,
    UnsupportedCost,
)
from dpflow.ledger import views
from dpflow.ledger.decisions.refusals import Shortage, describe_members
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.views.accounts import standing_gates
from tests.ledger.support import (
    audit,
    body,
    everything,
    granted,
    make_policy,
    read,
    refused,
    sums,
)

pytestmark = pytest.mark.quick

TENTH = Fraction(1, 10)
ODOMETER = "a#1/odometer/weekly"


# Refusals


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


# Odometers

HALTING = make_policy(
    budget="{epsilon: 20, delta: 1e-6}",
    filter="gdp",
    odometer="{theorem: rdp, delta: 1e-6, order: 8}",
    flows="{weekly: {halt_at_epsilon: 3}, free: {}}",
)
STEP, SMALL = Gaussian(sensitivity=1, sigma=5), Gaussian(sensitivity=1, sigma=500)


def weekly(ledger: Ledger, cost: Cost, run: str | None = "run 1", **more: Any) -> str:
    """Reserve in a run of the weekly flow."""
    fields = {"policies": [HALTING], "flow": "weekly", "flow_run": run, **more}
    return granted(ledger, cost, **fields)


#: Steps after six that the halt leaves room for, and how each is refused.
HALTED = "halted this flow run"
AFTER_SIX = [
    (STEP, {}, "above halt_at_epsilon 3"),
    *((cost, {}, HALTED) for cost in (SMALL, STEP)),
    (SMALL, {"run": "run 2"}, None),
    (SMALL, {"run": None}, None),
    (STEP, {"flow": "free"}, None),
    (STEP, {"run": "run 2"}, "would rise"),
    (SMALL, {"run": "run 2"}, HALTED),
]


def test_an_odometer_halts_its_flow_run(ledger, path):
    """At log(1e6)/7 + n * 0.16 <= 3 there are six steps; then none of the run.

    Another run's cheaper step fits, its dear one does not; no other flow is halted.
    """
    for _ in range(6):
        ledger.settle(weekly(ledger, STEP))
    assert sums(path, ODOMETER) == (Fraction(96, 100), 0)
    assert sums(path) == (Fraction(24, 100), 0)
    errors = []
    for cost, fields, words in AFTER_SIX:
        if words is None:
            weekly(ledger, cost, **fields)
            continue
        with pytest.raises(BudgetRefused, match=words) as caught:
            weekly(ledger, cost, **fields)
        errors.append(caught.value)
        if words == HALTED:
            assert "No further DP step" in caught.value.fits
    first = errors[0]
    assert type(first) is BudgetExhausted
    assert (first.gate, first.theorem) == ("odometer", "rdp")
    reading = Fraction(6 * 16, 100) + Fraction("1.973644")
    assert 3 - reading - Fraction(1, 10**5) < Fraction(first.left["epsilon"])
    assert Fraction(first.left["epsilon"]) < 3 - reading
    audit(path)


def test_a_reading_at_the_halt_is_admitted(ledger):
    """Exactly at it, and not a hair above; an undefined reading is above any."""
    weekly(ledger, STEP)
    gate = standing_gates(ledger, "a")[ODOMETER]
    assert isinstance(gate.rule, Odometer)
    price = gate.price(STEP)
    reading_at = Fraction(gate.rule.read(gate.used + price))
    assert gate._replace(halt=reading_at).admits(price)
    assert not gate._replace(halt=reading_at - Fraction(1, 10**40)).admits(price)
    assert not gate._replace(used=Tally((0, 1))).admits(price)


def test_an_uncovered_step_makes_the_reading_undefined(ledger, path):
    """It is counted, and a void takes the count back; a halt would never halt then."""
    policy = make_policy(
        budget="{epsilon: 20, delta: 1e-6}",
        odometer="{theorem: rdp, delta: 1e-6, order: 8}",
        flows="{weekly: {}, halts: {halt_at_epsilon: 3}}",
    )
    here: dict[str, Any] = {"policies": [policy]}
    cost, small = ApproxDP(epsilon="0.1", delta="1e-9"), PureDP(epsilon="0.01")

    def reading() -> float:
        (view,) = (v for v in views.accounts(ledger) if v.id == ODOMETER)
        assert view.reading is not None
        return view.reading

    reservation = weekly(ledger, cost, **here)
    assert read(path, f"SELECT held FROM account WHERE id = '{ODOMETER}'") == [
        ("[0,1]",)
    ]
    assert reading() == float("inf")
    weekly(ledger, small, **here)
    ledger.void(reservation, reason="test")
    assert reading() < 3
    before = everything(path)
    with pytest.raises(UnsupportedCost):
        weekly(ledger, cost, flow="halts", **here)
    assert before == everything(path)
    weekly(ledger, small, flow="halts", **here)


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
