"""Early ends of steps over several parts: a group of the sub-steps."""

from __future__ import annotations

from typing import Any

import pytest

from dpflow import EarlyStopping, Gaussian, Laplace, Refined, SparseVector
from dpflow.accounting.costs.base import Cost
from dpflow.accounting.rules.groups import group_cost
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import open_ledger
from dpflow.ledger.views.accounts import accounts, standing_gates
from dpflow.policy import Policy
from tests.ledger.support import granted, make_ledger, make_policy, url

pytestmark = pytest.mark.quick

PARTS = ("2026-W11", "2026-W12")
SUBSTEPS = EarlyStopping(Gaussian(sensitivity=1, sigma=80), stops=[1, 10])
FINER = Refined(Gaussian(sensitivity=1, noise_multiplier=5), coarsest=80)
BLURRED = Refined(Laplace(sensitivity=1, epsilon="0.1"), spreads=[40, 20])
QUERIES = SparseVector(positives=4, epsilon="0.2")


def by_week(theorem: str, **fields: str) -> Policy:
    """Make a policy of weeks, by default with a cap over all of them."""
    lifetime = {} if "window" in fields else {"lifetime": "{epsilon: 5, delta: 1e-6}"}
    fields = {**lifetime, "budget": "{epsilon: 3, delta: 1e-6}", **fields}
    weeks = {"unit": "user-week", "partition": "{by: week}", "filter": theorem}
    return make_policy(**weeks, **fields)


def settled(ledger: Ledger, cost: Cost, reported: Any, **step: Any) -> dict[str, str]:
    """Settle a step's outcome; return the first amount of each account."""
    ledger.settle(granted(ledger, cost, **step), reported=reported)
    assert verify(ledger).fine
    return {v.id: next(iter(v.spent.values())) for v in accounts(ledger) if v.charged}


@pytest.mark.parametrize(
    ("theorem", "cost", "reported", "amounts"),
    [
        ("gdp", SUBSTEPS, 1, ("0.00015625", "0.000625")),
        ("gdp", FINER, 1, ("0.00015625", "0.000625")),
        ("zcdp", SUBSTEPS, 3, ("0.000234375", "0.0009375")),
        ("rdp", FINER, 1, None),
        ("auto", SUBSTEPS, 1, None),
        ("residue", FINER, 1, None),
        ("output-dp", BLURRED, 1, ("0.025", "0.05")),
        # A group of two has no cells of a sparse vector.
        ("output-dp", QUERIES, 0, ("0.04", "0.4")),
    ],
)
def test_a_cap_of_all_parts_is_charged_a_group_of_what_ran(
    ledger, theorem, cost, reported, amounts
):
    """Two weeks of one person lose the group's sub-steps; each week its own."""
    step = {"policies": (by_week(theorem),), "partitions": PARTS}
    posted = settled(ledger, cost, reported, **step)
    if amounts is not None:
        assert (posted[f"a#1/partition/{PARTS[0]}"], posted["a#1"]) == amounts
        return
    gate = standing_gates(ledger, "a")["a#1"]
    ran, full = (group_cost(each, 2) for each in (cost.realised(reported), cost))
    assert gate.used == gate.rule.price(ran) != gate.rule.price(full)


@pytest.mark.parametrize("cost", [SUBSTEPS, FINER])
def test_each_part_of_a_window_is_charged_its_share_of_what_ran(tmp_path, cost):
    """A half of the group's price, a tenth or a 256th of the worst case, for all."""
    policy, file = by_week("gdp", window="{length: 2}"), tmp_path / "ledger.db"
    step = {"policies": (policy,), "partitions": PARTS}
    ledger = make_ledger(file)
    settled(ledger, cost, 1, **step)
    gates = standing_gates(ledger, "a")
    for gate in (gates[f"a#/partition/{part}"] for part in PARTS):
        assert gate.rule.label(gate.used) == {"mu_squared": "0.0003125"}
    # Another process follows the settlement.
    settled(open_ledger(url(file), witness="none"), cost, 1, **step)
