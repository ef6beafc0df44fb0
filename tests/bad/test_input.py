"""Bad input: a clear error, the step does not run, the ledger is unchanged."""

from __future__ import annotations

import math
from functools import partial

import pytest

from dpflow import ZCDP, ApproxDP, Gaussian, Laplace, PureDP, guarded
from dpflow.exceptions import (
    ConfigurationError,
    InvalidCost,
    PolicyChanged,
    PolicyError,
)
from tests.bad.refusals import refusal, step_at
from tests.projects import POLICY, TENTH, rewrite_policy

pytestmark = pytest.mark.quick


BAD_NUMBERS = [math.nan, math.inf, -1, 0, "many", "", "nan", True, 1e300, 1e-300, [1]]
COSTS = {
    "sigma": lambda value: Gaussian(sensitivity=1, sigma=value),
    "noise_multiplier": lambda value: Gaussian(sensitivity=1, noise_multiplier=value),
    "sensitivity": lambda value: Gaussian(sensitivity=value, sigma=1),
    "scale": lambda value: Laplace(sensitivity=1, scale=value),
    "epsilon": lambda value: PureDP(epsilon=value),
    "delta": lambda value: ApproxDP(epsilon=1, delta=value),
    "rho": lambda value: ZCDP(rho=value),
}
# A delta of zero is a pure guarantee, and a good one.


@pytest.mark.parametrize("name", COSTS)
def test_a_bad_number_in_a_cost_function_runs_and_charges_nothing(shop, name):
    """A cost that depends on public arguments is checked before the body runs."""

    @guarded(dataset="shop", cost=COSTS[name])
    def count(value):
        pytest.fail("the body ran")

    # A delta of zero is a pure guarantee, and a good one.
    for value in [v for v in BAD_NUMBERS if (name, repr(v)) != ("delta", "0")]:
        error = refusal(shop, partial(count, value), ConfigurationError)
        assert "step 'count'" in error.message
        assert f"got {value!r}" in error.message
        assert "The step did not run." in error.message
        assert isinstance(error.__cause__, InvalidCost)


@pytest.mark.parametrize("field", ["epsilon", "delta"])
def test_a_bad_number_in_a_policy_stops_every_step(shop, field):
    """The error names file, line, field, value and what to do."""
    path = shop / "policies" / "0.yaml"
    for value in (".nan", ".inf", "-.inf", "-1", "many", "''", "true", "1e300", "[1]"):
        numbers = {"epsilon": "1", "delta": "0"} | {field: value}
        budget = f"{{epsilon: {numbers['epsilon']}, delta: {numbers['delta']}}}"
        path.write_text(POLICY.replace("{epsilon: 1}", budget), "utf-8")
        error = refusal(shop, step_at(TENTH), PolicyError)
        assert f"0.yaml:4: budget.{field} must" in error.message
        assert error.line == 4
        assert value.strip("'").lower() in error.message.lower().replace("+", "")
        assert error.hint in error.message


def test_a_policy_edited_after_the_first_charge_is_refused(shop):
    """The difference is shown, and undoing the edit is what to do."""
    rewrite_policy(shop, "{epsilon: 1}", "{epsilon: 2}")
    error = refusal(shop, step_at(TENTH), PolicyChanged)
    assert "budget.epsilon: ledger 1, file 2" in error.message
    assert "undo the edit" in error.message
    assert error.differences == ["budget.epsilon: ledger 1, file 2"]
    rewrite_policy(shop, "{epsilon: 2}", "{epsilon: 1.0}")
    assert guarded(dataset="shop", cost=TENTH)(lambda: 2)() == 2


PINNED = [
    ("unit: customer", "unit: visit", "unit: ledger customer, file visit"),
    ("add-or-remove", "replace-one", "relation: ledger add-or-remove"),
    ("filter: basic", "filter: zcdp", "filter.theorem: ledger basic"),
    ("filter: basic", "filter: basic\nflows: {report: {epsilon: 1}}", "flows"),
    ("filter: basic", "filter: basic\nother_flows: refuse", "other_flows"),
]


def test_every_field_of_the_guarantee_is_pinned(shop):
    """An edit of such a field under a running budget is refused; others are free."""
    path = shop / "policies" / "0.yaml"
    for old, new, difference in PINNED:
        delta = ", delta: 1e-6" if "zcdp" in new else ""
        text = POLICY.replace(old, new).replace(
            "epsilon: 1}", f"epsilon: 1{delta}}}", 1
        )
        path.write_text(text, "utf-8")
        error = refusal(shop, step_at(TENTH), PolicyChanged)
        assert difference in error.message
    path.write_text(f"{POLICY}alerts: [0.9]\nerrors: keep\n", "utf-8")
    assert guarded(dataset="shop", cost=TENTH)(lambda: 2)() == 2


def test_a_broken_policy_of_another_dataset_stops_every_step(shop):
    """A folder that is half understood is not understood."""
    (shop / "policies" / "other.yaml").write_text("dataset: [", "utf-8")
    refusal(shop, step_at(TENTH), PolicyError)
