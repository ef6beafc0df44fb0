"""Who writes, with which code, in which environment."""

from __future__ import annotations

import getpass
import subprocess
from pathlib import Path
from unittest.mock import Mock

import pytest

import dpflow
from dpflow.exceptions import ConfigurationError
from dpflow.ledger import create_ledger, open_ledger
from dpflow.ledger.provenance import provenance, system_user
from tests.ledger.support import url


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Forget what this process has read."""
    provenance.cache_clear()
    system_user.cache_clear()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Make a repository with one commit by Ann."""
    (tmp_path / "policy.yaml").write_text("dataset: a\n")
    for line in (
        "init --quiet",
        "add policy.yaml",
        "-c user.name=Ann -c user.email=ann@example.com commit --quiet -m first",
    ):
        _git(tmp_path, line)
    return tmp_path


def _git(folder: Path, line: str) -> str:
    command = ["git", "-C", str(folder), *line.split()]
    return subprocess.run(command, check=True, stdout=-1, text=True).stdout.strip()


# Code


def test_provenance_has_the_commit_and_whether_the_code_differs(repository):
    """Tracked files count; what a run writes does not."""
    (repository / "untracked.csv").touch()
    clean = provenance(repository)["code"]
    assert clean == {"commit": _git(repository, "rev-parse HEAD"), "dirty": False}
    provenance.cache_clear()
    (repository / "policy.yaml").write_text("dataset: b\n")
    assert provenance(repository)["code"] == {**clean, "dirty": True}


def test_without_a_repository_no_code_is_claimed(
    repository, tmp_path_factory, monkeypatch
):
    """Nor without git, for which no step fails; user and version are noted."""
    facts = {"who": getpass.getuser(), "dpflow": dpflow.__version__}
    assert provenance(tmp_path_factory.mktemp("plain")) == facts
    monkeypatch.setattr("dpflow.policy.revisions.shutil.which", lambda _: None)
    assert provenance(repository) == facts


def test_the_variables_of_a_hook_lead_nowhere(
    repository, tmp_path_factory, monkeypatch
):
    """Git's own variables would name another repository."""
    commit = _git(repository, "rev-parse HEAD")
    monkeypatch.setenv("GIT_DIR", str(tmp_path_factory.mktemp("elsewhere")))
    assert provenance(repository)["code"]["commit"] == commit


def test_a_user_without_a_name_is_unknown(monkeypatch):
    """As in some containers."""
    monkeypatch.setattr(getpass, "getuser", Mock(side_effect=KeyError("uid 1000")))
    assert provenance()["who"] == "unknown"


def test_a_ledger_serves_the_environment_that_it_was_made_for(tmp_path):
    """One that was made for none serves any."""
    bound, free = url(tmp_path / "bound.db"), url(tmp_path / "free.db")
    create_ledger(bound, environment="production").close()
    create_ledger(free).close()
    for at, name in ((bound, "production"), (free, "production"), (free, None)):
        open_ledger(at, environment=name).close()
    for other in ("test", None):
        with pytest.raises(ConfigurationError, match="DPFLOW_ENVIRONMENT=production"):
            open_ledger(bound, environment=other)
    for name in ("\udcff", "two\nlines", "x" * 201):
        with pytest.raises(ConfigurationError, match="printable characters"):
            create_ledger(url(tmp_path / "odd.db"), environment=name)
    assert not (tmp_path / "odd.db").exists()
