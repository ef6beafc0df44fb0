"""`dpflow.status`: the record behind the command, with a table and gauges."""

from __future__ import annotations

import dataclasses
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from typer.testing import CliRunner

import dpflow
from dpflow import PureDP, guarded
from dpflow.cli import app
from dpflow.exceptions import ConfigurationError, UnknownDataset
from dpflow.show.status import Status
from tests.projects import POLICY, TENTH, make_project, rows

NAMED = POLICY.replace("dataset: shop", "dataset: a:b@c")
SECRET = 731_954_286


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project that has spent a quarter of one budget, and one untouched."""
    make_project(tmp_path, monkeypatch, POLICY, NAMED)

    @guarded(dataset="shop", cost=TENTH)
    def step() -> int:
        return SECRET

    step()
    return tmp_path


def found(name: str | None = None) -> Status:
    """Return the record."""
    return dpflow.status(name)


def test_it_is_the_record_behind_the_command(shop: Path) -> None:
    """`--json` prints it; to look writes nothing; nobody can change it."""
    before = rows(shop)
    record = found()
    printed = CliRunner().invoke(app, ["status", "--json"])
    assert json.loads(printed.stdout) == record.as_json()
    assert rows(shop) == before
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.ledger = ""  # type: ignore[misc]
    (one,) = found("shop").datasets
    assert one.standing.accounts[0].spent == {"epsilon": "0.1", "delta": "0"}
    assert one.used == pytest.approx(0.1)
    with pytest.raises(UnknownDataset):
        found("other")


def test_a_notebook_shows_a_table(shop: Path) -> None:
    """It is well-formed, with a row for each dataset."""
    table = ET.fromstring(found()._repr_html_())
    cells = [[cell.text for cell in row] for row in table.iter("tr")]
    assert [row[:3] for row in cells[1:]] == [
        ["a:b@c", "not started", "0.0%"],
        ["shop", "running", "10.0%"],
    ]
    assert str(SECRET) not in found()._repr_html_()


def test_one_part_tells_what_was_lost_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status without a part tells of the fullest one."""
    divided = POLICY + "partition: {by: region}\nodometer: {theorem: basic, delta: 0}\n"
    make_project(tmp_path, monkeypatch, divided)
    for region, epsilon in (("east", "0.5"), ("west", "0.1")):

        @guarded(
            dataset="shop", cost=PureDP(epsilon=epsilon), partitions=region, flow="f"
        )
        def step() -> int:
            return SECRET

        step()
    shown = [
        dpflow.status("shop", part=part).datasets[0] for part in (None, "east", "west")
    ]
    assert [each.standing.parts for each in shown] == [2, 2, 2]
    spent = [each.overview.spent[0].account for each in shown]
    assert [name.rpartition("/")[2] for name in spent] == ["east", "east", "west"]
    lost = [float(each.overview.flows[0].lost.epsilon) for each in shown]
    assert lost == [0.5, 0.5, 0.1]
    assert all(each.overview.state.word == "running" for each in shown)
    with pytest.raises(ConfigurationError, match="Name the dataset"):
        dpflow.status(part="east")
