"""The `reserve_run` block: a whole run held outside Prefect."""

from __future__ import annotations

import pytest

from dpflow import BudgetRefused, guarded, reserve_run, spend
from dpflow.exceptions import ConfigurationError, UnknownDataset
from dpflow.guard.project import current_project
from dpflow.ledger.audit.verify import verify
from tests.projects import TENTH, held, kinds, make_project, spent

pytestmark = pytest.mark.quick


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """Give a project with one dataset; its ledger must verify at the end."""
    folder = make_project(tmp_path, monkeypatch)
    yield folder
    assert verify(current_project().ledger).bad == []


@guarded(dataset="shop", cost=TENTH)
def count() -> float:
    """Stand for a step."""
    return 100.0


def test_a_block_holds_its_steps_and_returns_the_rest(shop):
    """Functions and blocks under the guard draw from it."""
    with reserve_run(costs={"shop": [TENTH] * 4}, flow="weekly"):
        assert (held(), spent()) == ("0.4", "0")
        count()
        with spend(dataset="shop", cost=TENTH, step="other", flow="weekly"):
            assert (held(), spent()) == ("0.3", "0.1")
    assert (held(), spent()) == ("0", "0.2")
    assert kinds() == ["reserve", *["reserve", "settle"] * 2, "seal"]


def test_a_block_that_does_not_fit_draws_nothing(shop):
    """Its first draw says what was asked for all, what is left and what would fit."""
    ran = []

    @guarded(dataset="shop", cost=TENTH)
    def cheap() -> None:
        ran.append(1)

    with reserve_run(costs={"shop": [TENTH] * 11}):
        for _ in range(2):
            with pytest.raises(BudgetRefused, match="Repeated\\(PureDP") as caught:
                cheap()
            assert caught.value.asked["epsilon"] == "1.1"
    assert ran == []
    assert kinds() == ["refuse"] * 3
    assert (held(), spent()) == ("0", "0")


def test_bad_declarations_charge_nothing(shop):
    """The error names what is wrong, and the block does not run."""
    good = {"shop": [TENTH]}
    for costs in ({}, {"shop": []}, {"shop": TENTH}, {"shop": ["0.1"]}, {3: [TENTH]}):
        with pytest.raises(ConfigurationError), reserve_run(costs=costs):
            pytest.fail("the block ran")
    for name in ("other", "shop"):
        parts = {name: ["w1"]}
        with (
            pytest.raises(ConfigurationError),
            reserve_run(costs=good, partitions=parts),
        ):
            pytest.fail("the block ran")
    with pytest.raises(UnknownDataset), reserve_run(costs={"other": [TENTH]}):
        pytest.fail("the block ran")
    with reserve_run(costs=good):
        pass
    assert kinds() == ["reserve", "seal"]
