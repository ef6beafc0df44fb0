"""The filter auto, and filters with a lower budget under the same tally."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from dpflow import ApproxDP, DiscreteGaussian, ExponentialMechanism, Laplace, PureDP
from dpflow import PoissonSampledGaussian as Sampled
from dpflow.accounting import make_filter
from dpflow.accounting.costs.text import cost_from_text
from dpflow.accounting.rules.auto import default_members
from dpflow.accounting.rules.tightening import admits_less, tighten_filter
from dpflow.exceptions import InvalidCost
from dpflow.forecast.counting import WorkloadStep, runs_of
from tests.sizes import scaled
from tests.tables import read_tables

TABLES = read_tables(__file__)
PURE = PureDP(epsilon="0.1")
OWN_DELTA = ApproxDP(epsilon="0.1", delta="1e-9")
SAMPLED = Sampled(sampling_rate="0.01", noise_multiplier=1)


def make(theorem: str, options: dict, epsilon: str = "3", delta: str = "1e-6"):
    """Make a filter with a usual budget."""
    return make_filter(theorem, epsilon=epsilon, delta=delta, **options)


def test_members_are_priced_at_their_own_sums():
    """Each as if it were alone, whatever the others count."""
    rule = make_filter("auto", epsilon=5, delta="1e-6")
    own, total = [m.zero() for m in rule.members], rule.zero()
    noise = Laplace(sensitivity=1, epsilon="0.1"), ExponentialMechanism(epsilon="0.1")
    for cost in (PURE, *noise) * scaled(30, push=10):
        total = total + rule.price(cost, total)
        pairs = zip(rule.members, own, strict=True)
        own = [used + member.price(cost, used) for member, used in pairs]
    assert [tally for _, tally in rule.covering(total)] == own


def test_steps_that_no_member_covers_together():
    """Each step has a member, all of them together have none: refused."""
    members = [{"theorem": name, "delta": "5e-7"} for name in ("rdp", "basic")]
    rule = make_filter("auto", epsilon=5, delta="1e-6", members=members)
    sampled, own = rule.price(SAMPLED), rule.price(OWN_DELTA)
    assert rule.admits(sampled)
    assert rule.admits(own)
    assert not rule.admits(sampled + own)
    assert rule.used_fraction(sampled + own) == math.inf
    # One uncovered step switches a member off: the other is alone in charge.
    assert rule.label(own)["rdp/uncovered"] == "1"
    alone = make_filter("basic", epsilon=5, delta="5e-7")
    for count in (1, 49, 50):
        used = own.times(count)
        assert rule.admits(used) == alone.admits(alone.price(OWN_DELTA).times(count))
    with pytest.raises(InvalidCost, match="sum to"):
        make_filter("auto", epsilon=1, delta="9e-7", members=members)


def test_the_default_members_split_delta_and_cover_every_kind_of_step():
    """All of delta; only `rdp` prices sampling, and no step's own delta."""
    members = default_members(Fraction(1), Fraction("1e-6"))
    assert [m.theorem for m in members] == ["residue", "rdp", "zcdp", "basic"]
    assert sum(m.delta for m in members) == Fraction("1e-6")
    assert members[-1].delta == Fraction("1e-7")
    assert [m.theorem for m in make_filter("auto", epsilon=1).members] == ["basic"]
    rule = make_filter("auto", epsilon=1, delta="1e-6")
    for step, names in TABLES["members"].items():
        text = rule.label(rule.price(cost_from_text(step)))
        counts = {n: v for n, v in text.items() if n.endswith("/uncovered")}
        assert {*names} == {n.split("/")[0] for n, v in counts.items() if v == "0"}


@pytest.mark.parametrize(
    ("budget", "orders", "step", "best", "share"), TABLES["sampled"]
)
def test_sampled_steps_get_most_of_the_best_order(budget, orders, step, best, share):
    """The best order was chosen for this step, and has all of delta."""
    epsilon, delta = map(Fraction, budget)
    cost = Sampled(sampling_rate=step[0], noise_multiplier=step[1])
    runs = lambda rule: runs_of(rule, (WorkloadStep(cost),))
    rule = make_filter("auto", epsilon=epsilon, delta=delta)
    # A ledger pins the orders: later versions cannot choose others.
    renyi = rule.parameters()["members"][1]
    assert renyi["orders"] == [*map(str, orders)]
    assert make_filter(**rule.parameters()).parameters() == rule.parameters()
    alone = lambda each: make_filter("rdp", epsilon=epsilon, delta=delta, order=each)
    order, most = best
    assert runs(alone(order)) == most >= max(runs(alone(order + n)) for n in (1, 2))
    assert runs(rule) >= share * most
    if not share:
        for low in range(2, order + 1):
            with pytest.raises(InvalidCost, match="allows nothing"):
                make_filter("rdp", epsilon=epsilon, delta=delta * 23 / 100, order=low)


def test_discrete_gaussians_get_four_fifths_of_zcdp() -> None:
    """Only `rdp`, mostly at a lower order, and a hundredth of delta price them."""
    step = WorkloadStep(DiscreteGaussian(sensitivity=1, noise_multiplier=50))
    for epsilon in ("0.5", "1", "5"):
        rules = [make(name, {}, epsilon) for name in ("auto", "zcdp")]
        auto, zcdp = (runs_of(rule, (step,)) for rule in rules)
        assert 0.8 <= auto / zcdp <= 0.9


@pytest.mark.parametrize(("theorem", "options"), TABLES["options"])
def test_a_lower_budget_keeps_the_price_of_a_step(theorem, options):
    """Tallies go on; the derived order is not tuned again."""
    before = make(theorem, options)
    for epsilon, delta in (("2.5", "0.000001"), ("3", "9e-7"), ("2", "8e-7")):
        after = tighten_filter(before.parameters(), epsilon=epsilon, delta=delta)
        assert admits_less(after, before)
        assert not admits_less(before, after)
        assert after.parameters()["epsilon"] == epsilon
        assert after.components == before.components
        assert make_filter(**after.parameters()) == after
        if theorem != "individual":  # it prices its own bound only
            then, now = (rule.price(PureDP(epsilon="0.1")) for rule in (before, after))
            # Where less remains, a step may take more of it.
            assert then == now if before.steady else then.fits_within(now)


def test_filters_that_admit_more_or_count_otherwise_are_refused() -> None:
    """A larger budget, another theorem, order, weight or tuned member."""
    for before, after in TABLES["refused"]:
        assert not admits_less(make(*after), make(*before))
