"""Events, assets and blocks: what Prefect is told, and that it decides nothing."""

from __future__ import annotations

import pytest
from prefect import flow
from prefect.assets import Asset
from prefect.context import AssetContext
from prefect.testing.standard_test_suites import BlockStandardTestSuite

import dpflow.prefect.events
from dpflow import dp_task
from dpflow.config import settings
from dpflow.prefect import DpflowLedger
from dpflow.prefect.delivery import flush
from tests.prefect.support import charges
from tests.projects import TENTH

CANARY = "canary-2718281828"


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """Collect the events instead of sending them."""
    found: list[dict] = []
    assert flush()  # what another test's steps have sent
    monkeypatch.setattr(
        dpflow.prefect.events, "emit_event", lambda **event: found.append(event)
    )
    return found


def test_a_step_sends_reserved_then_settled(project, sent) -> None:
    """With cost and key, and never its output or private arguments; the term, once."""

    @dp_task(dataset="shop", cost=TENTH, release_key="count/{week}", private=("frame",))
    def count(frame: str, week: str) -> str:
        return frame + week

    @flow(name="report")
    def report():
        count(CANARY, "w1")
        return count(CANARY, "w1")

    report()
    assert flush()
    assert [event["event"] for event in sent] == [
        "dpflow.budget.reserved",
        "dpflow.budget.term-opened",
        "dpflow.budget.settled",
        "dpflow.budget.replayed",
    ]
    settled = sent[2]
    assert settled["resource"]["prefect.resource.id"] == "dpflow.dataset.shop"
    payload = settled["payload"]
    assert (payload["step"], payload["flow"]) == ("count", "report")
    assert payload["release_key"] == "count/w1"
    assert payload["cost"] == TENTH.describe()
    assert payload["outcome"] == "completed"
    assert payload["digest"] == sent[3]["payload"]["digest"]
    assert CANARY not in str(sent)


def test_events_that_cannot_be_sent_block_nothing(project, monkeypatch, caplog) -> None:
    """The step runs, is settled, and the failure is logged."""

    def broken(**_: object) -> None:
        raise ConnectionError

    monkeypatch.setattr(dpflow.prefect.events, "emit_event", broken)

    @dp_task(dataset="shop", cost=TENTH)
    def count() -> int:
        return 1

    @flow(name="report")
    def report():
        return count()

    assert report() == 1
    assert charges(project) == 1
    assert flush()
    assert "a notice of step 'count' was not delivered" in caplog.text


def test_a_release_is_one_materialisation_of_its_assets(project, monkeypatch) -> None:
    """With the guarantee as metadata; its replay is none."""
    seen: list[tuple[set[str], dict]] = []
    emit = AssetContext.emit_events

    def spy(self: AssetContext, state: object) -> None:
        keys = {asset.key for asset in self.downstream_assets}
        seen.append((keys, dict(self.materialization_metadata)))
        emit(self, state)

    monkeypatch.setattr(AssetContext, "emit_events", spy)
    key = "dpflow://shop/count"

    @dp_task(dataset="shop", cost=TENTH, release_key="count", assets=[Asset(key=key)])
    def count() -> int:
        return 1

    renamed = count.with_options(name="renamed")

    @flow(name="report")
    def report():
        count()
        count()
        renamed.with_options(name="count")()

    report()
    assert [asset.key for asset in renamed.assets] == [key]
    assert [keys for keys, _ in seen] == [{key}, set(), set()]
    facts = seen[0][1][key]
    assert (facts["epsilon"], facts["delta"], facts["unit"]) == ("1", "0", "customer")
    assert facts["cost"] == TENTH.describe()


class TestBlock(BlockStandardTestSuite):
    """Prefect's own rules for blocks."""

    @pytest.fixture
    def block(self) -> type[DpflowLedger]:
        """Return the block to check."""
        return DpflowLedger

    def test_has_a_valid_image(self, block: type[DpflowLedger]) -> None:
        """There is no hosted logo, and a page of Prefect's must not look for one."""
        assert block._logo_url is None


def test_a_block_holds_the_ledgers_url_as_a_secret(project, monkeypatch) -> None:
    """It is masked where it is shown, and a project finds its ledger by it."""
    url = settings().ledger_url
    block = DpflowLedger(url=url)
    assert url not in repr(block)
    block.save("test-ledger", overwrite=True, _sync=True)
    monkeypatch.setenv("DPFLOW_LEDGER_URL", "prefect-block:test-ledger")
    assert settings().ledger_url == url

    @dp_task(dataset="shop", cost=TENTH)
    def count() -> int:
        return 1

    @flow(name="report")
    def report():
        return count()

    assert report() == 1
    assert charges(project) == 1
