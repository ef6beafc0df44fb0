"""Experiments with other processes; each has a project of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from tests.forks import SERVING, Forked
from tests.prefect.matrix.support import flow_run, task_runs, wait_until
from tests.projects import ROOT, fill_project

_PROGRAM = "from tests.prefect.matrix.programs import main; main()"

Process = subprocess.Popen[bytes] | Forked


class Laboratory:
    """Folders for experiments with a Prefect server on loopback.

    Args:
        folder: An empty folder.
        url: Address of the server.
    """

    def __init__(self, folder: Path, url: str) -> None:
        self.home = folder / "prefect"
        self.home.mkdir()
        self._folder = folder
        self._processes: list[Process] = []
        self.url = url
        self._forks, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with theirs:
            loaded = "import tests.prefect.matrix.programs"
            serving = SERVING.format(descriptor=theirs.fileno(), loaded=loaded)
            kept = (theirs.fileno(),)
            self._launch(["-c", serving], self._folder, "forks", kept=kept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            stop(process)
        self._forks.close()

    def project(self, name: str, *policies: str) -> Path:
        """Return the folder of a new project."""
        folder = self._folder / name
        folder.mkdir()
        fill_project(folder, *policies)
        return folder

    @contextmanager
    def running(
        self, folder: Path, *program: object, **variables: str
    ) -> Iterator[Process]:
        """Run a program of `programs.py` for the length of a block."""
        words = ["-c", _PROGRAM, *map(str, program)]
        # Prefect reads its own when it is loaded, which forks have behind them.
        late = any(name.startswith("PREFECT_") for name in variables)
        run = self._launch if late else self._fork
        process = run(words, folder, str(program[0]), **variables)
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

    def _fork(
        self, words: list[str], folder: Path, log: str, **variables: str
    ) -> Forked:
        """Run words in a fork of the process that has loaded Prefect."""
        program = {
            "folder": str(folder),
            "words": words,
            "environment": self._environment(variables),
        }
        with Path(os.devnull).open() as none, (folder / f"{log}.log").open("ab") as out:
            streams = (none.fileno(), out.fileno(), out.fileno())
            process = Forked(self._forks, program, streams)
        self._processes.append(process)
        return process

    def _environment(self, variables: dict[str, str]) -> dict[str, str]:
        return {
            **os.environ,
            "PREFECT_HOME": str(self.home),
            "PREFECT_API_URL": self.url,
            "PREFECT_RUNNER_POLL_FREQUENCY": "1",
            "PYTHONPATH": str(ROOT),
            **variables,
        }

    def _launch(
        self,
        command: list[str],
        folder: Path,
        log: str,
        kept: tuple[int, ...] = (),
        **variables: str,
    ) -> subprocess.Popen[bytes]:
        with (folder / f"{log}.log").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, *command],
                cwd=folder,
                env=self._environment(variables),
                pass_fds=kept,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # What it starts is stopped with it.
                start_new_session=True,
            )
        self._processes.append(process)
        return process

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


def stop(process: Process) -> None:
    """End a process and all that it has started."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
