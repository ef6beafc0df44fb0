"""Iterative steps in Prefect: a progress artifact, and who pays for what ran."""

from __future__ import annotations

import pytest
from prefect.artifacts import Artifact

from dpflow import EarlyStopping, PureDP, dp_flow, dp_task, iterations
from dpflow.guard.project import current_project
from tests.prefect.support import spent

COST = EarlyStopping(PureDP(epsilon="0.1"), stops=(2, 4, 8))


@pytest.mark.parametrize(("stop", "shown"), [(3, 37.5), (8, 100.0)])
def test_an_artifact_says_how_far_the_loop_came(make_project, stop, shown):
    """Under the step's name, with the sub-steps in words."""
    make_project()

    @dp_task(dataset="shop", cost=COST, name=f"Fit model {stop}")
    def fit():
        for step in iterations():
            if step.number == stop:
                break
        return stop

    @dp_flow(name="report")
    def report():
        return fit()

    assert report() == stop
    artifact = Artifact.get(f"dpflow-step-fit-model-{stop}")
    assert artifact.type == "progress"
    assert float(artifact.data) == pytest.approx(shown)
    assert artifact.description == f"{stop} of at most 8 sub-steps"
    assert spent(current_project()) == {"epsilon": f"0.{stop}", "delta": "0"}
