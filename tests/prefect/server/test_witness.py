"""The witness in artifacts of Prefect's server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from dpflow.contrib import prefect_witness
from dpflow.exceptions import LedgerRolledBack, LedgerUnavailable, LedgerUnwitnessed
from dpflow.ledger import Ledger, create_ledger, open_ledger
from dpflow.ledger.records import Granted
from tests.ledger.support import granted, kinds, make_policy, url
from tests.ledger.witness.accidents import ACCIDENTS, Host, after, next_step
from tests.ledger.witness.harmless import HARMLESS, OF_FILES
from tests.ledger.witness.witness_contract import CONTRACT, made_at
from tests.sizes import spread

PLACE = "prefect:"


@pytest.mark.parametrize("promise", CONTRACT)
def test_prefect_keeps_a_witness(
    promise: Callable[[str, Path], None], tmp_path: Path
) -> None:
    """Each promise of the contract."""
    promise(PLACE, tmp_path)


# Which accidents there are is the business of `tests/ledger/witness/test_rollback.py`.
@pytest.mark.parametrize("accident", spread(ACCIDENTS, 3))
def test_no_accident_is_silent(
    tmp_path: Path, accident: Callable[[Host], None]
) -> None:
    """The step is refused, as with a witness in a file."""
    host = after(accident, tmp_path / "host", 3, w=True, kept=PLACE)
    answer = next_step(host)
    assert isinstance(answer, LedgerRolledBack), answer
    assert "dpflow ledger reconcile" in answer.message


@pytest.mark.parametrize(
    "event", spread([event for event in HARMLESS if event not in OF_FILES], 2)
)
def test_nothing_else_is_taken_for_one(
    tmp_path: Path, event: Callable[[Host], None]
) -> None:
    """The next steps run."""
    host = after(event, tmp_path / "host", 3, w=True, kept=PLACE)
    assert isinstance(next_step(host), Granted)


def delete_all(ledger: Ledger) -> None:
    """Delete every artifact of a ledger's witness, as someone may in the UI."""
    keys = [f"dpflow-witness-{ledger.id}", f"dpflow-witness-{ledger.id}-0"]
    with get_client(sync_client=True) as client:
        chosen = {"artifacts": {"key": {"any_": keys}}}
        for found in client.request("POST", "/artifacts/filter", json=chosen).json():
            client.request("DELETE", "/artifacts/{id}", path_params={"id": found["id"]})


def test_a_witness_that_goes_missing_fails_closed(tmp_path: Path) -> None:
    """Also in a process that has it open."""
    ledger = made_at(PLACE, tmp_path)
    granted(ledger)
    delete_all(ledger)
    opened = open_ledger(url(tmp_path / "ledger.db"), witness=PLACE)
    for asked in (ledger, opened):
        with pytest.raises(LedgerUnwitnessed, match="dpflow ledger trust"):
            granted(asked)


def test_old_artifacts_that_are_gone_hide_no_new_one(tmp_path: Path) -> None:
    """A count below what was read before does not stop the reading."""
    policy = make_policy(budget="{epsilon: 100}")
    path = tmp_path / "ledger.db"
    ledger = made_at(PLACE, tmp_path)
    for _ in range(4):
        granted(ledger, policies=[policy])
    reader = open_ledger(url(path), witness=PLACE)
    granted(reader, policies=[policy])
    assert reader.watch.witness is not None
    reader.watch.witness.accept(reader.watch.witness.unseen())
    with get_client(sync_client=True) as client:
        chosen = {
            "artifacts": {"key": {"any_": [f"dpflow-witness-{ledger.id}-0"]}},
            "sort": "CREATED_DESC",
        }
        every = client.request("POST", "/artifacts/filter", json=chosen).json()
        for found in every[2:]:
            client.request("DELETE", "/artifacts/{id}", path_params={"id": found["id"]})
    granted(ledger, policies=[policy])
    assert len(reader.watch.witness.unseen().lines) == 1


def test_more_lines_than_a_page_are_all_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Page by page."""
    policy = make_policy(budget="{epsilon: 100}")
    ledger = made_at(PLACE, tmp_path)
    monkeypatch.setattr(prefect_witness, "_PAGE", 5)
    for _ in range(12):
        granted(ledger, policies=[policy])
    opened = open_ledger(url(tmp_path / "ledger.db"), witness=PLACE)
    assert opened.watch.witness is not None
    found = [line.number for line in opened.watch.witness.all_lines()]
    assert found == list(range(2, 2 + len(found)))
    assert len(found) >= 12


def test_no_answer_means_no_step_and_shows_no_password(tmp_path: Path) -> None:
    """Nothing listens there; the address may hold a password."""
    path = tmp_path / "ledger.db"
    create_ledger(url(path), witness="none").close()
    address = "http://me:s3cret-word@127.0.0.1:9/api"
    with temporary_settings({PREFECT_API_URL: address}):
        ledger = open_ledger(url(path), witness=PLACE)
        with pytest.raises(LedgerUnavailable, match="Prefect does not answer") as told:
            granted(ledger)
    assert kinds(path) == []
    assert "s3cret" not in f"{told.value}{told.value.details}"
    assert "step did not run" in told.value.message
