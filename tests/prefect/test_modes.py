"""No mode of Prefect shows a private value, in its database, its storage or a log."""

from __future__ import annotations

import io
import logging
import pickle

import pytest
from prefect import flow
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.logging.handlers import APILogHandler
from prefect.serializers import JSONSerializer, PickleSerializer
from prefect.settings import PREFECT_LOCAL_STORAGE_PATH, Settings, temporary_settings
from prefect.settings.legacy import _get_settings_fields
from prefect.states import Failed

from dpflow import private_task
from dpflow.prefect.states import private_state
from tests.prefect.matrix import canaries
from tests.prefect.matrix.test_canaries import decode_results, read_tables
from tests.projects import POLICY, caught
from tests.sizes import spread

SECRET = canaries.TEXT
#: Groups of settings that touch logs, results or what is shown of a run.
GROUPS = ("debug", "logging", "results", "tasks", "telemetry", "cloud", "worker.debug")
SETTINGS = {
    setting.accessor: setting
    for setting in _get_settings_fields(Settings).values()
    if "bool" in repr(setting._type) and setting.accessor.startswith(GROUPS)
}
#: All settings on, all off; in the campaign each alone the other way, too.
MODES = [
    dict.fromkeys(SETTINGS.values(), True),
    dict.fromkeys(SETTINGS.values(), False),
    *({setting: not setting.value()} for setting in SETTINGS.values()),
]


def test_no_mode_of_prefect_shows_a_private_value(make_project, tmp_path, monkeypatch):
    """Under each boolean setting on logs and results; what is public is found."""
    make_project(POLICY.replace("epsilon: 1}", "epsilon: 99}") + 'data_version: "1"\n')
    terminal, storage = io.StringIO(), tmp_path / "storage"
    handler = logging.StreamHandler(terminal)
    for name in ("prefect", "dpflow", "py.warnings"):
        logger = logging.getLogger(name)
        monkeypatch.setattr(logger, "level", logging.DEBUG)
        monkeypatch.setattr(logger, "handlers", [*logger.handlers, handler])
    assert {"debug_mode", "results.persist_by_default"} <= SETTINGS.keys()
    logged = {SETTINGS["logging.to_api.enabled"]: True}
    for mode in (*MODES[:2], *spread(MODES[2:], 0)):
        with temporary_settings(
            {PREFECT_LOCAL_STORAGE_PATH: storage, **mode, **logged}
        ):
            canaries.succeed()
    APILogHandler().flush()
    files = [path.read_bytes() for path in storage.rglob("*") if path.is_file()]
    stored = repr([file + decode_results(file) for file in files])
    tables, shown = read_tables(), terminal.getvalue()
    for text in (*tables.values(), stored, shown):
        assert SECRET not in text
    for printed in (canaries.PRINTED, canaries.WARNED):
        assert printed not in str(tables)
    assert canaries.STORED in stored
    assert all(canaries.LOGGED in text for text in (tables["log"], shown))


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
        return canaries.load_state()

    assert run() == [SECRET]


def test_a_private_task_inherits_no_option_that_shows_its_result():
    """Neither from its flow nor from a setting: each is off, and not merely unset."""
    load = private_task(lambda: [SECRET])
    assert load.persist_result is False
    assert load.log_prints is False
    assert load.cache_policy is NO_CACHE
