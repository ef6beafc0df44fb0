"""Experiments with other processes; each has a project of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.forks import Forked
from tests.pages import fork_program
from tests.prefect.matrix.support import flow_run, task_runs, wait_until
from tests.projects import ROOT, fill_project

_PROGRAM = "from tests.prefect.matrix.programs import main; main()"


class Laboratory:
    """Folders for experiments with a Prefect server on loopback.

    Args:
        folder: An empty folder.
        world: Variables that name the server, and what is forked.
    """

    def __init__(self, folder: Path, world: dict[str, str]) -> None:
        self.home = folder / "prefect"
        self.home.mkdir()
        self.url = world["PREFECT_API_URL"]
        self._folder = folder
        self._world = world

    def project(self, name: str, *policies: str) -> Path:
        """Return the folder of a new project."""
        folder = self._folder / name
        folder.mkdir()
        fill_project(folder, *policies)
        return folder

    @contextmanager
    def running(
        self, folder: Path, *program: object, **variables: str
    ) -> Iterator[Forked]:
        """Run a program of `programs.py` for the length of a block."""
        environment = {
            **os.environ,
            **self._world,
            "PREFECT_HOME": str(self.home),
            "PREFECT_RUNNER_POLL_FREQUENCY": "1",
            "PYTHONPATH": str(ROOT),
            **variables,
        }
        words = ["-c", _PROGRAM, *map(str, program)]
        log = f"{program[0]}.log"
        process = fork_program(self._world, words, folder, log, environment)
        try:
            yield process
        finally:
            stop(process)

    def run(self, folder: Path, *program: object, **variables: str) -> Any:
        """Run a program to its end and return its JSON."""
        name = program[0]
        with self.running(folder, *program, **variables) as process:
            code = process.wait(timeout=1200)
        assert code == 0, (folder / f"{name}.log").read_text("utf-8")[-4000:]
        return json.loads((folder / f"{name}.json").read_text("utf-8"))

    def state(self, run: object) -> str:
        """Return the type of the state of a flow run."""
        return str(flow_run(run).state_type.value)

    def tasks(self, run: object) -> dict[str, str]:
        """Return the state of each task run of a flow run by the task's name."""
        runs = task_runs(run, 0)
        return {each.name.rsplit("-", 1)[0]: each.state_type.value for each in runs}

    def reaches(self, run: object, state: str, task: str) -> None:
        """Wait until a task of a flow run is in a state."""

        def reached() -> bool:
            return self.tasks(run).get(task) == state

        # Each question takes the server's time.
        wait_until(reached, f"{task} {state}", pause_at_most=1)


def stop(process: Forked) -> None:
    """End a process and all that it has started."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture(scope="session")
def laboratory(forked, tmp_path_factory):
    """Return the experiments with the server of all tests."""
    return Laboratory(tmp_path_factory.mktemp("laboratory"), forked)
