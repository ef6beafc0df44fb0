"""One Prefect server for all tests of a process, and a project for each test."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from subprocess import TimeoutExpired
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
# A quarter of what a server computes.
os.environ["PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED"] = "false"
# Prefect makes many clients, and each would read the certificates of all authorities.
AUTHORITY = {"PREFECT_API_SSL_CERT_FILE": one_authority(Path(_HOME))}
os.environ |= AUTHORITY

from prefect.server.api import server
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
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
from tests.prefect.database import copy_database

# As the timeout above.
client_calls.PATIENCE_SECONDS = 240.0

POLICY = f'{projects.POLICY}data_version: "1"\nflows: {{report: {{}}, parent: {{}}}}\n'


def _room(nodeid: str) -> str:
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
    """Share the tests out by rooms, where several processes run them."""
    from xdist.scheduler import LoadScopeScheduling

    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = _room
    return scheduler


def _server_folder():
    """Make the folder of the server's database, with the database."""
    folder = tempfile.mkdtemp(prefix="dpflow-prefect-")
    copy_database(Path(folder) / "prefect-test.db")
    return folder


@pytest.fixture(scope="session", autouse=True)
def _served(prefect_server):
    """Have the server run."""


@pytest.fixture(scope="session")
def programs(tmp_path_factory):
    """Give what starts programs as forks of one process."""
    with forking_process(tmp_path_factory.mktemp("forks")) as control:
        yield control


@pytest.fixture(scope="session")
def prefect_server(programs, tmp_path_factory):
    """Run one ephemeral server, as such a fork."""
    folder = tmp_path_factory.mktemp("server")

    def start(args, env):
        return fork_program(programs, args[1:], folder, env, "server.log")

    forks = SimpleNamespace(Popen=start, TimeoutExpired=TimeoutExpired)
    with (
        mock.patch.object(server, "subprocess", forks),
        mock.patch.object(utilities, "mkdtemp", _server_folder),
        utilities.prefect_test_harness(server_startup_timeout=600),
        # The heartbeat thread adds a second to every sync flow run
        # (PrefectHQ/prefect#19641, #21276). Logs, which the harness turns off, are a
        # tenth of what a server computes.
        temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}),
    ):
        yield


@pytest.fixture(scope="session")
def forked(programs, prefect_server, tmp_path_factory):
    """Return the variables with which pages run as forks, with that server."""
    return {
        **AUTHORITY,
        "PREFECT_HOME": str(tmp_path_factory.mktemp("prefect")),
        "PREFECT_API_URL": PREFECT_API_URL.value(),
        "PROGRAMS": str(programs.fileno()),
    }


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
