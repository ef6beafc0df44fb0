"""The guide to other schedulers: its files, run by the schedulers themselves.

They need environments of their own, outside of the project, with the scheduler and what
the guard needs (the guide says what):

    DPFLOW_AIRFLOW=/envs/airflow/bin/python DPFLOW_DAGSTER=/envs/dagster/bin/python \
        python -m pytest -m slow tests/guard/test_schedulers.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import blocks
from tests.projects import ROOT

pytestmark = pytest.mark.slow

#: The page's first step, whose first try may fail after the release.
PAGE = """
import json
import visits
import {scheduler}_report as page

tries = []
guarded = visits.visitors

def visitors(day):
    tries.append(day)
    number = guarded(day)
    if {flaky} and len(tries) == 1:
        raise RuntimeError("the network is away")
    return number

visits.visitors = visitors
"""
#: Run the page's flow for a day, and say which tasks ended how.
AIRFLOW = """
run = page.report.test(run_conf={{"day": "{day}"}})
states = {{ti.task_id: str(ti.state) for ti in run.get_task_instances()}}
"""
DAGSTER = """
config = {{"ops": {{"count": {{"config": {{"day": "{day}"}}}}}}}}
run = page.daily_report.execute_in_process(run_config=config, raise_on_error=False)
events = run.all_events
ended = [each for each in events if each.is_step_success or each.is_step_failure]
names = {{True: "success", False: "failed"}}
states = {{each.step_key: names[each.is_step_success] for each in ended}}
"""
FOUND = """
print("FOUND", json.dumps({{"states": states, "tries": len(tries)}}))
"""


@pytest.fixture(params=["airflow", "dagster"])
def scheduler(request: pytest.FixtureRequest) -> str:
    """Name a scheduler whose environment is there."""
    name: str = request.param
    variable = f"DPFLOW_{name.upper()}"
    if not os.environ.get(variable):
        pytest.skip(f"{variable} names no Python that has {name}")
    return name


def written(name: str, folder: Path) -> dict[str, str]:
    """Write a page's files and its ledger; return the environment of its programs."""
    for block in blocks((ROOT / "docs/guides/orchestrators.md").read_text("utf-8")):
        if block.name is not None:
            (folder / "policies").mkdir(exist_ok=True)
            (folder / block.name).write_text(block.text, "utf-8")
    world = {
        **os.environ,
        "PYTHONPATH": f"{folder}:{ROOT}",
        "DPFLOW_LEDGER_URL": f"sqlite:///{folder}/ledger.db",
        "AIRFLOW_HOME": str(folder / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "DAGSTER_HOME": str(folder),
    }
    run([sys.executable, "-m", "dpflow", "ledger", "init"], folder, world)
    if name == "airflow":
        python = os.environ["DPFLOW_AIRFLOW"]
        run([python, "-m", "airflow", "db", "migrate"], folder, world)
    return world


def run(command: list[str], folder: Path, world: dict[str, str]) -> str:
    """Run a program to its end and return what it printed."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=world,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_retry_replays_and_a_refusal_is_final(scheduler: str, tmp_path: Path) -> None:
    """One charge for two tries; then one try, and nothing downstream."""
    world = written(scheduler, tmp_path)
    program = PAGE + {"airflow": AIRFLOW, "dagster": DAGSTER}[scheduler] + FOUND

    def run_of(day: str, *, flaky: bool) -> dict:
        text = program.format(scheduler=scheduler, day=day, flaky=flaky)
        python = os.environ[f"DPFLOW_{scheduler.upper()}"]
        said = run([python, "-c", text], tmp_path, world)
        (line,) = [each for each in said.splitlines() if each.startswith("FOUND ")]
        return json.loads(line.removeprefix("FOUND "))

    assert run_of("monday", flaky=True) == {
        "states": {"count": "success", "publish": "success"},
        "tries": 2,
    }
    refused = run_of("tuesday", flaky=False)
    assert refused["tries"] == 1
    assert refused["states"].pop("count") == "failed"
    # Dagster says nothing of an op that was never started.
    assert set(refused["states"].values()) <= {"upstream_failed"}
    assert run_of("monday", flaky=False)["states"]["publish"] == "success"
    history = ["-m", "dpflow", "history", "visits", "--json"]
    journal = run([sys.executable, *history], tmp_path, world)
    assert journal.count('"settle"') == 1
    assert journal.count('"refuse"') == 1
