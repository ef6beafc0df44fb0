"""The filter `auto`: members, splits, what it admits."""

from __future__ import annotations

import math
from contextlib import suppress
from fractions import Fraction
from functools import cache

import pytest

from dpflow.accounting import make_filter
from dpflow.accounting.costs.noise import (
    ExponentialMechanism,
    Gaussian,
    Laplace,
    PoissonSampledGaussian,
)
from dpflow.accounting.costs.notions import ZCDP, ApproxDP, PureDP
from dpflow.accounting.rules.auto import default_members
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import InvalidCost, UnsupportedCost
from dpflow.forecast.counting import WorkloadStep, runs_of
from tests.sizes import SCALE

IN_CAMPAIGN = pytest.mark.skipif(SCALE <= 1, reason="takes a minute")

GAUSSIAN = Gaussian(sensitivity=1, sigma=20)
PURE = PureDP(epsilon="0.1")
OWN_DELTA = ApproxDP(epsilon="0.1", delta="1e-9")
SAMPLED = PoissonSampledGaussian(sampling_rate="0.01", noise_multiplier=1)


def times(amounts, count: int) -> Tally:
    """Return the tally of a number of equal steps."""
    return Tally(tuple(count * amount for amount in amounts))


@cache
def admitted(rule, *costs) -> int:
    """Return how many steps in turn fit; zero if one has no price."""
    steps = tuple(map(WorkloadStep, costs))
    try:
        rounds = runs_of(rule, steps)
    except UnsupportedCost:
        return 0
    total, count = rule.zero(), 0
    for step in steps * (rounds + 1):
        if not rule.admits(total + rule.price(step.cost, total)):
            return count
        total, count = total + rule.price(step.cost, total), count + 1
    raise AssertionError


LAPLACE, TENTH_RANGE = (
    Laplace(sensitivity=1, epsilon="0.1"),
    ExponentialMechanism(epsilon="0.1"),
)
MIXED = (GAUSSIAN, LAPLACE, PureDP(epsilon="0.05"), TENTH_RANGE)
#: Workloads that the shares were chosen on, with what a fixed sequence could have
#: (docs/admitted.md).
CHOSEN = [
    ("1", "1e-6", (PureDP(epsilon="0.01"),), 562),
    ("1", "1e-6", (LAPLACE,), 10),
    ("1", "1e-6", MIXED, 16),
    ("5", "1e-6", (GAUSSIAN,), 416),
    ("5", "1e-6", (TENTH_RANGE,), 416),
    ("5", "1e-6", MIXED, 246),
]
LARGE = [
    ("1", "1e-6", (GAUSSIAN,), 22),
    ("1", "1e-6", (Gaussian(sensitivity=1, sigma=100),), 560),
    ("1", "1e-6", (PURE,), 10),
    ("1", "1e-6", (TENTH_RANGE,), 22),
    ("5", "1e-6", (PURE,), 108),
    ("1", "1e-6", (Laplace(sensitivity=1, epsilon="0.01"),), 564),
    ("5", "1e-6", (PureDP(epsilon="0.01"),), 10_414),
    ("5", "1e-6", (LAPLACE,), 111),
    ("10", "1e-5", (PURE,), 404),
    ("10", "1e-5", (LAPLACE,), 417),
    ("10", "1e-5", (TENTH_RANGE,), 1_601),
    ("10", "1e-5", MIXED, 937),
]


@pytest.mark.parametrize(
    ("epsilon", "delta", "costs", "optimum"),
    CHOSEN + [pytest.param(*each, marks=IN_CAMPAIGN) for each in LARGE],
)
def test_the_default_comes_near_a_fixed_sequence(epsilon, delta, costs, optimum):
    """0.94 of it where 200 steps fit."""
    ours = admitted(make_filter("auto", epsilon=epsilon, delta=delta), *costs)
    if optimum >= 200:
        assert ours >= 0.94 * optimum
    assert ours <= optimum


