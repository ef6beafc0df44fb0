"""Prefect's own telemetry: spans and the client metrics endpoint."""

from __future__ import annotations

import contextlib
import traceback
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from prefect import flow
from prefect.settings import (
    PREFECT_CLIENT_METRICS_ENABLED,
    PREFECT_CLIENT_METRICS_PORT,
    temporary_settings,
)
from prefect.utilities import services
from typer.testing import CliRunner

import dpflow
from dpflow import PureDP, dp_task
from dpflow.cli import app
from tests.projects import TENTH

SECRET = "canary-161803"


class Recorded(trace.NonRecordingSpan):
    """A span that keeps what it is told."""

    def __init__(self) -> None:
        super().__init__(trace.INVALID_SPAN_CONTEXT)
        self.told: dict[str, Any] = {}

    def set_attributes(self, attributes: Any) -> None:
        """Keep them."""
        self.told.update(attributes)

    def record_exception(self, exception: BaseException, *_: Any, **__: Any) -> None:
        """Keep the text that a recorder writes of it."""
        self.told["exception"] = "".join(traceback.format_exception(exception))

    def set_status(self, *status: Any, **more: Any) -> None:
        """Keep it."""
        self.told["status"] = f"{status} {more}"


@pytest.fixture
def endpoint() -> Iterator[Any]:
    """Turn Prefect's metrics on; return what reads them."""

    def read() -> str:
        assert services._metrics_server is not None
        port = services._metrics_server[0].server_port
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
            return str(reply.read().decode())

    on = {PREFECT_CLIENT_METRICS_ENABLED: True, PREFECT_CLIENT_METRICS_PORT: 0}
    with temporary_settings(on):
        yield read
        services.stop_client_metrics_server()


@dp_task(dataset="shop", cost=TENTH, private=("rows",), release_key="sum/{day}")
def total(rows: list[str], day: str) -> str:
    """Return, or fail with, what is private."""
    if day == "bad":
        raise ValueError(*rows)
    return rows[0]


@dp_task(dataset="shop", cost=PureDP(epsilon=5))
def too_much() -> str:
    """Never run."""
    return SECRET


def spans_of(call: Any) -> dict[str, Any]:
    """Return the attributes that the task's span has after a call in a flow."""
    span = Recorded()

    @flow
    def report() -> None:
        with contextlib.suppress(Exception), trace.use_span(span):
            call()

    report()
    return span.told


def test_spans_and_gauges_tell_names_and_numbers_and_no_data(
    make_project: Any, endpoint: Any
) -> None:
    """Granted, replayed, failed and refused; neither values nor texts of errors."""
    make_project()
    told = [
        spans_of(lambda: total([SECRET], "good")),
        spans_of(lambda: total([SECRET], "good")),
        spans_of(lambda: total([SECRET], "bad")),
        spans_of(too_much),
    ]
    decisions = [each["dpflow.decision"] for each in told]
    assert decisions == ["reserved", "replayed", "reserved", "refused"]
    assert told[0]["dpflow.dataset"] == ["shop"]
    assert told[0]["dpflow.asked"] == "PureDP(epsilon=0.1)"
    assert told[3]["dpflow.gate"] == "dataset"
    page = endpoint()
    left = 'dpflow_budget_left_fraction{account="dataset",dataset="shop",name="'
    (line,) = [each for each in page.splitlines() if each.startswith(left)]
    assert float(line.split()[-1]) == pytest.approx(0.8)
    assert 'dpflow_refusals{dataset="shop"} 1.0' in page
    # The span that the body's error ended has what a recorder would write of it.
    assert "DPStepFailed" in told[2]["exception"]
    shown = [str(told), page, str(dpflow.history().as_json())]
    for name in ("why", "status"):
        printed = CliRunner().invoke(app, [name, "shop"])
        assert printed.exit_code == 0
        shown.append(printed.stdout)
    assert all(SECRET not in text for text in shown)
