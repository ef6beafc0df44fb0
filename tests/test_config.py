"""Where the ledger and the policies are; disks that cannot empty their cache."""

from __future__ import annotations

import errno
import fcntl
import os
from unittest.mock import Mock

import pytest

from dpflow.config import (
    LEDGER_VARIABLE,
    SETTINGS,
    Settings,
    settings,
)
from dpflow.durable import sync, sync_path
from dpflow.exceptions import ConfigurationError
from dpflow.ledger.opening import sqlite_path, witness_at
from tests.tables import read_tables

pytestmark = pytest.mark.quick
ROWS = read_tables(__file__)


@pytest.fixture
def folder(tmp_path):
    """Return an empty project."""
    tmp_path.joinpath("pyproject.toml").touch()
    return tmp_path


def write(folder, text):
    """Write the project's pyproject.toml."""
    folder.joinpath("pyproject.toml").write_text(text, "utf-8")


def test_defaults_lie_under_the_projects_root(folder):
    """Both paths are absolute, wherever in the project one is."""
    deep = folder / "flows" / "weekly"
    deep.mkdir(parents=True)
    expected = Settings(
        root=folder,
        ledger_url=f"sqlite:///{folder}/.dpflow/ledger.db",
        policies=folder / "policies",
    )
    assert expected == settings(folder)
    assert expected == settings(deep)
    assert folder / ".dpflow" / "ledger.db" == sqlite_path(expected.ledger_url)


def test_a_changed_file_is_read_again(folder):
    """A change within one tick of the file system's clock is read, too."""
    for name in ("a", "b"):
        write(folder, f'[tool.dpflow]\nledger_url = "sqlite:///{name}.db"\n')
        assert settings(folder).ledger_url.endswith(f"/{name}.db")


def test_the_root_is_the_nearest_project_above(folder):
    """Without any, the folder itself."""
    inner = folder / "inner"
    (inner / "deep").mkdir(parents=True)
    assert folder == settings(inner / "deep").root
    (inner / "pyproject.toml").touch()
    assert inner == settings(inner / "deep").root
    assert folder.parent == settings(folder.parent).root


@pytest.mark.parametrize("row", ROWS["settings"])
def test_variables_come_before_pyproject_and_that_before_defaults(
    folder, monkeypatch, row
):
    """Of ledger, policies and witness; blanks at the ends are no part of a setting."""
    write(folder, row["file"])
    for name, text in row["environment"].items():
        monkeypatch.setenv(name, text)
    setup = settings(folder)
    for name, text in row["settings"].items():
        assert str(getattr(setup, name)) == text.format(folder=folder)


def place_of(setup, key):
    """Return the path that a setting names, as text."""
    return str(getattr(setup, key)).removeprefix("sqlite:///")


@pytest.mark.parametrize("key", ["ledger_url", "policies", "witness", "people"])
@pytest.mark.parametrize("in_file", [True, False])
def test_a_home_is_expanded_and_a_variable_is_refused(
    folder, monkeypatch, key, in_file
):
    """In each place that is configured; neither becomes the name of a folder."""
    monkeypatch.setenv("HOME", "/home/ann")
    prefix = "sqlite:///" if key == "ledger_url" else ""

    def configured(path):
        if in_file:
            write(folder, f'[tool.dpflow]\n{key} = "{prefix}{path}"\n')
        else:
            monkeypatch.setenv(SETTINGS[key], f"{prefix}{path}")
        return settings(folder)

    assert place_of(configured("~/here/x"), key) == "/home/ann/here/x"
    assert place_of(configured("./~/x"), key) == f"{folder}/~/x"
    for path, absolute in ROWS["variables"].items():
        with pytest.raises(ConfigurationError) as caught:
            configured(path)
        assert str(caught.value).startswith(f"{key} ({SETTINGS[key]}) is '{path}'")
        assert str(caught.value).endswith(absolute)


def test_a_password_and_a_projects_own_folder_may_hold_any_character(
    tmp_path, monkeypatch
):
    """What was not configured as a path is not expanded."""
    project = tmp_path / "a$HOME"
    project.mkdir()
    write(project, '[tool.dpflow]\nwitness = "postgresql://u:p$HOME@~/db"\n')
    setup = settings(project)
    assert setup.witness == "postgresql://u:p$HOME@~/db"
    assert sqlite_path(setup.ledger_url) == project / ".dpflow" / "ledger.db"
    assert witness_at(str(project), setup.ledger_url)("id").path.parent == project
    url = "postgresql://u:p$HOME@host/db"
    monkeypatch.setenv(LEDGER_VARIABLE, url)
    assert settings(project).ledger_url == url


def test_urls_and_witnesses_of_programs_are_expanded_alike(monkeypatch):
    """Functions that take them have no other meaning of `~`."""
    monkeypatch.setenv("HOME", "/home/ann")
    assert str(sqlite_path("sqlite:///~/l.db")) == "/home/ann/l.db"
    witness = witness_at("~/w", "sqlite:///l.db")("id")
    assert str(witness.path) == "/home/ann/w/id.witness"
    for call in (
        lambda: sqlite_path("sqlite:///$HOME/l.db"),
        lambda: witness_at("$HOME/w", "sqlite:///l.db"),
    ):
        with pytest.raises(ConfigurationError, match="path: /home/ann/"):
            call()


@pytest.mark.parametrize(
    ("witness", "is_inside"),
    [
        ("seen", True),
        ("link", True),
        ("none", False),
        ("../seen", False),
        (None, False),
    ],
)
def test_a_witness_inside_the_project_is_warned_of(folder, witness, is_inside):
    """A restore of the project would bring back both; links are followed."""
    (folder / "link").symlink_to(folder / "seen")
    if witness is not None:
        write(folder, f'[tool.dpflow]\nwitness = "{witness}"\n')
    assert bool(settings(folder).witness_warning) is is_inside


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the calls of the system, in a system that has all of them."""
    calls: list[str] = []
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda *_: calls.append("full"))
    monkeypatch.setattr(os, "fsync", lambda _: calls.append("fsync"))
    return calls


def test_the_cache_of_the_disk_is_emptied(synced, tmp_path, monkeypatch):
    """Of a file and of a folder; some network disks have no such command."""
    sync(0)
    sync_path(tmp_path)
    assert synced == ["full", "fsync"] * 2
    monkeypatch.setattr(fcntl, "fcntl", Mock(side_effect=OSError(errno.ENOTSUP, "")))
    sync(0)
    assert synced[4:] == ["fsync"]


def test_a_write_that_is_lost_is_an_error(synced, monkeypatch, tmp_path):
    """The next sync would not report it."""
    monkeypatch.setattr(fcntl, "fcntl", Mock(side_effect=OSError(errno.EIO, "lost")))
    for call in (lambda: sync(0), lambda: sync_path(tmp_path)):
        with pytest.raises(OSError, match="lost"):
            call()
    assert synced == []
