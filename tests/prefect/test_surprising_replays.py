"""A scheduled run that replays another scheduled run's release says so."""

from __future__ import annotations

from datetime import UTC, datetime
from unittest import mock

import pytest

from dpflow import PureDP, dp_flow, dp_task
from dpflow.prefect import api

AT = datetime(2026, 1, 5, 6, tzinfo=UTC)
LATER = datetime(2026, 1, 12, 6, tzinfo=UTC)


@dp_task(dataset="shop", cost=PureDP(epsilon="0.1"), release_key="count")
def count() -> int:
    """Stand for a step whose key lacks the period."""
    return 1


@dp_flow(name="report")
def report() -> int:
    """Release one count."""
    return count()


def run_at(time: datetime | None) -> None:
    """Run the flow as if a schedule had begun it at a time; None: by hand."""
    current = api.FlowRunContext.get

    def scheduled():
        context = current()
        if context is not None and context.flow_run is not None and time is not None:
            context.flow_run.auto_scheduled = True
            context.flow_run.expected_start_time = time
        return context

    with mock.patch.object(api.FlowRunContext, "get", scheduled):
        assert report() == 1


@pytest.mark.parametrize(
    ("first", "second", "warns"),
    [(AT, LATER, True), (AT, AT, False), (AT, None, False), (None, LATER, False)],
    ids=["another week", "a repeated run", "by hand", "drawn by hand"],
)
def test_a_replay_of_another_scheduled_time_is_announced(
    project, caplog, first, second, warns
):
    """In the log, with both times; repeated runs and runs by hand replay quietly."""
    run_at(first)
    caplog.clear()
    run_at(second)
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert ("2026-01-05T06:00:00+00:00" in text) == warns
    assert ("scheduled for 2026-01-12T06:00:00+00:00 replayed" in text) == warns
