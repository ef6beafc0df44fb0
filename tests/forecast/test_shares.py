"""How much of a budget the flows' shares can use, in the theorem's own currency."""

from __future__ import annotations

import pytest

from dpflow.accounting import make_filter
from dpflow.accounting.costs.noise import Gaussian
from dpflow.accounting.costs.notions import PureDP
from dpflow.forecast.counts import WorkloadStep
from dpflow.forecast.shares import reach_of_shares
from dpflow.forecast.workload import rounds_admitted
from dpflow.policy import parse_policy

pytestmark = pytest.mark.quick

BASE = "dataset: d\nunit: person\nrelation: add-or-remove\n"


def reach(filter_name: str, budget: str, *shares: str) -> float | None:
    """Return what shares of a policy can use of its budget."""
    flows = "".join(f"  f{n}: {{{share}}}\n" for n, share in enumerate(shares))
    text = f"{BASE}budget: {{{budget}}}\nfilter: {filter_name}\nflows:\n{flows}"
    return reach_of_shares(parse_policy(text).pinned())


def test_epsilons_do_not_add_up_under_gaussian() -> None:
    """Shares of 2.5 and 0.5 of 3 leave a quarter that no flow can use."""
    found = reach(
        "gdp",
        "epsilon: 3, delta: 1e-6",
        "epsilon: 2.5, delta: 1e-6",
        "epsilon: 0.5, delta: 1e-6",
    )
    assert found == pytest.approx(0.7559, abs=1e-3)


@pytest.mark.parametrize(
    ("shares", "part"),
    [(["epsilon: 1"], 0.5), (["epsilon: 1"] * 2, 1), (["epsilon: 1"] * 3, 1.5)],
)
def test_they_do_under_the_sum_rule(shares: list[str], part: float) -> None:
    """There a share is what it says."""
    assert reach("basic", "epsilon: 2", *shares) == pytest.approx(part)


@pytest.mark.parametrize("name", ["gdp", "zcdp", "auto", "rdp"])
def test_what_the_shares_can_use_is_what_steps_use(name: str) -> None:
    """As many equal small steps as each share admits, charged to the budget."""
    whole = make_filter(name, epsilon=3, delta="1e-6")
    cost = Gaussian(sensitivity=1, noise_multiplier=400)
    total = whole.zero()
    for epsilon in ("2.5", "0.5"):
        share = make_filter(name, epsilon=epsilon, delta="1e-6")
        rounds = rounds_admitted(share, (WorkloadStep(cost),))
        total = total + whole.price(cost).times(rounds or 0)
    found = reach(
        name,
        "epsilon: 3, delta: 1e-6",
        "epsilon: 2.5, delta: 1e-6",
        "epsilon: 0.5, delta: 1e-6",
    )
    assert found == pytest.approx(whole.used_fraction(total), rel=0.02)


def test_pure_steps_tell_where_gaussians_have_no_price() -> None:
    """Each filter that has no box of thresholds is asked by steps that it prices."""
    found = reach("rogers", "epsilon: 2, delta: 1e-6", "epsilon: 1, delta: 1e-6")
    whole = make_filter("rogers", epsilon=2, delta="1e-6")
    share = make_filter("rogers", epsilon=1, delta="1e-6")
    cost = PureDP(epsilon="0.001")
    rounds = rounds_admitted(share, (WorkloadStep(cost),)) or 0
    used = whole.used_fraction(whole.price(cost).times(rounds))
    assert found == pytest.approx(used, rel=0.02)


def test_without_a_share_there_is_nothing_to_compare() -> None:
    """A flow that is only named may use all of the budget."""
    assert reach("basic", "epsilon: 2", "") is None
