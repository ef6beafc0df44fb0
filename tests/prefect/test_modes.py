"""No mode of Prefect shows a private value, in its database, its storage or a log."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import logging
import pickle
import sqlite3
from pathlib import Path

import pytest
from prefect import flow, task
from prefect.client.schemas.objects import State
from prefect.logging.handlers import APILogHandler
from prefect.serializers import JSONSerializer, PickleSerializer
from prefect.settings import (
    PREFECT_LOCAL_STORAGE_PATH,
    PREFECT_SERVER_DATABASE_CONNECTION_URL,
    Settings,
    temporary_settings,
)
from prefect.settings.legacy import _get_settings_fields
from prefect.states import Completed, Failed

from dpflow import PureDP, dp_flow, dp_task, private_task
from dpflow.prefect.states import private_state
from tests.projects import POLICY, caught
from tests.sizes import spread

SECRET, PUBLIC = "planted-1644934066", "public-2236067977"
#: Groups of settings that touch logs, results or what is shown of a run.
GROUPS = ("debug", "logging", "results", "tasks", "telemetry", "cloud", "worker.debug")
SETTINGS = {
    setting.accessor: setting
    for setting in _get_settings_fields(Settings).values()
    if "bool" in repr(setting._type) and setting.accessor.startswith(GROUPS)
}


@private_task
def load():
    """Return private data."""
    return [SECRET]


@private_task(errors="keep")
async def load_later():
    """Return private data from an event loop."""
    return {"name": SECRET}


@private_task
def load_state():
    """Return private data in a state."""
    return Completed(data=[SECRET])


@task
def tidy(rows):
    """Return private data from the body of a step."""
    return [*rows]


@dp_task(dataset="shop", cost=PureDP(epsilon="0.01"), private=("rows",))
def count(turn, rows):
    """Count rows, which are values and no holders of values."""
    assert SECRET in str(rows)
    tidy(rows)
    return turn


@flow
def nested():
    """Return private data from a flow that a flow calls, as a future."""
    return load.submit()


@dp_flow(name="report")
def report():
    """Hand private values on in each way."""
    called, future = load(), load.submit()
    assert called == future.result() == [SECRET]
    count(1, called)
    count.map([2, 3, 4], [future, load_state(), asyncio.run(load_later())]).wait()
    assert SECRET not in repr(load(return_state=True))
    nested(return_state=True)


@flow(name="plain")
def plain():
    """Return what anyone may see, and may be found."""
    return task(lambda: PUBLIC, name="plain")()


#: All settings on, all off, and each alone the other way.
MODES = [
    dict.fromkeys(SETTINGS.values(), True),
    dict.fromkeys(SETTINGS.values(), False),
    *({setting: not setting.value()} for setting in SETTINGS.values()),
]


def everything(folder, terminal):
    """Return what Prefect's database, its result storage and the terminal hold."""
    APILogHandler().flush()
    url = PREFECT_SERVER_DATABASE_CONNECTION_URL.value()
    database = Path(url.removeprefix("sqlite+aiosqlite:///"))
    with contextlib.closing(sqlite3.connect(database, timeout=30)) as connection:
        logs = repr(connection.execute("SELECT * FROM log").fetchall())
    files = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    # Results are pickles in base64.
    stored = [text for file in files for text in (file, base64.b64decode(file))]
    return logs, repr(stored), terminal.getvalue()


def test_no_mode_of_prefect_shows_a_private_value(make_project, tmp_path, monkeypatch):
    """Under each boolean setting on logs and results; the control is a plain task."""
    make_project(POLICY.replace("epsilon: 1}", "epsilon: 99}") + 'data_version: "1"\n')
    terminal, storage = io.StringIO(), tmp_path / "storage"
    handler = logging.StreamHandler(terminal)
    for name in ("prefect", "dpflow", "py.warnings"):
        logger = logging.getLogger(name)
        monkeypatch.setattr(logger, "level", logging.DEBUG)
        monkeypatch.setattr(logger, "handlers", [*logger.handlers, handler])
    assert {"debug_mode", "results.persist_by_default"} <= SETTINGS.keys()
    logged = {SETTINGS["logging.to_api.enabled"]: True}
    for mode in (*MODES[:2], *spread(MODES[2:], 1)):
        with temporary_settings(
            {PREFECT_LOCAL_STORAGE_PATH: storage, **mode, **logged}
        ):
            report()
            plain()
    logs, stored, shown = everything(storage, terminal)
    for text in (logs, stored, shown):
        assert SECRET not in text
        assert PUBLIC in text


@pytest.mark.parametrize("serializer", [PickleSerializer(), JSONSerializer()])
def test_no_stored_result_has_the_data_of_a_private_state(serializer):
    """A flow may return the future of a private task; the control is a task runner."""
    stored = serializer.dumps(private_state([SECRET]))
    assert isinstance(serializer.loads(stored), State)
    assert serializer.loads(stored).data is None
    assert pickle.loads(pickle.dumps(private_state([SECRET]))).data == [SECRET]


def test_a_state_that_a_private_task_returns_keeps_its_meaning(project):
    """A task that says that it failed has failed; its data is not shown."""

    @private_task
    def fail():
        return Failed(data=SECRET, message="no rows")

    @flow
    def run():
        state = fail(return_state=True)
        assert (state.name, state.message) == ("Failed", "no rows")
        assert SECRET not in repr(state)
        assert caught(lambda: fail.submit().result())
        return load()

    assert run() == [SECRET]
