"""Experiments with other processes: each has a project of its own, one server serves.

They run side by side while the tests that need only this process are going on.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import httpx

from tests.forks import SERVING, Forked
from tests.prefect.database import copy_database
from tests.prefect.matrix.support import wait_until
from tests.projects import ROOT, fill_project

_PROGRAM = "from tests.prefect.matrix.programs import main; main()"
_AT_ONCE = 3
#: Seconds that an experiment may take where other tests keep the machine busy.
_PATIENCE = 3600

Process = subprocess.Popen[bytes] | Forked


class Laboratory:
    """A Prefect server on loopback, and folders for experiments with it.

    Args:
        folder: An empty folder.
    """

    def __init__(self, folder: Path) -> None:
        self.home = folder / "prefect"
        self._folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}/api"
        # A client takes long to make; it is asked again and again.
        self._client = httpx.Client(base_url=self.url, timeout=120)
        self._processes: list[Process] = []
        self._forks: socket.socket | None = None
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(_AT_ONCE)
        self._results: dict[Callable[..., Any], Future[Any]] = {}

    def __enter__(self) -> Self:
        self.home.mkdir()
        copy_database(self.home / "prefect.db")
        arguments = ["server", "start", "--host", "127.0.0.1", "--port", self._port]
        # For how long a run waits that its deployment's `concurrency_limit` holds up.
        own = {
            "PREFECT_SERVER_DEPLOYMENTS_CONCURRENCY_SLOT_WAIT_SECONDS": "5",
            "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "true",
        }
        command = ["-m", "prefect", *map(str, arguments)]
        self._launch(command, self._folder, "server", **own)
        self._forks, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with theirs:
            loaded = "import tests.prefect.matrix.programs"
            serving = SERVING.format(descriptor=theirs.fileno(), loaded=loaded)
            kept = (theirs.fileno(),)
            self._launch(["-c", serving], self._folder, "forks", kept=kept)
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        for process in reversed(self._processes):
            stop(process)
        if self._forks:
            self._forks.close()
        self._client.close()

    def wait_for_server(self) -> None:
        """Wait until the server answers."""
        wait_until(self._healthy, "Prefect's server", 600)

    def begin(self, experiment: Callable[[Laboratory], Any]) -> None:
        """Have an experiment made when there is room for it."""
        if experiment not in self._results:
            self._results[experiment] = self._pool.submit(self._made, experiment)

    def result(self, experiment: Callable[[Laboratory], Any]) -> Any:
        """Return what an experiment found."""
        self.begin(experiment)
        return self._results[experiment].result(timeout=_PATIENCE)

    def _made(self, experiment: Callable[[Laboratory], Any]) -> Any:
        self.wait_for_server()
        return experiment(self)

    def _healthy(self) -> bool:
        try:
            return self._client.get("health", timeout=5).is_success
        except httpx.TransportError:
            return False

    def project(self, name: str, *policies: str) -> Path:
        """Return the folder of a new project."""
        folder = self.folder(name)
        fill_project(folder, *policies)
        return folder

    def folder(self, name: str) -> Path:
        """Return a new, empty folder."""
        folder = self._folder / name
        folder.mkdir()
        return folder

    @contextmanager
    def running(
        self, folder: Path, *program: object, **variables: str
    ) -> Iterator[Process]:
        """Run a program of `programs.py` for the length of a block."""
        process = self.start(folder, *program, **variables)
        try:
            yield process
        finally:
            stop(process)

    def command(self, folder: Path, *arguments: str, **variables: str) -> str:
        """Run a Python module to its end, as its user would; return what it said."""
        log = folder / f"{arguments[0]}.log"
        before = log.stat().st_size if log.exists() else 0
        words = ["-m", *arguments]
        process = self._fork(words, folder, arguments[0], **variables)
        code = process.wait(timeout=600)
        said = log.read_bytes()[before:].decode()
        assert code == 0, said[-4000:]
        return said

    @contextmanager
    def serving(
        self, folder: Path, *arguments: str, **variables: str
    ) -> Iterator[None]:
        """Run a Python module for the length of a block."""
        process = self._launch(["-m", *arguments], folder, arguments[0], **variables)
        try:
            yield
        finally:
            stop(process)

    def start(self, folder: Path, *program: object, **variables: str) -> Process:
        """Start a program of `programs.py` in a project."""
        words = ["-c", _PROGRAM, *map(str, program)]
        # Prefect reads its own when it is loaded, which forks have behind them.
        late = any(name.startswith("PREFECT_") for name in variables)
        run = self._launch if late else self._fork
        return run(words, folder, str(program[0]), **variables)

    def run(self, folder: Path, *program: object, **variables: str) -> Any:
        """Run a program to its end and return what it told."""
        process = self.start(folder, *program, **variables)
        code = process.wait(timeout=1200)
        name = program[0]
        assert code == 0, (folder / f"{name}.log").read_text("utf-8")[-4000:]
        told = variables.get("TOLD", name)
        return json.loads((folder / f"{told}.json").read_text("utf-8"))

    def _fork(
        self, words: list[str], folder: Path, log: str, **variables: str
    ) -> Forked:
        """Run words in a fork of the process that has loaded Prefect."""
        assert self._forks is not None
        program = {
            "folder": str(folder),
            "words": words,
            "environment": self._environment(variables),
        }
        with Path(os.devnull).open() as none, (folder / f"{log}.log").open("ab") as out:
            streams = (none.fileno(), out.fileno(), out.fileno())
            with self._lock:
                process = Forked(self._forks, program, streams)
                self._processes.append(process)
        return process

    def _environment(self, variables: dict[str, str]) -> dict[str, str]:
        return {
            **os.environ,
            "PREFECT_HOME": str(self.home),
            "PREFECT_API_URL": self.url,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
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
        with self._lock:
            self._processes.append(process)
        return process

    def ask(self, path: str, **body: Any) -> Any:
        """Ask Prefect's server; with a body, by POST."""

        def answer() -> httpx.Response | None:
            kind = "POST" if body else "GET"
            given = self._client.request(kind, path, json=body or None)
            # Its database is locked: Prefect's own client asks again, too.
            return (
                None if given.status_code == httpx.codes.SERVICE_UNAVAILABLE else given
            )

        found = wait_until(answer, f"an answer about {path}")
        found.raise_for_status()
        return found.json()

    def state(self, kind: str, identity: object) -> str:
        """Return the type of the state of a flow run or a task run."""
        return str(self.ask(f"{kind}_runs/{identity}")["state_type"])

    def reaches(self, kind: str, identity: object, state: str) -> bool:
        """Wait until a run is in a state."""
        return bool(
            wait_until(
                lambda: self.state(kind, identity) == state,
                f"{kind} run {state}",
                # Each question takes the server's time, and many wait at once.
                pause_at_most=1,
            )
        )

    def task_reaches(self, flow_run: object, name: str, *states: str) -> str:
        """Wait until a task of a flow run is in one of the states; return which."""

        def state() -> str | None:
            found = self.tasks(flow_run).get(name)
            return found if found in states else None

        what = f"task {name} {states}"
        return str(wait_until(state, what, pause_at_most=1))

    def tasks(self, flow_run: object) -> dict[str, str]:
        """Return the state of each task run of a flow run by the task's name."""
        only = {"id": {"any_": [str(flow_run)]}}
        found = self.ask("task_runs/filter", flow_runs=only)
        return {each["name"].rsplit("-", 1)[0]: each["state_type"] for each in found}


def stop(process: Process) -> None:
    """End a process and all that it has started."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
