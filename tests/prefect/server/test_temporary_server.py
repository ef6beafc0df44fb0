"""A project's first flow waits for the server that Prefect starts for it."""

from __future__ import annotations

import pytest
from prefect import Flow
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
    temporary_settings,
)

from dpflow import dp_flow


@pytest.fixture
def waited(monkeypatch):
    """Note how long Prefect would wait for its server whenever a flow is called."""
    found = []

    def called(*_, **__):
        found.append(PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS.value())

    monkeypatch.setattr(Flow, "__call__", called)
    return found


@dp_flow
def nothing():
    """Do nothing."""


def test_a_flow_waits_longer_than_prefect_does(waited):
    """On a busy machine 20 s are too short for a home that is migrated first."""
    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        nothing()
    assert waited == [180]


def test_whoever_says_how_long_is_heeded(waited):
    """And a server that is named is not started."""
    said = {PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS: 7}
    with temporary_settings(said, restore_defaults={PREFECT_API_URL}):
        nothing()
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:1/api"}):
        nothing()
    assert waited == [7, 20]
