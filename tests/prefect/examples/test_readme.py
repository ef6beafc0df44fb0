"""First runs: the README, the flow that `dpflow init` writes, a first ledger."""

from __future__ import annotations

import re
import runpy
import shutil
from datetime import datetime

import pytest
from prefect.runtime.flow_run import FIELDS

from dpflow import Gaussian
from dpflow.accounting import make_filter
from dpflow.cli import main
from dpflow.forecast.counting import WorkloadStep, runs_of
from flows import start
from tests.pages import run_page
from tests.projects import ROOT, account

README = (ROOT / "README.md").read_text("utf-8")
AGAIN = """
```console
$ python report.py > once && python report.py > again
$ diff <(grep -o "monday.*" once) <(grep -o "monday.*" again)
$ dpflow status visits --details
... mu_squared 0.0025 ...
```
"""


def test_the_example_runs_and_again_spends_nothing(tmp_path, forked):
    """Policy, `dpflow ledger init` and report.py as they stand in the README."""
    assert run_page(README + AGAIN, tmp_path, **forked) == 7


def admitted(theorem, epsilon):
    """Count the sigma 20 Gaussians that a filter admits."""
    rule = make_filter(theorem, epsilon=epsilon, delta="1e-6")
    return runs_of(rule, (WorkloadStep(Gaussian(sensitivity=1, sigma=20)),))


def test_the_table_of_filters_is_true():
    """The admitted steps of the table are what the filters admit."""
    lines = [line for line in README.splitlines() if line.startswith("| `")]
    for theorem in ("gdp", "auto", "zcdp", "rdp"):
        (row,) = [line for line in lines if f"`{theorem}`" in line.split("|")[1]]
        numbers = [int(text) for text in row.split("|")[3].split("/")]
        assert numbers == [admitted(theorem, 1), admitted(theorem, 5)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Go to an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def dpflow(monkeypatch, *arguments):
    """Run the command line in this process."""
    monkeypatch.setattr("sys.argv", ["dpflow", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code


def test_what_init_makes_publishes_the_day_that_has_ended(folder, monkeypatch, capsys):
    """By its schedule; naming that day replays it."""
    dpflow(monkeypatch, "init", "--yes", "--filter", "basic", "--dataset", "sales")
    (flow,) = re.findall(r"python (\S+)", capsys.readouterr().out)
    dpflow(monkeypatch, "policy", "check", "--strict")
    scheduled = datetime.fromisoformat("2026-01-06T01:00:00+02:00")
    monkeypatch.setitem(FIELDS, "scheduled_start_time", lambda: scheduled)
    for days in ([], ["2026-01-04"]):
        monkeypatch.setattr("sys.argv", [flow, *days])
        runpy.run_path(flow, run_name="__main__")
    printed = capsys.readouterr().out
    numbers = re.findall(r"^2026-01-04: (-?\d+)$", printed, re.MULTILINE)
    assert len(numbers) == 2
    assert numbers[0] == numbers[1]
    assert account("sales").spent["epsilon"] == "0.1"


def test_the_first_run_makes_a_ledger_and_never_another(folder, monkeypatch):
    """Its id is pinned; a lost one is not replaced, for a new one would forget."""
    shutil.copytree(ROOT / "policies", folder / "policies")
    (folder / "pyproject.toml").touch()
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pin, ledger = folder / "policies" / "ledger.lock", folder / ".dpflow" / "ledger.db"
    pin.unlink(missing_ok=True)
    start.make_first_ledger()
    pinned, made = pin.read_text("utf-8"), ledger.stat().st_ino
    start.make_first_ledger()
    assert (pin.read_text("utf-8"), ledger.stat().st_ino) == (pinned, made)
    shutil.rmtree(ledger.parent)
    start.make_first_ledger()
    assert not ledger.exists()
