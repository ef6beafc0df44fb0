"""`dpflow releases`: list, show, forget."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from dpflow import guarded
from tests.cli.support import run, run_fine, run_json
from tests.projects import TENTH, make_project

SECRET = 4242


@dataclass(frozen=True)
class Report:
    """A step with a release for each week, and the weeks that were drawn."""

    revenue: Callable[[str], int]
    drawn: list[str]


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Report:
    """Make a project with two weeks released, one of them asked for twice."""
    make_project(tmp_path, monkeypatch)
    drawn: list[str] = []

    @guarded(dataset="shop", cost=TENTH, release_key="revenue/{week}")
    def revenue(week: str) -> int:
        drawn.append(week)
        return SECRET

    for week in ("w1", "w2", "w1"):
        revenue(week)
    assert drawn == ["w1", "w2"]
    return Report(revenue, drawn)


@pytest.mark.usefixtures("report")
def test_list_names_the_releases_and_shows_no_value() -> None:
    """Key, step, state and digest."""
    found = run_json("releases", "list")["releases"]
    assert sorted(item["key"] for item in found) == ["revenue/w1", "revenue/w2"]
    assert {item["state"] for item in found} == {"settled"}
    text = run_fine("releases", "list")
    assert "revenue/w1" in text
    assert str(SECRET) not in text + str(found)
    assert run_json("releases", "list", "shop")["releases"] == found
    assert run_json("releases", "list", "other")["releases"] == []


def test_an_empty_ledger_says_how_releases_come_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And lists none."""
    make_project(tmp_path, monkeypatch)
    assert "release_key" in run_fine("releases", "list")


@pytest.mark.usefixtures("report")
def test_show_prints_the_value() -> None:
    """By key, or by the start of its id."""
    assert run_fine("releases", "show", "revenue/w1").strip() == str(SECRET)
    found = run_json("releases", "show", "revenue/w2")
    assert found["value"] == SECRET
    assert run_json("releases", "show", found["id"]) == found


@pytest.mark.usefixtures("report")
def test_an_unknown_or_ambiguous_name_is_an_error() -> None:
    """It says what to do."""
    result = run("releases", "show", "revenue/w9")
    assert result.exit_code == 1
    assert "releases list" in result.stderr
    result = run("releases", "show", "")
    assert result.exit_code == 1
    assert "names 2 releases" in result.stderr


def test_forgetting_keeps_digest_and_charge(report: Report) -> None:
    """The next run draws anew and is charged."""
    before = run_json("status", "shop")
    digest = run_json("releases", "show", "revenue/w1")["digest"]
    forgotten = run_json("releases", "forget", "revenue/w1")
    assert (forgotten["state"], forgotten["digest"]) == ("forgotten", digest)
    assert run_json("status", "shop") == before
    for command in ("show", "forget"):
        result = run("releases", command, "revenue/w1")
        assert result.exit_code == 1
        assert "forgotten" in result.stderr
    report.revenue("w1")
    assert report.drawn == ["w1", "w2", "w1"]
    assert run_json("status", "shop") != before


def test_an_edited_value_is_not_shown_and_not_replayed(
    report: Report, tmp_path: Path
) -> None:
    """Its digest differs from the one that was settled."""
    connection = sqlite3.connect(tmp_path / ".dpflow" / "ledger.db")
    connection.execute("UPDATE release SET value = '1' WHERE key_text = 'revenue/w1'")
    connection.commit()
    connection.close()
    result = run("releases", "show", "revenue/w1")
    assert result.exit_code == 1
    assert "digest differs" in result.stderr
    with pytest.raises(Exception, match="digest differs"):
        report.revenue("w1")
