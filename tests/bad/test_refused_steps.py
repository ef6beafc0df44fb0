"""Bad costs, policies and pins: a clear error, no body runs, no row is written."""

from __future__ import annotations

import math

import pytest

from dpflow import ApproxDP, Gaussian, PureDP, guarded
from dpflow.exceptions import (
    ConfigurationError,
    InvalidCost,
    LedgerCorrupt,
    PolicyChanged,
    PolicyError,
)
from tests.projects import TENTH, caught, make_project, rewrite_policy, rows

pytestmark = pytest.mark.quick


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """Return the folder of a project that has spent a tenth of its budget."""
    make_project(tmp_path, monkeypatch)
    guarded(dataset="shop", cost=TENTH)(lambda: 1)()
    return tmp_path


def refuse_step(folder, kind, cost=TENTH, *arguments):
    """Return the error of a step whose body must not run and that moves no row."""
    before = rows(folder)

    @guarded(dataset="shop", cost=cost, name="bad")
    def body(value=0):
        pytest.fail("the body ran")

    error = caught(lambda: body(*arguments))
    assert type(error) is kind, repr(error)
    assert before == rows(folder)
    return error


@pytest.mark.parametrize(
    "cost",
    [
        lambda value: Gaussian(sensitivity=1, sigma=value),
        lambda value: PureDP(epsilon=value),
        lambda value: ApproxDP(epsilon=1, delta=value),
    ],
)
def test_a_bad_number_in_a_cost_function_is_refused(shop, cost):
    """A cost that depends on public arguments is checked before the body runs."""
    for value in (math.nan, math.inf, -1, "many", "", True, [1]):
        error = refuse_step(shop, ConfigurationError, cost, value)
        assert "step 'bad'" in error.message
        assert f"got {value!r}" in error.message
        assert "The step did not run." in error.message
        assert isinstance(error.__cause__, InvalidCost)


def test_a_policy_that_cannot_be_read_stops_every_step(shop):
    """The error has the file and the line; another dataset's file stops steps, too."""
    rewrite_policy(shop, "{epsilon: 1}", "{epsilon: .nan}")
    error = refuse_step(shop, PolicyError)
    assert "0.yaml:4: budget.epsilon must" in error.message
    rewrite_policy(shop, "{epsilon: .nan}", "{epsilon: 1}")
    (shop / "policies" / "other.yaml").write_text("dataset: [", "utf-8")
    refuse_step(shop, PolicyError)


def test_a_policy_edited_after_the_first_charge_is_refused(shop):
    """Until the edit is undone; fields without a part in the guarantee are free."""
    rewrite_policy(shop, "{epsilon: 1}", "{epsilon: 2}")
    error = refuse_step(shop, PolicyChanged)
    assert error.differences == ["budget.epsilon: ledger 1, file 2"]
    assert "undo the edit" in error.message
    rewrite_policy(shop, "{epsilon: 2}", "{epsilon: 1.0}\nalerts: [0.9]")
    assert guarded(dataset="shop", cost=TENTH)(lambda: 2)() == 2


def test_a_ledger_without_its_pin_or_with_another_one_is_refused(tmp_path, monkeypatch):
    """The policies' folder names the id of the right ledger."""
    make_project(tmp_path, monkeypatch)
    pin = tmp_path / "policies" / "ledger.lock"
    pin.write_text("f" * 32, "utf-8")
    assert "f" * 32 in refuse_step(tmp_path, LedgerCorrupt).message
    pin.unlink()
    assert "ledger.lock" in refuse_step(tmp_path, ConfigurationError).message
