"""The fixture for tests of pipelines, on Prefect."""

from __future__ import annotations

import pytest
from prefect import task
from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import PREFECT_API_URL
from prefect.testing.utilities import prefect_test_harness

from dpflow import BudgetExhausted, Gaussian, dp_flow, dp_task, release
from dpflow.noise.sources import TEST_NOISE
from dpflow.testing import dpflow_ledger  # noqa: F401 (a fixture)

VISITS = """\
dataset: visits
unit: visitor
relation: add-or-remove
budget: {epsilon: 1, delta: 1e-6}
filter: gdp
flows: {report: {}}
"""


@dp_task(dataset="visits", cost=Gaussian(sensitivity=1, sigma=20))
def count(day):
    """Release a count."""
    return release(100)


@dp_flow(name="report")
def report(published):
    """Release three days, in threads of Prefect's, and publish them."""
    values = [future.result() for future in count.map(["mon", "tue", "wed"])]
    task(lambda: published.append(values))()


def test_tasks_in_threads_draw_test_noise_until_the_budget_is_exhausted(
    dpflow_ledger,  # noqa: F811
    monkeypatch,
):
    """The charges carry the flow; the harness may be around or inside."""
    dpflow_ledger.use(VISITS)
    published = []
    # Another server would take many seconds to start: the harness finds this one.
    address = PREFECT_API_URL.value()
    monkeypatch.setattr(SubprocessASGIServer, "start", lambda *_, **__: None)
    monkeypatch.setattr(SubprocessASGIServer, "api_url", address)
    with prefect_test_harness():
        report(published)
    dpflow_ledger.silence_noise()
    report(published)
    assert published[1] == [100, 100, 100] != published[0]
    charges = dpflow_ledger.charges()
    assert {(c.noise, c.flow, c.state) for c in charges} == {
        (TEST_NOISE, "report", "settled")
    }
    assert len(charges) == 6
    dpflow_ledger.exhaust("visits")
    with pytest.raises(BudgetExhausted):
        report(published)
    assert len(published) == 2
