"""Tasks inside the body of another step, and steps inside a loader."""

from __future__ import annotations

import pytest

from dpflow import PureDP, dp_flow, dp_task, private_task, release, spend
from dpflow.exceptions import BudgetRefused
from tests.projects import NOISY, POLICY, spent

CANARY = "canary-" + "2718281828"


@dp_task(dataset="shop", cost=NOISY, name="inner")
def inner():
    """Release a number."""
    return release(1.0)


def test_the_flow_fails_and_the_inner_task_never_runs(make_project):
    """The outer task is charged once; the state names it and says what to do."""
    make_project(POLICY)

    @dp_task(dataset="shop", cost=NOISY, name="outer")
    def outer():
        return inner()

    @dp_flow(name="report")
    def report():
        return outer()

    state = report(return_state=True)
    assert state.is_failed()
    assert "the body of DP step 'outer'" in state.message
    assert spent() == "0.1"


def test_a_refused_step_inside_a_loader_stays_a_refusal(make_project):
    """Its text may be made of what was loaded."""
    make_project(POLICY)
    seen = []

    @private_task(name="load")
    def load():
        with spend(dataset="shop", cost=PureDP(epsilon=50), step=CANARY):
            pass

    @dp_flow(name="report")
    def report():
        with pytest.raises(BudgetRefused) as error:
            load()
        seen.append(error.value)

    report(return_state=True)
    assert "inside private task 'load'" in seen[0].message
    assert CANARY not in str(seen[0])
