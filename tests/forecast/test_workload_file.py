"""Steps of a workload, as files and command lines write them."""

from __future__ import annotations

import pytest

from dpflow.accounting.costs.early_stopping import EarlyStopping
from dpflow.accounting.costs.notions import PureDP
from dpflow.exceptions import InvalidCost
from dpflow.forecast.counts import WorkloadStep
from dpflow.forecast.workload_file import read_workload, step_from_text, workload_of
from dpflow.ledger.views.runs import RunStep

STOPPING = EarlyStopping(PureDP(epsilon="0.01"), stops=(5, 10))
CELLS = "OutputDP({'1': 0.1, 'b': 0.5})"


def step(cost, reported=None):
    """Return a journaled step."""
    return RunStep(
        reservation="r",
        name="s",
        description=cost.describe(),
        reported=reported,
        key="",
        failed=False,
    )


@pytest.mark.parametrize(
    ("text", "outcome", "told"),
    [(repr(STOPPING), "5", 5), (CELLS, "b", "b"), (CELLS, "1", 1)],
)
def test_an_outcome_is_a_number_or_a_cell(text, outcome, told):
    """A cell that is named by a number is found by it."""
    step = step_from_text(text, 2, outcome)
    assert step.outcome == told
    assert step.cost.realised(told) != step.cost


@pytest.mark.parametrize("outcome", ["0", "11", "b", "-1", "1e3"])
def test_an_outcome_that_cannot_be_is_refused(outcome):
    """Before anything is counted."""
    with pytest.raises(InvalidCost):
        step_from_text(repr(STOPPING), 1, outcome)


def test_numbers_in_a_file_are_read_exactly(tmp_path):
    """A float would have rounded them."""
    path = tmp_path / "work.yaml"
    path.write_text(
        "budget: {epsilon: 0.1, delta: 1e-30}\nsteps: [PureDP(epsilon=0.1)]\n"
    )
    read = read_workload(path)
    assert (read.epsilon * 10, read.delta * 10**30) == (1, 1)
    assert read.steps == (WorkloadStep(PureDP(epsilon="0.1")),)


def test_journaled_steps_are_merged_with_their_outcomes():
    """One that reported what its cost does not know was settled in full."""
    told = [step(STOPPING, 5), step(STOPPING, 5), step(STOPPING, 99), step(STOPPING)]
    assert workload_of(told) == (
        WorkloadStep(STOPPING, 2, 5),
        WorkloadStep(STOPPING, 2),
    )
