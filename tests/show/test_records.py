"""`dpflow.status`, `history`, `why` and `forecast`: the records behind the commands."""

from __future__ import annotations

import contextlib
import json
import shlex
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import dpflow
from dpflow import PureDP, guarded
from dpflow.cli import app
from dpflow.exceptions import BudgetRefused, ConfigurationError
from tests.projects import POLICY, TENTH, make_project, rows
from tests.tables import read_tables

FLOW = "<b>weekly</b>"
SECRET = "canary-314159"


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project with two charges, of which one failed, and one refusal."""
    make_project(tmp_path, monkeypatch)

    @guarded(dataset="shop", cost=TENTH, flow=FLOW)
    def step(value: str) -> str:
        if value == SECRET:
            raise ValueError(value)
        return SECRET

    step("fine")
    with contextlib.suppress(dpflow.DPStepFailed):
        step(SECRET)

    @guarded(dataset="shop", cost=dpflow.PureDP(epsilon=2), flow=FLOW)
    def large() -> str:
        return SECRET

    with pytest.raises(BudgetRefused):
        large()
    return tmp_path


def printed(*arguments: str) -> Any:
    """Return what a command prints for programs."""
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_each_is_the_record_behind_its_command(shop) -> None:
    """`--json` prints it; to look writes nothing; a notebook shows a table of texts."""
    before = rows(shop)
    for call, command in read_tables(__file__).items():
        record = eval(call, {"dpflow": dpflow})
        data, html = json.dumps(record.as_json()), record._repr_html_()
        assert json.loads(data) == printed(*shlex.split(command))
        assert rows(shop) == before
        assert len(list(ET.fromstring(html).iter("tr"))) > 1
        assert "<b>" not in html
        assert SECRET not in data + html


NUMBER = 731_954_286


def test_one_part_lists_what_was_lost_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status without a part shows the fullest one."""
    divided = POLICY + "partition: {by: region}\nodometer: {theorem: basic, delta: 0}\n"
    make_project(tmp_path, monkeypatch, divided)
    for region, epsilon in (("east", "0.5"), ("west", "0.1")):

        @guarded(
            dataset="shop", cost=PureDP(epsilon=epsilon), partitions=region, flow="f"
        )
        def step() -> int:
            return NUMBER

        step()
    shown = [
        dpflow.status("shop", part=part).datasets[0] for part in (None, "east", "west")
    ]
    assert [each.standing.parts for each in shown] == [2, 0, 0]
    spent = [each.overview.spent[0].account for each in shown]
    assert [name.rpartition("/")[2] for name in spent] == ["east", "east", "west"]
    assert all(each.overview.state.word == "running" for each in shown)
    with pytest.raises(ConfigurationError, match="Name the dataset"):
        dpflow.status(part="east")
