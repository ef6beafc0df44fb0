"""The flow that `dpflow init` writes runs as it stands."""

from __future__ import annotations

import re
import runpy
from datetime import datetime

import pytest
from prefect.runtime.flow_run import FIELDS

from dpflow.cli import main
from dpflow.guard.project import current_project, forget_projects
from dpflow.ledger.views import accounts


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Go to an empty folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("DPFLOW_LEDGER_URL", "DPFLOW_POLICIES"):
        monkeypatch.delenv(name, raising=False)
    yield tmp_path
    forget_projects()


def dpflow(monkeypatch, *arguments):
    """Run the command line in this process."""
    monkeypatch.setattr("sys.argv", ["dpflow", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code or 0


@pytest.mark.parametrize("theorem", ["gdp", "basic"])
def test_what_init_makes_passes_the_check_and_runs(
    folder, monkeypatch, capsys, theorem
):
    """A schedule publishes the day that has ended; naming that day replays it."""
    arguments = ("--yes", "--filter", theorem, "--dataset", "sales")
    assert dpflow(monkeypatch, "init", *arguments) == 0
    (flow,) = re.findall(r"python (\S+)", capsys.readouterr().out)
    assert dpflow(monkeypatch, "policy", "check", "--strict") == 0
    capsys.readouterr()
    scheduled = datetime.fromisoformat("2026-01-06T01:00:00+02:00")
    monkeypatch.setitem(FIELDS, "scheduled_start_time", lambda: scheduled)
    for days in ([], ["2026-01-04"]):
        monkeypatch.setattr("sys.argv", [flow, *days])
        runpy.run_path(flow, run_name="__main__")
    printed = capsys.readouterr().out
    numbers = re.findall(r"^2026-01-04: (-?\d+)$", printed, re.MULTILINE)
    assert len(numbers) == 2
    assert numbers[0] == numbers[1]
    (dataset,) = [
        view
        for view in accounts(current_project().ledger, "sales")
        if view.kind == "dataset"
    ]
    spent = {"gdp": {"mu_squared": "0.0025"}, "basic": {"epsilon": "0.1"}}
    assert spent[theorem].items() <= dict(dataset.spent).items()
    assert dpflow(monkeypatch, "status", "sales") == 0
    assert re.search(r"daily-report +running.* (21|9) ", capsys.readouterr().out)