@pytest.mark.parametrize(
    ("rate", "noise", "epsilon", "delta"),
    [
        ("0.01", "1", "2", "1e-5"),
        ("0.01", "1", "2", "1e-6"),
        ("0.004", "1.1", "3", "1e-5"),
        ("0.02", "1.5", "4", "1e-7"),
        ("0.01", "1", "8", "1e-6"),
    ],
)
def test_sampled_gaussians_get_half_of_the_best_whole_order(
    rate, noise, epsilon, delta
):
    """From an epsilon of 2 on; by the own order alone it was 1 step of 879 in row 1."""
    cost = PoissonSampledGaussian(sampling_rate=rate, noise_multiplier=noise)
    budget = {"epsilon": epsilon, "delta": delta}
    best = 0
    for order in range(3, 33):
        with suppress(InvalidCost):
            rule = make_filter("rdp", order=order, **budget)
            best = max(best, admitted(rule, cost))
    assert best > 100
    assert admitted(make_filter("auto", **budget), cost) >= best / 2


def test_measurements_with_a_delta_run_under_the_default():
    """A tenth of delta is theirs: at (10, 1e-5) as many as epsilons and deltas fit."""
    rule = make_filter("auto", epsilon=10, delta="1e-5")
    steps = [ApproxDP(epsilon="0.5", delta=d) for d in ("1e-6", "1e-7", "1e-8")]
    assert [admitted(rule, step) for step in steps] == [1, 10, 20]


def test_steps_admitted_at_one_and_five():
    """Against gdp's 22 and 416, rdp's 97 and basic's 10."""
    one = make_filter("auto", epsilon=1, delta="1e-6")
    five = make_filter("auto", epsilon=5, delta="1e-6")
    assert [admitted(one, c) for c in (GAUSSIAN, PURE)] == [21, 10]
    assert [admitted(five, c) for c in (GAUSSIAN, PURE)] == [403, 99]


def test_members_are_priced_at_their_own_sums():
    """Each as if it were alone, whatever the others count."""
    rule = make_filter("auto", epsilon=5, delta="1e-6")
    own, total = [m.zero() for m in rule.members], rule.zero()
    for cost in (PURE, LAPLACE, TENTH_RANGE) * 30:
        total = total + rule.price(cost, total)
        own = [
            used + member.price(cost, used)
            for member, used in zip(rule.members, own, strict=True)
        ]
    assert [tally for _, tally in rule.covering(total)] == own


def test_one_uncovered_step_switches_a_member_off():
    """A step that only one member covers leaves that member alone in charge."""
    members = [
        {"theorem": "gdp", "delta": "5e-7"},
        {"theorem": "zcdp", "delta": "5e-7", "delta_loss": "4e-7"},
    ]
    rule = make_filter("auto", epsilon=1, delta="1e-6", members=members)
    alone = make_filter("zcdp", epsilon=1, delta="5e-7", delta_loss="4e-7")
    before = rule.price(GAUSSIAN)
    mixed = before + rule.price(OWN_DELTA)
    own = alone.price(GAUSSIAN) + alone.price(OWN_DELTA)
    assert rule.named(mixed)["gdp/uncovered"] == "1"
    assert rule.named(mixed)["zcdp/uncovered"] == "0"
    for count in range(1, 40):
        amounts = tuple(
            a + count * b for a, b in zip(mixed.amounts, before.amounts, strict=True)
        )
        single = tuple(
            a + count * b
            for a, b in zip(own.amounts, alone.price(GAUSSIAN).amounts, strict=True)
        )
        assert rule.admits(Tally(amounts)) == alone.admits(Tally(single))
        if alone.admits(Tally(single)):
            assert rule.used_fraction(Tally(amounts)) == alone.used_fraction(
                Tally(single)
            )


