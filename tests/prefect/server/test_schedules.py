"""A scheduled report that is served for real, until its budget is exhausted."""

from __future__ import annotations

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings
from typer.testing import CliRunner

from dpflow.cli import app
from tests.prefect.matrix.laboratory import Laboratory
from tests.prefect.matrix.support import books, wait_until
from tests.projects import POLICY

NAME = "report/every-second"
PAUSING = f"{POLICY}on_exhausted: {{flow: halt, schedule: pause}}\n"
SERVED = """
from datetime import timedelta
from dpflow import PureDP, dp_flow, dp_task
from tests.projects import POLICY

@dp_task(dataset="shop", cost=PureDP(epsilon="0.5"), release_key="count/{tick}")
def count(tick: str) -> int:
    return 1

@dp_flow(name="report")
def report():
    from prefect.runtime import flow_run
    count(str(flow_run.scheduled_start_time))

if __name__ == "__main__":
    report.serve(name="every-second", interval=timedelta(seconds=2), limit=1)
"""


@pytest.mark.slow
def test_a_served_report_halts_pauses_and_pauses_again(tmp_path, monkeypatch):
    """Two ticks fit; the third is an explained skip, and pauses the schedule.

    Serving again forgets the pause (PrefectHQ/prefect#19302): the ledger refuses the
    next tick as well, and it is paused again. Nothing is spent twice.
    """
    with (
        Laboratory(tmp_path) as laboratory,
        temporary_settings({PREFECT_API_URL: laboratory.url}),
    ):
        folder = laboratory.project("served", PAUSING)
        (folder / "served.py").write_text(SERVED, "utf-8")
        monkeypatch.chdir(folder)

        def paused():
            return laboratory.ask(f"deployments/name/{NAME}")["paused"]

        def ended():
            runs = laboratory.ask("flow_runs/filter", limit=200)
            return [run["state_name"] for run in runs if run["end_time"]]

        with laboratory.serving(folder, "served.py"):
            wait_until(lambda: "BudgetExhausted" in ended(), "the third tick")
            wait_until(paused, "the pause")
            assert sorted({*ended()}) == ["BudgetExhausted", "Completed"]
            assert ended().count("Completed") == books().reserved == 2
        before = ended().count("BudgetExhausted")
        refused = CliRunner().invoke(app, ["resume", NAME])
        assert refused.exit_code == 1
        assert "stays paused" in refused.stderr
        assert "`dpflow policy apply shop --new-term --reason TEXT`" in refused.stderr
        assert paused()
        with laboratory.serving(folder, "served.py"):
            wait_until(lambda: not paused(), "the schedule")
            wait_until(lambda: ended().count("BudgetExhausted") > before, "a tick")
            wait_until(paused, "the second pause")
        assert books().reserved == 2
        done = CliRunner().invoke(app, ["resume", NAME, "--force"])
        assert done.exit_code == 0, done.stderr
        assert "refused all the same" in done.stdout
        assert not paused()


@pytest.mark.parametrize("name", ["report", "report/", "/daily"])
def test_a_deployment_is_named_with_its_flow(name):
    """Wrong usage, before the ledger or Prefect is asked."""
    result = CliRunner().invoke(app, ["resume", name])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "FLOW/DEPLOYMENT" in result.stderr


def test_an_unknown_deployment_cannot_be_resumed(make_project):
    """And says where to look."""
    make_project()
    result = CliRunner().invoke(app, ["resume", "report/nowhere"])
    assert result.exit_code == 1
    assert "prefect deployment ls" in result.stderr
