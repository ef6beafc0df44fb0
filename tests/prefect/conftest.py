"""One Prefect server for all tests of a process, and a project for each test."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import certifi
import pytest


def one_authority(folder: Path) -> str:
    """Write one of the certificates that clients trust to a file; return its path."""
    end = "-----END CERTIFICATE-----\n"
    path = folder / "authority.pem"
    first, _, _ = Path(certifi.where()).read_text("utf-8").partition(end)
    path.write_text(first + end, "utf-8")
    return str(path)


# Read when Prefect is imported. A home of its own: persisted results would otherwise
# outlive the tests and be served by the next run's cache.
_HOME = tempfile.mkdtemp(prefix="dpflow-prefect-")
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)
os.environ["PREFECT_HOME"] = _HOME
# A loaded machine may keep the tests' server from answering for a minute.
os.environ["PREFECT_API_REQUEST_TIMEOUT"] = "240"
# On a loaded machine runs begin late, and marking them so locks the database of the
# server against everybody for a minute (PrefectHQ/prefect#10188, #18934).
os.environ["PREFECT_SERVER_SERVICES_LATE_RUNS_ENABLED"] = "false"
# A quarter of what a server computes, and what it does at its start.
os.environ["PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED"] = "false"
os.environ["PREFECT_API_BLOCKS_REGISTER_ON_START"] = "false"
# Prefect makes many clients, and each would read the certificates of all authorities
# and request a token.
CLIENTS = {
    "PREFECT_API_SSL_CERT_FILE": one_authority(Path(_HOME)),
    "PREFECT_CLIENT_CSRF_SUPPORT_ENABLED": "false",
}
os.environ |= CLIENTS

import prefect
from prefect.server.api import server
from prefect.settings import (
    PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
    PREFECT_LOGGING_TO_API_ENABLED,
    temporary_settings,
)
from prefect.testing import utilities

from dpflow.config import settings
from dpflow.guard.project import current_project, forget_projects
from dpflow.ledger import create_ledger, pin_ledger
from dpflow.prefect import client_calls, delivery
from dpflow.prefect import events as prefect_events
from tests import projects
from tests.pages import fork_program, forking_process

# As the timeout above.
client_calls.PATIENCE_SECONDS = 240.0

POLICY = f'{projects.POLICY}data_version: "1"\nflows: {{report: {{}}, parent: {{}}}}\n'


def _scope(nodeid: str) -> str:
    """Return what of these tests stays in one process.

    Each process has its server, so a file stays in one; and so does the matrix, whose
    experiments are made once. Pages share nothing.
    """
    file, _, _ = nodeid.partition("::")
    if file.endswith("/test_pages.py"):
        return nodeid
    return file.rpartition("/")[0] if "/matrix/" in file else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Keep together what stays in one process, where several run the tests."""
    from xdist.scheduler import LoadScopeScheduling

    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = _scope
    return scheduler


UPGRADE = ("server", "database", "upgrade", "-y")


def _server_folder():
    """Make the folder of the server, with a copy of an empty database.

    Each server would take many seconds to make its own. The one that is copied stays
    in the environment.
    """
    folder = tempfile.mkdtemp(prefix="dpflow-prefect-")
    empty = Path(sys.prefix) / f"prefect-{prefect.__version__}.db"
    with empty.with_suffix(".lock").open("w") as lock:
        # Of several processes of tests one makes it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not empty.exists():
            with tempfile.TemporaryDirectory(dir=sys.prefix) as home:
                subprocess.run(
                    [sys.executable, "-m", "prefect", *UPGRADE],
                    env={**os.environ, "PREFECT_HOME": home},
                    capture_output=True,
                    check=True,
                )
                (Path(home) / "prefect.db").replace(empty)
    shutil.copyfile(empty, Path(folder) / "prefect-test.db")
    return folder


@pytest.fixture(scope="session", autouse=True)
def forked(tmp_path_factory):
    """Run one ephemeral server; return the variables with which pages run as forks.

    The server is a fork itself, of a process that has loaded Prefect.
    """
    home = tmp_path_factory.mktemp("prefect")
    world = {**CLIENTS, "PREFECT_HOME": str(home)}
    with contextlib.ExitStack() as stack:

        def start(args, env):
            port = args[args.index("--port") + 1]
            world["PREFECT_API_URL"] = f"http://127.0.0.1:{port}/api"
            control = stack.enter_context(forking_process(home, **world))
            world["PROGRAMS"] = str(control.fileno())
            words = [str(Path(__file__).with_name("patient_server.py")), *args[3:]]
            return fork_program(world, words, home, "server.log", env)

        forks = SimpleNamespace(Popen=start, TimeoutExpired=subprocess.TimeoutExpired)
        stack.enter_context(mock.patch.object(server, "subprocess", forks))
        stack.enter_context(mock.patch.object(utilities, "mkdtemp", _server_folder))
        with (
            utilities.prefect_test_harness(server_startup_timeout=600),
            temporary_settings(
                {
                    # Its thread adds a second to every sync flow run
                    # (PrefectHQ/prefect#19641, #21276).
                    PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,
                    # A tenth of what a server computes.
                    PREFECT_LOGGING_TO_API_ENABLED: False,
                }
            ),
        ):
            yield world


@pytest.fixture
def make_project(tmp_path, monkeypatch):
    """Return a function that makes a project with one policy and a new ledger."""
    yield lambda policy=POLICY: projects.make_project(tmp_path, monkeypatch, policy)
    forget_projects()


@pytest.fixture
def project(make_project):
    """Return a project whose budget is epsilon 1 under the basic filter."""
    make_project()
    return current_project()


@pytest.fixture
def sent(monkeypatch):
    """Return the events that Prefect would get, those of other tests left out."""
    assert delivery.flush()
    events = []
    monkeypatch.setattr(
        prefect_events, "emit_event", lambda **event: events.append(event)
    )
    return events


@pytest.fixture
def examples(tmp_path, monkeypatch):
    """Go to a folder with the policies of the example flows and a new ledger."""
    source = Path(__file__).resolve().parents[2] / "policies"
    shutil.copytree(source, tmp_path / "policies")
    (tmp_path / "policies" / "ledger.lock").unlink(missing_ok=True)
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path)
    setup = settings()
    with contextlib.closing(create_ledger(setup.ledger_url)) as ledger:
        pin_ledger(ledger, setup.policies)
    yield tmp_path
    forget_projects()
