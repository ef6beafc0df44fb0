"""`dp_task` is a Prefect task in every way, and its body is always paid for."""

from __future__ import annotations

import functools
import inspect
import os
from typing import get_type_hints
from unittest.mock import Mock

import pytest
from prefect import Task, allow_failure, flow, task
from prefect.artifacts import Artifact
from prefect.cache_policies import INPUTS
from prefect.futures import as_completed
from prefect.settings import (
    PREFECT_LOGGING_TO_API_ENABLED,
    PREFECT_TASK_DEFAULT_RETRIES,
    Settings,
    temporary_settings,
)

from dpflow import EarlyStopping, PureDP, dp_flow, dp_task, iterations, release
from dpflow.exceptions import ConfigurationError
from dpflow.guard.project import project_label
from dpflow.prefect import DPTask
from tests.ledger.processes import Child
from tests.prefect.matrix.support import books, in_flow, settled, task_runs
from tests.projects import NOISY, POLICY, TENTH, caught, kinds, spent


def test_a_step_does_not_read_the_settings_of_prefect_anew(project, monkeypatch):
    """Prefect's own copy of them takes ten times as long as the rest of a step."""

    @dp_task(dataset="shop", cost=TENTH, noise="own")
    def count() -> int:
        return int(PREFECT_LOGGING_TO_API_ENABLED.value())

    @dp_flow
    def report() -> int:
        with monkeypatch.context() as patched:
            patched.setattr(Settings, "copy_with_update", pytest.fail)
            return count()

    with temporary_settings({PREFECT_LOGGING_TO_API_ENABLED: True}):
        assert report() == 0
        assert PREFECT_LOGGING_TO_API_ENABLED.value()


def test_a_step_keeps_what_makes_it_a_task():
    """Options, hints, signature, docstring and source survive; retries are 0."""
    hook = Mock()

    @dp_task(dataset="shop", cost=TENTH, on_completion=[hook], name="count", retries=2)
    def customers(week: int) -> float:
        """Count them."""
        return 1.0

    assert isinstance(customers, Task)
    assert (customers.name, customers.retries) == ("count", 2)
    assert customers.on_completion_hooks == [hook]
    assert customers.description == "Count them."
    assert get_type_hints(customers.fn) == {"week": int, "return": float}
    assert list(inspect.signature(customers.fn).parameters) == ["week"]
    assert "Count them." in inspect.getsource(customers.fn)
    # Every attempt is a charge of its own, so a retry must be declared.
    with temporary_settings({PREFECT_TASK_DEFAULT_RETRIES: 3}):
        made = dp_task(dataset="shop", cost=TENTH, name="n")(lambda: 1)
        assert (made.retries, task(lambda: 1).retries) == (0, 3)
    # The declaration of a step is fixed, and a misspelt option is an error.
    for name in ("cost", "dataset", "private", "release_key", "retires"):
        with pytest.raises(ConfigurationError, match=f"got {name}=") as error:
            customers.with_options(**{name: "x"})
        assert "another step" in error.value.message


def test_what_the_checks_of_a_definition_let_through():
    """A step of a partial function with a name, and logs that are off."""
    body = functools.partial(lambda week: week, 1)
    step = dp_task(dataset="shop", cost=TENTH, name="n")(body)
    assert (type(step), step.name, step.step.name) == (DPTask, "n", "n")
    private = {"private": ("rows",), "data_version": "1", "log_prints": False}
    assert not dp_task(dataset="shop", cost=TENTH, **private)(
        lambda rows: [*rows]
    ).log_prints


def test_a_body_is_charged_around_every_other_way_to_call_it(project):
    """`fn` in a task; a task over the step is refused, for Prefect keeps arguments."""
    step = dp_task(dataset="shop", cost=TENTH, name="customers")(lambda week: week)
    over, inside = task(step), task(lambda: step.fn(8))
    ways = (over, lambda _: over.submit(1).result(), lambda _: over.map([1]).result())

    @flow(name="report")
    def report():
        for way in ways:
            with pytest.raises(ConfigurationError, match="@task stands over the DP"):
                way(1)
        assert kinds() == []
        return inside(), task(lambda: step(7))()

    assert report() == (8, 7)
    assert kinds() == ["reserve", "settle"] * 2


