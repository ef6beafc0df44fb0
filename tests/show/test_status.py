"""`dpflow.status` of one part of a divided dataset."""

from __future__ import annotations

from pathlib import Path

import pytest

import dpflow
from dpflow import PureDP, guarded
from dpflow.exceptions import ConfigurationError
from tests.projects import POLICY, make_project

SECRET = 731_954_286


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
    assert [each.standing.parts for each in shown] == [2, 0, 0]
    spent = [each.overview.spent[0].account for each in shown]
    assert [name.rpartition("/")[2] for name in spent] == ["east", "east", "west"]
    assert all(each.overview.state.word == "running" for each in shown)
    with pytest.raises(ConfigurationError, match="Name the dataset"):
        dpflow.status(part="east")
