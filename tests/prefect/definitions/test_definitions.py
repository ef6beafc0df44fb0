"""What no step, loader or flow can be made of, and what to write instead."""

from __future__ import annotations

import functools

import pytest
from prefect import flow, task

from dpflow import PureDP, dp_flow, dp_task, guarded, private_task
from dpflow.exceptions import ConfigurationError
from dpflow.prefect import DPTask

pytestmark = pytest.mark.quick

#: Nothing runs here: what is defined, or not, says so at once.
ASKS_NO_SERVER = True
TENTH = PureDP(epsilon="0.1")
step = dp_task(dataset="shop", cost=TENTH)
plain_guard = guarded(dataset="shop", cost=TENTH)


def body(week: int = 1) -> int:
    """Stand for a body."""
    return week


@functools.wraps(plain_guard(body))
def wrapped(*args, **kwargs):
    """Stand for a decorator between two of ours."""
    return plain_guard(body)(*args, **kwargs)


ONCE = "would be charged twice"
FLOW = "whose arguments Prefect keeps in its database"
TASK = "is a Prefect task already"


@pytest.mark.parametrize("decorator", [step, plain_guard], ids=["dp_task", "guarded"])
@pytest.mark.parametrize(
    ("inner", "why"),
    [
        (step(body), ONCE),
        (step(body).fn, ONCE),
        (step(body).with_options(name="other", fresh=True), ONCE),
        (plain_guard(body), ONCE),
        (wrapped, ONCE),
        (functools.partial(plain_guard(body), 1), ONCE),
        (functools.partial(step(body), 1), ONCE),
        (flow(body), FLOW),
        (dp_flow(body), FLOW),
        (task(body), TASK),
        (private_task(body), TASK),
    ],
    ids=[
        "dp_task",
        "its fn",
        "another draw of it",
        "guarded",
        "a wrapper of guarded",
        "a partial of guarded",
        "a partial of dp_task",
        "flow",
        "dp_flow",
        "task",
        "private_task",
    ],
)
def test_a_step_is_not_made_of_what_is_wrapped_already(decorator, inner, why):
    """Two charges, or arguments in Prefect's database, are refused when defined."""
    with pytest.raises(ConfigurationError, match=why) as caught:
        decorator(inner)
    assert "goes directly on the function" in caught.value.message


@pytest.mark.parametrize("decorator", [step, plain_guard], ids=["dp_task", "guarded"])
def test_a_partial_needs_a_name(decorator):
    """It says so, and how to give one."""
    with pytest.raises(ConfigurationError, match=r'partial has no name.*name="\.\.\."'):
        decorator(functools.partial(body, 1))


@pytest.mark.parametrize("decorator", [dp_task, guarded])
def test_a_step_without_its_parentheses_says_what_to_write(decorator):
    """Instead of Python's count of arguments."""
    with pytest.raises(ConfigurationError) as caught:
        decorator(body)
    name = decorator.__name__
    assert f'@{name}(dataset="...", cost=Gaussian(' in caught.value.message


@pytest.mark.parametrize("decorator", [dp_flow, private_task])
@pytest.mark.parametrize(
    "nothing", ["text", 5, step(body), flow(body)], ids=["text", "5", "step", "flow"]
)
def test_a_flow_or_loader_without_parentheses_is_checked_too(decorator, nothing):
    """A name given by position is none; a task and a flow are no function."""
    with pytest.raises(ConfigurationError, match=r"made of a function|on the function"):
        decorator(nothing)


def loud(frame: list[int]) -> int:
    """Print what was not released."""
    print("canary-7714", frame)
    return len(frame)


@pytest.mark.parametrize("said", [True, None])
def test_a_step_with_private_arguments_prints_nothing_to_prefect(said):
    """Refused when defined, and when its options change; None is what the flow says."""
    private = dp_task(dataset="shop", cost=TENTH, private=("frame",), data_version="1")
    with pytest.raises(ConfigurationError, match="log_prints= sends what the body"):
        dp_task(
            dataset="shop",
            cost=TENTH,
            private=("frame",),
            data_version="1",
            log_prints=said,
        )(loud)
    with pytest.raises(ConfigurationError, match="log_prints= sends what the body"):
        private(loud).with_options(log_prints=said)
    assert private(loud).with_options(log_prints=False).log_prints is False


def test_a_step_is_still_a_task():
    """What the checks let through."""
    assert type(step(body)) is DPTask
    named = dp_task(dataset="shop", cost=TENTH, name="n")(functools.partial(body, 1))
    assert (type(named), named.name, named.step.name) == (DPTask, "n", "n")
