"""What no step, loader or flow can be made of, and what to write instead."""

from __future__ import annotations

import functools

import pytest
from prefect import flow, task

from dpflow import dp_flow, dp_task, guarded, private_task
from dpflow.exceptions import ConfigurationError
from dpflow.prefect import DPTask
from tests.projects import TENTH

pytestmark = pytest.mark.quick

#: Nothing runs here: what is defined, or not, says so at once.
ASKS_NO_SERVER = True
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
WRAPPED = [
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
]


@pytest.mark.parametrize("decorator", [step, plain_guard], ids=["dp_task", "guarded"])
def test_a_step_is_not_made_of_what_is_wrapped_already(decorator):
    """Two charges, or arguments in Prefect's database, are refused when defined."""
    for inner, why in WRAPPED:
        with pytest.raises(ConfigurationError, match=why) as caught:
            decorator(inner)
        assert "goes directly on the function" in caught.value.message
    with pytest.raises(ConfigurationError, match=r'partial has no name.*name="\.\.\."'):
        decorator(functools.partial(body, 1))


def test_a_task_and_a_flow_are_no_function():
    """Decorators that may stand without parentheses say so, too."""
    for decorator in (dp_flow, private_task):
        for nothing in ("text", 5, step(body), flow(body)):
            with pytest.raises(
                ConfigurationError, match=r"made of a f|on the function"
            ):
                decorator(nothing)


def test_a_step_is_still_a_task():
    """What the checks let through."""
    assert type(step(body)) is DPTask
    named = dp_task(dataset="shop", cost=TENTH, name="n")(functools.partial(body, 1))
    assert (type(named), named.name, named.step.name) == (DPTask, "n", "n")
