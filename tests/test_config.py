"""Where the ledger and the policies are; disks that cannot empty their cache."""

from __future__ import annotations

import errno
import fcntl
import os
from unittest.mock import Mock

import pytest

from dpflow.config import (
    ENVIRONMENT_VARIABLE,
    LEDGER_VARIABLE,
    POLICIES_VARIABLE,
    WITNESS_VARIABLE,
    Settings,
    settings,
)
from dpflow.durable import sync, sync_path
from dpflow.exceptions import ConfigurationError
from dpflow.ledger.opening import sqlite_path

pytestmark = pytest.mark.quick


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return an empty project, with no settings from outside."""
    monkeypatch.delenv(LEDGER_VARIABLE, raising=False)
    monkeypatch.delenv(POLICIES_VARIABLE, raising=False)
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
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


def test_variables_come_before_pyproject_and_that_before_defaults(folder, monkeypatch):
    """Relative paths lie under the root; an empty variable is no setting."""
    write(
        folder,
        '[tool.dpflow]\nledger_url = "sqlite:///data/l.db"\npolicies = "rules"\n',
    )
    monkeypatch.setenv(LEDGER_VARIABLE, " ")
    setup = settings(folder)
    assert f"sqlite:///{folder}/data/l.db" == setup.ledger_url
    assert folder / "rules" == setup.policies
    monkeypatch.setenv(LEDGER_VARIABLE, "sqlite:////var/ledger.db")
    monkeypatch.setenv(POLICIES_VARIABLE, "/var/policies")
    setup = settings(folder)
    assert setup.ledger_url == "sqlite:////var/ledger.db"
    assert str(setup.policies) == "/var/policies"


def test_blanks_at_the_ends_of_a_setting_are_no_part_of_it(folder, monkeypatch):
    """`echo` and forms of platforms add them to secrets."""
    write(folder, '[tool.dpflow]\npolicies = "rules "\n')
    for end in ("\n", "\r\n", " "):
        monkeypatch.setenv(LEDGER_VARIABLE, f"postgresql://host/db{end}")
        monkeypatch.setenv(ENVIRONMENT_VARIABLE, f" ann{end}")
        setup = settings(folder)
        assert (setup.ledger_url, setup.environment) == ("postgresql://host/db", "ann")
        assert setup.policies == folder / "rules"


def test_unknown_keys_and_values_are_refused(folder):
    """A misspelt key must not mean the default ledger."""
    for text, named in (
        ('[tool.dpflow]\nledger = "x"\n', "ledger = 'x'"),
        ("[tool.dpflow]\npolicies = 5\n", "policies = 5"),
        ('[tool.dpflow.policies]\nfolder = "x"\n', "policies = {'folder': 'x'}"),
    ):
        write(folder, text)
        with pytest.raises(ConfigurationError) as error:
            settings(folder)
        assert named in error.value.message
        assert "takes the texts ledger_url, policies" in error.value.message
        assert str(folder / "pyproject.toml") in error.value.message


def test_a_file_without_a_table_of_settings_is_refused(folder):
    """Its settings are not guessed."""
    for content, reason in (
        (b'[tool]\ndpflow = "x"\n', "must be a table"),
        (b"[[tool.dpflow]]\n", "must be a table"),
        (b"[tool", "cannot read"),
        (b"\xff\xfe", "cannot read"),
    ):
        folder.joinpath("pyproject.toml").write_bytes(content)
        with pytest.raises(ConfigurationError, match=reason):
            settings(folder)


def test_the_witness_can_be_a_folder_or_waived(folder, monkeypatch):
    """Relative folders lie under the root; the environment comes first."""
    write(folder, '[tool.dpflow]\nwitness = "seen"')
    assert settings(folder).witness == str(folder / "seen")
    monkeypatch.setenv(WITNESS_VARIABLE, "/mnt/other")
    assert settings(folder).witness == "/mnt/other"
    monkeypatch.setenv(WITNESS_VARIABLE, "none")
    assert settings(folder).witness == "none"


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