def test_steps_that_no_member_covers_together():
    """Each step has a member, all of them together have none: refused."""
    members = [
        {"theorem": "rdp", "delta": "5e-7"},
        {"theorem": "basic", "delta": "5e-7"},
    ]
    rule = make_filter("auto", epsilon=5, delta="1e-6", members=members)
    sampled, own = rule.price(SAMPLED), rule.price(OWN_DELTA)
    assert rule.admits(sampled)
    assert rule.admits(own)
    assert not rule.admits(sampled + own)
    assert rule.used_fraction(sampled + own) == math.inf


def test_a_step_that_no_member_covers():
    """Refused with the members' own reasons, not counted as exhausted."""
    members = [{"theorem": "gdp", "delta": "1e-6"}, {"theorem": "basic"}]
    rule = make_filter("auto", epsilon=1, delta="1e-6", members=members)
    with pytest.raises(UnsupportedCost, match="no member of auto"):
        rule.price(ZCDP(rho="0.001"))
    with pytest.raises(UnsupportedCost, match="keeps no delta for steps"):
        rule.price(OWN_DELTA)


def test_the_default_covers_every_kind_of_step():
    """A step's own delta has no price under renyi, sampling only there."""
    rule = make_filter("auto", epsilon=1, delta="1e-6")
    covered = {
        GAUSSIAN: {"residue", "rdp", "zcdp"},
        PURE: {"residue", "rdp", "zcdp", "basic"},
        OWN_DELTA: {"residue", "zcdp", "basic"},
        SAMPLED: {"rdp"},
        ZCDP(rho="0.01"): {"rdp", "zcdp"},
    }
    for cost, names in covered.items():
        text = rule.named(rule.price(cost))
        counts = {n: v for n, v in text.items() if n.endswith("/uncovered")}
        assert names == {n.split("/")[0] for n, v in counts.items() if v == "0"}


def test_the_default_members_split_delta():
    """All of it and no more; a tenth is basic's, which is alone without a delta."""
    members = default_members(Fraction(1), Fraction("1e-6"))
    assert [m.theorem for m in members] == [
        "residue",
        "rdp",
        "zcdp",
        "basic",
    ]
    assert sum(m.delta for m in members) == Fraction("1e-6")
    assert members[-1].delta == Fraction("1e-7")
    assert [m.theorem for m in make_filter("auto", epsilon=1).members] == ["basic"]


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [("1e-9", "1e-30"), ("1e-9", "0.5"), ("1000", "1e-30"), ("1000", "0.5")],
)
def test_the_default_at_the_corners(epsilon, delta):
    """It can be made, admits nothing spent, and rebuilds from its parameters."""
    rule = make_filter("auto", epsilon=epsilon, delta=delta)
    assert rule.admits(rule.zero())
    assert rule == make_filter(**rule.parameters())
    assert rule.admits(rule.price(PureDP(epsilon=epsilon)))


def test_derived_numbers_are_pinned():
    """Every number that a default derived is among them."""
    rule = make_filter("auto", epsilon=5, delta="1e-6")
    pinned = rule.parameters()
    assert Fraction(pinned["members"][0]["delta"]) == Fraction("6.6e-7")
    assert Fraction(pinned["members"][0]["delta_loss"]) == Fraction("6.55e-7")
    assert pinned["members"][1]["order"] == "7"


def test_the_tally_is_small():
    """Under two kilobytes after a million steps of every kind."""
    rule = make_filter("auto", epsilon=10, delta="1e-5")
    total = rule.zero()
    for cost in (GAUSSIAN, PURE, OWN_DELTA, SAMPLED):
        total = total + times(rule.price(cost).amounts, 10**6)
    assert len(total.to_text()) < 1000


def test_members_share_delta():
    """Parts that together exceed it make no union."""
    members = [{"theorem": "gdp", "delta": "6e-7"}] * 2
    with pytest.raises(InvalidCost, match="sum to"):
        make_filter("auto", epsilon=1, delta="1e-6", members=members)
