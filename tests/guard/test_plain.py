"""Guarded functions and blocks: charged once, replayed by key."""

from __future__ import annotations

import pytest

from dpflow import ApproxDP, Laplace, guarded, spend
from dpflow.exceptions import ConfigurationError, ReservationConflict, UnsupportedCost
from dpflow.guard.project import current_project
from dpflow.ledger.audit.verify import verify
from tests.projects import POLICY, TENTH, journal, kinds, make_project, rows

pytestmark = pytest.mark.quick


def test_an_async_step_without_an_event_loop_of_asyncio_is_refused(shop):
    """As trio runs it: by its own loop, which asyncio does not know."""

    async def count():
        return 1

    with pytest.raises(ConfigurationError, match="under asyncio only"):
        guarded(dataset="shop", cost=TENTH)(count)().send(None)
    assert rows(shop)["journal"] == []


def test_an_interrupt_and_a_second_equal_call_say_that_they_cost(shop, caplog):
    """One line each: once for a step without a key, and not for other arguments."""
    second = "with equal arguments is a charge"

    @guarded(dataset="shop", cost=TENTH)
    def count(day):
        if day == "stop":
            raise KeyboardInterrupt
        return 1

    count("mon"), count("tue")
    assert second not in caplog.text
    count("mon"), count("tue")
    assert caplog.text.count(second) == 1
    with pytest.raises(KeyboardInterrupt):
        count("stop")
    assert caplog.text.count("was stopped and stays charged in full") == 1


def test_wrong_arguments_are_a_type_error_and_cost_nothing(shop):
    """A call that Python itself would refuse charges nothing."""
    step = guarded(dataset="shop", cost=TENTH)(lambda week: week)
    with pytest.raises(TypeError, match="week"):
        step()
    assert rows(shop)["journal"] == []


@pytest.mark.parametrize("change", ["replay", "refuse"])
def test_a_changed_cost_under_one_key_replays_the_release_or_is_an_error(
    shop, caplog, change
):
    """One log line names both costs in Python form; nothing is charged."""
    costs = [TENTH, Laplace(sensitivity=1, epsilon="0.2")]
    words = {"release_key": "x", "on_change": change, "name": "count"}
    step = guarded(dataset="shop", cost=lambda: costs[0], **words)(lambda: 1)
    step()
    before = rows(shop)
    made = repr(costs.pop(0))
    if change == "refuse":
        with pytest.raises(ReservationConflict, match="on_change") as error:
            step()
        text = error.value.message
    else:
        assert step() == 1
        (text,) = [each.getMessage() for each in caplog.records if each.levelno > 20]
    assert made in text
    assert repr(costs[0]) in text
    assert before == rows(shop)


def test_a_warning_that_is_an_error_comes_after_the_charge_was_posted(shop):
    """`-W error` cannot leave a charge unsettled."""
    words = {"release_key": "x", "fresh": True, "name": "n"}
    step = guarded(dataset="shop", cost=TENTH, **words)(lambda: object() or None)
    with pytest.warns(RuntimeWarning):
        step()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.filters", [("error", None, Warning, None, 0)])
        with pytest.raises(RuntimeWarning, match="cannot be stored"):
            step()
    assert [entry.body.get("outcome") for entry in journal()[2::2]] == ["completed"] * 2


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """Give a project with one dataset; its ledger must verify at the end."""
    folder = make_project(tmp_path, monkeypatch)
    yield folder
    assert verify(current_project().ledger).bad == []


def test_a_block_with_a_delta_is_refused_in_windows(tmp_path, monkeypatch):
    """It could answer again when rows of other parts have arrived."""
    weeks = "partition: {by: week}\nwindow: {length: 2}\n"
    policy = POLICY.replace("1}", "1, delta: 1e-6}")
    policy = policy.replace("customer", "customer-week")
    make_project(tmp_path, monkeypatch, policy + weeks)
    block = {"dataset": "shop", "step": "count", "partitions": "2026-W05"}
    loss = ApproxDP(epsilon="0.1", delta="1e-9")
    with (
        pytest.raises(UnsupportedCost, match="may answer again"),
        spend(cost=loss, **block),
    ):
        raise AssertionError
    with spend(cost=TENTH, **block):
        pass
    assert kinds() == ["reserve", "settle"]