def test_a_refusal_is_not_served_from_the_cache(project):
    """With persisted results a refusal must not be remembered as an answer."""
    costs = [PureDP(epsilon=2), TENTH]

    options = {"cache_policy": INPUTS, "persist_result": True, "name": "customers"}
    step = dp_task(dataset="shop", cost=lambda: costs[0], **options)
    customers = step(lambda week: week)
    # An argument of this test alone: INPUTS keys are shared by all tasks.
    report = in_flow(lambda: customers("cache-of-a-refusal", return_state=True))
    first = report(return_state=True).result(raise_on_failure=False)
    assert first.name == "BudgetRefused"
    costs.pop(0)
    assert report().result() == "cache-of-a-refusal"


def test_every_way_to_ask_gets_the_value_of_a_replay(project):
    """It is a completed state of its own name, in Prefect's database too."""
    ran = []

    @dp_task(dataset="shop", cost=TENTH, release_key="count/{week}", ignore=("ran",))
    def count(week: str) -> int:
        ran.append(week)
        return len(ran)

    same = task(lambda value: value, name="same")

    @flow(name="report")
    def report():
        states = [count("a", return_state=True) for _ in range(2)]
        future = count.submit("a")
        values = [*(state.result() for state in states), future.result()]
        values += [same(future), same(count("a")), same(count("a", return_state=True))]
        values += [same.submit(allow_failure(future)).result()]
        values += [same.submit(1, wait_for=[future]).result()]
        values += count.map(["a", "a"]).result()
        values += [each.result() for each in as_completed(count.map(["a", "a"]))]
        return values, [*states, future.state]

    run = report(return_state=True)
    values, states = run.result()
    assert values == [1] * 12
    assert {type(value) for value in values} == {int}
    names = ["Completed", "Replayed", "Replayed"]
    assert [state.name for state in states] == names
    assert all(state.is_completed() for state in states)
    assert "cost nothing" in states[1].message
    stored = task_runs(run.state_details.flow_run_id, 14)
    assert [each.state.name for each in stored if "count" in each.name][:2] == names[:2]
    assert (ran, kinds()) == (["a"], ["reserve", "settle"])


def test_an_artifact_says_how_far_a_loop_came(project):
    """Under the step's name, with the sub-steps in words."""
    stopping = EarlyStopping(TENTH, stops=(2, 4, 8))

    @dp_task(dataset="shop", cost=stopping, name="Fit model")
    def fit():
        for step in iterations():
            if step.number == 3:
                break
        return step.number

    assert in_flow(fit, make_flow=dp_flow)() == 3
    artifact = Artifact.get(f"dpflow-step-{project_label()}-fit-model")
    assert (artifact.type, float(artifact.data)) == ("progress", 37.5)
    assert artifact.description == "3 of at most 8 sub-steps"
    assert spent() == "0.3"


@pytest.mark.promise("fork")
def test_a_forked_child_of_a_body_draws_nothing(project):
    """The charge pays for one draw, and each child would have a copy of it."""

    def draw():
        return release(5)

    @dp_task(dataset="shop", cost=NOISY)
    def count() -> list[str]:
        children = [Child(lambda say: say(repr(caught(draw)))) for _ in range(2)]
        draw()
        return [line for child in children for line in child.end()[1]]

    said = in_flow(count, make_flow=dp_flow)()
    assert len(said) == 2
    for text in said:
        assert text.startswith("PublicError(")
        assert "release() was called in a process that" in text
    assert books() == settled(1, "0.1")


@pytest.mark.promise("fork")
def test_a_forked_child_does_not_settle_for_its_parent(make_project):
    """It would post what it has seen itself, and the parent draws on."""
    make_project(POLICY.replace("{epsilon: 1}", "{epsilon: 9}"))

    @dp_task(dataset="shop", cost=EarlyStopping(TENTH, stops=(1, 2, 3)))
    def fit() -> int:
        for step in iterations():
            if step.number == 1:
                child = os.fork()
                if child == 0:
                    return 1
                os.waitpid(child, 0)
        return 3

    def report():
        here = os.getpid()
        try:
            return fit()
        finally:
            if os.getpid() != here:
                os._exit(0)

    assert in_flow(report, make_flow=dp_flow)() == 3
    assert books() == settled(1, "0.3")
