"""`dp_task` is a Prefect task in every way, and its body is always paid for."""

from __future__ import annotations

import inspect
from typing import get_type_hints

import pytest
from prefect import Task, flow, task
from prefect.cache_policies import INPUTS

from dpflow import (
    BudgetExhausted,
    Laplace,
    PureDP,
    dp_task,
    release,
)
from dpflow.exceptions import ConfigurationError
from tests.prefect.support import charges, kinds, spent

TENTH = PureDP(epsilon="0.1")


def test_a_step_that_is_called_is_charged_once_and_returns_its_value(project):
    """A sync step in a flow runs its body once and settles one charge."""
    ran = []

    @dp_task(dataset="shop", cost=Laplace(sensitivity=1, epsilon="0.1"))
    def customers(week: int) -> int:
        ran.append(week)
        return release(1_000_000)

    @flow(name="report")
    def report():
        return customers(7)

    value = report()
    assert type(value) is int
    assert abs(value - 1_000_000) < 10_000
    assert ran == [7]
    assert kinds(project) == ["open", "reserve", "settle"]
    assert spent(project) == {"epsilon": "0.1", "delta": "0"}


def test_a_step_keeps_what_makes_it_a_task():
    """Name, tags, timeout, hooks, hints, signature, docstring and source survive."""

    def hook(task, task_run, state):
        pass

    @dp_task(
        dataset="shop",
        cost=TENTH,
        name="count",
        tags=["dp"],
        timeout_seconds=9,
        retries=2,
        on_completion=[hook],
        task_run_name="count-{week}",
    )
    def customers(week: int) -> float:
        """Count them."""
        return 1.0

    assert isinstance(customers, Task)
    assert (customers.name, customers.tags) == ("count", {"dp"})
    assert (customers.timeout_seconds, customers.retries) == (9.0, 2)
    assert customers.on_completion_hooks == [hook]
    assert customers.description == "Count them."
    assert get_type_hints(customers.fn) == {"week": int, "return": float}
    assert list(inspect.signature(customers.fn).parameters) == ["week"]
    assert "Count them." in inspect.getsource(customers.fn)


def test_retries_default_to_none_even_where_prefect_is_told_otherwise(monkeypatch):
    """Every attempt is a charge of its own, so a retry must be asked for."""
    from prefect.settings import PREFECT_TASK_DEFAULT_RETRIES, temporary_settings

    with temporary_settings({PREFECT_TASK_DEFAULT_RETRIES: 3}):

        @dp_task(dataset="shop", cost=TENTH)
        def customers() -> int:
            return 1

        @task
        def plain() -> int:
            return 1

    assert (customers.retries, plain.retries) == (0, 3)


@pytest.mark.parametrize(
    "options",
    [
        {"cost": PureDP(epsilon=1)},
        {"dataset": "other"},
        {"private": ("week",)},
        {"release_key": "x"},
        {"retires": 3},
        {"materialized_by": "other"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_with_options_takes_no_option_that_it_would_ignore(options):
    """What a step declares is fixed, and a misspelt option is told."""

    @dp_task(dataset="shop", cost=TENTH)
    def customers(week: int) -> int:
        return week

    (name,) = options
    with pytest.raises(ConfigurationError, match=f"got {name}=") as caught:
        customers.with_options(**options)
    assert "another step" in caught.value.message
    assert customers.with_options(["dpflow://shop/n"]).assets[0].key.endswith("/n")


def test_fn_cannot_be_called_around_the_guard(project):
    """The usual unit-test bypass is charged, inside a task and outside any flow."""

    @dp_task(dataset="shop", cost=TENTH)
    def customers() -> int:
        return 1

    @task
    def plain() -> int:
        return customers.fn()

    @flow(name="report")
    def report():
        return plain()

    assert report() == 1
    assert charges(project) == 1


def exhausting(cost=TENTH, **options):
    """Make a step that the budget admits ten times, and a record of its bodies."""
    ran = []

    @dp_task(dataset="shop", cost=cost, **options)
    def customers(week: int) -> int:
        ran.append(week)
        return week

    return customers, ran


def test_ten_tenths_fit_and_the_eleventh_is_refused(project):
    """Ten charges of 0.1 fit a budget of 1 exactly; the body does not run again."""
    customers, ran = exhausting()

    @flow(name="report")
    def report():
        for week in range(11):
            customers(week)

    with pytest.raises(BudgetExhausted) as caught:
        report()
    assert ran == list(range(10))
    assert spent(project)["epsilon"] == "1"
    assert caught.value.asked == {"epsilon": "0.1", "delta": "0"}
    assert caught.value.left == {"epsilon": "0", "delta": "0"}


def test_a_refusal_is_not_served_from_the_cache(project):
    """With persisted results a refusal must not be remembered as an answer."""
    costs = [PureDP(epsilon=2), TENTH]

    @dp_task(
        dataset="shop",
        cost=lambda: costs[0],
        cache_policy=INPUTS,
        persist_result=True,
    )
    def customers(week: str) -> int:
        return 42

    @flow(name="report")
    def report():
        # An argument of this test alone: INPUTS keys are shared by all tasks.
        return customers("cache-of-a-refusal", return_state=True)

    first = report(return_state=True).result(raise_on_failure=False)
    assert first.name == "BudgetRefused"
    costs.pop(0)
    assert report().result() == 42


def test_a_task_made_of_a_step_is_refused_when_it_runs(project):
    """Prefect would keep its arguments. A step that a task calls may run."""
    step = dp_task(dataset="shop", cost=TENTH, name="customers")(lambda week: week)
    over = task(step)
    ways = (over, lambda _: over.submit(1).result(), lambda _: over.map([1]).result())

    @task
    def around(week: int) -> int:
        return step(week)

    @flow(name="report")
    def report():
        for way in ways:
            with pytest.raises(ConfigurationError, match="@task stands over the DP"):
                way(1)
        assert charges(project) == 0
        return around(8)

    assert report() == 8
