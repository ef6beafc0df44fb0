"""Events, artifacts, assets, blocks, spans and gauges in Prefect."""

from __future__ import annotations

import contextlib
import json
import re
import traceback
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from prefect.artifacts import Artifact
from prefect.assets import Asset
from prefect.context import AssetContext
from prefect.settings import (
    PREFECT_CLIENT_METRICS_ENABLED,
    PREFECT_CLIENT_METRICS_PORT,
    temporary_settings,
)
from prefect.utilities import services
from typer.testing import CliRunner

import dpflow
import dpflow.prefect.events
from dpflow import BudgetRefused, PureDP, dp_flow, dp_task
from dpflow.cli import app
from dpflow.config import settings
from dpflow.guard.project import project_label
from dpflow.notebook import Sheet
from dpflow.prefect import DpflowLedger, artifacts
from dpflow.prefect.delivery import flush
from dpflow.show.gauges import prometheus
from tests.prefect.matrix.support import in_flow
from tests.projects import POLICY, TENTH, kinds, make_project
from tests.snapshots import differences
from tests.snapshots import settled as without_ids

CANARY = "canary-2718281828"


@dp_task(dataset="shop", cost=PureDP(epsilon="0.5"))
def half(week: int) -> int:
    """Stand for a step that fits twice."""
    return week


@dp_task(dataset="shop", cost=TENTH, private=("rows",), release_key="sum/{day}")
def total(rows: list[str], day: str) -> str:
    """Return, or fail with, what is private."""
    if day == "bad":
        raise ValueError(*rows)
    return rows[0]


too_much = dp_task(dataset="shop", cost=PureDP(epsilon=5), name="much")(lambda: CANARY)


def test_what_prefect_shows(project, sent) -> None:
    """States, the budget artifact and the events, in tests/snapshots/prefect.txt."""
    texts: list[str] = []

    def show(title: str, state: Any) -> None:
        texts.append(f"{title}: {state.type.value} {state.name}\n{state.message}")

    def of_tasks() -> None:
        for title, day in (("release", "w1"), ("replay", "w1"), ("error", "bad")):
            show(title, total([CANARY], day, return_state=True))

    in_flow(of_tasks)()
    for title, call in (
        ("refused", too_much),
        ("exhausted", lambda: [half(week) for week in range(3)]),
    ):
        report = in_flow(call, make_flow=dp_flow)
        show(title, report(return_state=True))
    label = project_label()
    artifact = Artifact.get(f"dpflow-budget-{label}-shop").data
    assert "dpflow policy apply shop --new-term --reason TEXT" in artifact
    assert "| epsilon | 1 | 0.7 | 0.3 | 70.0% |" in artifact
    assert float(Artifact.get(f"dpflow-budget-{label}-shop-used").data) == 70
    assert flush()
    texts += [artifact, *(shown(event) for event in sent)]
    assert CANARY not in "".join(texts)
    text = re.sub(r"\.py:\d+|since [\d: -]+", "...", "\n\n".join(texts))
    text = without_ids(text, Path(__file__).parent)
    assert differences({"prefect": text}) == []


def test_two_projects_on_one_server_have_names_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: list[dict]
) -> None:
    """Artifacts, events and gauges of datasets of one name differ by their project."""
    names = []
    for number in range(2):
        folder = tmp_path / f"project-{number}"
        folder.mkdir()
        make_project(folder, monkeypatch, POLICY)
        step = dp_task(dataset="shop", cost=TENTH, name="tenth")(lambda: 1)
        in_flow(step, make_flow=dp_flow)()
        assert flush()
        label = project_label()
        assert label == dpflow.status().ledger[:6]
        artifact = Artifact.get(f"dpflow-budget-{label}-shop").data
        assert "| epsilon | 1 | 0.1 | 0.9 | 10.0% |" in artifact
        resources = {event["resource"]["prefect.resource.id"] for event in sent}
        assert f"dpflow.dataset.{label}.shop" in resources
        assert {event["resource"]["dpflow.project"] for event in sent} == {label}
        assert f'{{project="{label}",dataset="shop"}}' in prometheus(dpflow.status())
        names.append(label)
        sent.clear()
    assert names[0] != names[1]
    setup = replace(settings(), environment="Team A")
    assert setup.label(dpflow.status().ledger) == "Team A"
    assert artifacts.artifact_key("Team A", "shop") == "dpflow-budget-team-a-shop"


def shown(event: dict) -> str:
    """Return what an event says, without what differs from run to run."""
    payload = event["payload"].items()
    lines = [f"  {name}: {json.dumps(v, sort_keys=True)}" for name, v in payload]
    return "\n".join([event["event"], *lines])


def test_no_name_in_a_refusal_is_markup(project, monkeypatch):
    """It is one line of the artifact, without a picture, a link or a tag."""
    texts = []
    in_flow(lambda: half(1), make_flow=dp_flow)()
    monkeypatch.setattr(
        artifacts, "create_markdown_artifact", lambda **facts: texts.append(facts)
    )
    name = "x\n# Spent: 0\x1b ![x](http://e.example/x.png)<img src=x>"
    message = f"the step {name!s} was refused"
    artifacts.publish_budget(project, BudgetRefused(message, dataset="shop"))
    (text,) = [each["markdown"] for each in texts]
    assert "the step x # Spent: 0" in text
    assert not set("<[\x1b") & set(re.sub(r"\\.", "", text))
    assert not any(line.startswith("# Spent") for line in text.splitlines())
    _, _, row = artifacts.markdown_table(Sheet(("head",), [(f"{name}|a|",)]))
    assert re.sub(r"\\.", "", row).count("|") == 2


