"""The filter `auto`: members, splits, what it admits."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from dpflow import (
    ZCDP,
    ApproxDP,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    PoissonSampledGaussian,
    PureDP,
)
from dpflow.accounting import make_filter
from dpflow.accounting.rules.auto import default_members
from dpflow.exceptions import InvalidCost
from dpflow.forecast.counting import WorkloadStep, runs_of

GAUSSIAN = Gaussian(sensitivity=1, sigma=20)
PURE = PureDP(epsilon="0.1")
OWN_DELTA = ApproxDP(epsilon="0.1", delta="1e-9")
SAMPLED = PoissonSampledGaussian(sampling_rate="0.01", noise_multiplier=1)
SLOW = PoissonSampledGaussian(sampling_rate="0.004", noise_multiplier="1.1")


LAPLACE, TENTH_RANGE = (
    Laplace(sensitivity=1, epsilon="0.1"),
    ExponentialMechanism(epsilon="0.1"),
)


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
    # One uncovered step switches a member off: the other is alone in charge.
    assert rule.named(own)["rdp/uncovered"] == "1"
    alone = make_filter("basic", epsilon=5, delta="5e-7")
    for count in (1, 49, 50):
        used = own.times(count)
        assert rule.admits(used) == alone.admits(alone.price(OWN_DELTA).times(count))
    with pytest.raises(InvalidCost, match="sum to"):
        make_filter("auto", epsilon=1, delta="9e-7", members=members)


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
    ("step", "epsilon", "delta", "order", "best"),
    [
        (SAMPLED, 2, "1e-5", 8, 879),
        (SLOW, 3, "1e-5", 7, 20_860),
        (SLOW, 3, "1e-8", 11, 12_271),
    ],
)
def test_sampled_steps_get_half_of_the_best_order(step, epsilon, delta, order, best):
    """The best order was chosen for this step, and has all of delta."""
    budget = {"epsilon": epsilon, "delta": delta}
    workload = (WorkloadStep(step),)
    assert runs_of(make_filter("rdp", order=order, **budget), workload) == best
    assert runs_of(make_filter("auto", **budget), workload) >= best / 2
    own = make_filter("auto", members=[{"theorem": "rdp", "delta": delta}], **budget)
    assert (runs_of(own, workload) >= best / 2) == (epsilon == 3)