@pytest.mark.promise("unreachable-prefect")
def test_events_that_cannot_be_sent_block_nothing(project, monkeypatch, caplog) -> None:
    """Nor does an artifact: the step is settled, and the failures are logged."""

    def broken(*_: object, **__: object) -> None:
        raise ConnectionError

    monkeypatch.setattr(dpflow.prefect.events, "emit_event", broken)
    monkeypatch.setattr(artifacts, "create_markdown_artifact", broken)
    assert in_flow(lambda: half(1), make_flow=dp_flow)() == 1
    assert kinds() == ["reserve", "settle"]
    assert flush()
    assert "a notice of step 'half' was not delivered" in caplog.text
    assert "could not be published" in caplog.text


def test_a_release_is_one_materialisation_of_its_assets(project, monkeypatch) -> None:
    """With the guarantee as metadata; its replay is not a materialisation."""
    seen: list[tuple[set[str], dict]] = []
    emit = AssetContext.emit_events

    def spy(self: AssetContext, state: object) -> None:
        keys = {asset.key for asset in self.downstream_assets}
        seen.append((keys, dict(self.materialization_metadata)))
        emit(self, state)

    monkeypatch.setattr(AssetContext, "emit_events", spy)
    key = "dpflow://shop/count"
    count = total.with_options(assets=[Asset(key=key)])
    renamed = count.with_options(name="renamed")
    steps = (count, count, renamed.with_options(name="total"))
    in_flow(lambda: [step([CANARY], "good") for step in steps])()
    assert [asset.key for asset in renamed.assets] == [key]
    assert [keys for keys, _ in seen] == [{key}, set(), set()]
    facts = seen[0][1][key]
    assert (facts["epsilon"], facts["delta"], facts["unit"]) == ("1", "0", "customer")
    assert facts["cost"] == TENTH.describe()


def test_a_block_holds_the_ledgers_url_as_a_secret(project, monkeypatch) -> None:
    """It is masked where it is shown, and a project finds its ledger by it."""
    url = settings().ledger_url
    block = DpflowLedger(url=url)
    assert url not in repr(block)
    block.save("test-ledger", overwrite=True, _sync=True)
    monkeypatch.setenv("DPFLOW_LEDGER_URL", "prefect-block:test-ledger")
    assert settings().ledger_url == url
    assert in_flow(lambda: half(1))() == 1
    assert kinds() == ["reserve", "settle"]


class Recorded(trace.NonRecordingSpan):
    """A span that records its attributes."""

    def __init__(self) -> None:
        super().__init__(trace.INVALID_SPAN_CONTEXT)
        self.facts: dict[str, Any] = {}

    def set_attributes(self, attributes: Any) -> None:
        """Keep them."""
        self.facts.update(attributes)

    def record_exception(self, exception: BaseException, *_: Any, **__: Any) -> None:
        """Keep the text that a recorder writes of it."""
        self.facts["exception"] = "".join(traceback.format_exception(exception))

    def set_status(self, *status: Any, **more: Any) -> None:
        """Keep it."""
        self.facts["status"] = f"{status} {more}"


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


def spans_of(call: Any) -> dict[str, Any]:
    """Return the attributes that the task's span has after a call in a flow."""
    span = Recorded()

    def spanned() -> None:
        with contextlib.suppress(Exception), trace.use_span(span):
            call()

    in_flow(spanned)()
    return span.facts


def test_spans_and_gauges_hold_names_and_numbers_and_no_data(
    project: Any, endpoint: Any
) -> None:
    """Granted, replayed, failed and refused; neither values nor texts of errors."""
    days = ("good", "good", "bad")
    spans = [spans_of(lambda day=day: total([CANARY], day)) for day in days]
    spans.append(spans_of(too_much))
    decisions = [each["dpflow.decision"] for each in spans]
    assert decisions == ["reserved", "replayed", "reserved", "refused"]
    assert spans[0]["dpflow.dataset"] == ["shop"]
    assert spans[0]["dpflow.asked"] == "PureDP(epsilon=0.1)"
    assert spans[3]["dpflow.gate"] == "dataset"
    page = endpoint()
    left = 'dpflow_budget_left_fraction{account="dataset",dataset="shop",name="'
    own = f'project="{project_label()}"'
    (line,) = [each for each in page.splitlines() if each.startswith(left)]
    assert float(line.split()[-1]) == pytest.approx(0.8)
    assert own in line
    assert f'dpflow_refusals{{dataset="shop",{own}}} 1.0' in page
    # The span that the body's error ended has what a recorder would write of it.
    assert "DPStepFailed" in spans[2]["exception"]
    shown = [str(spans), page, str(dpflow.history().as_json())]
    for name in ("why", "status"):
        printed = CliRunner().invoke(app, [name, "shop"])
        assert printed.exit_code == 0
        shown.append(printed.stdout)
    assert all(CANARY not in text for text in shown)
