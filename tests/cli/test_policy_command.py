"""`dpflow policy check`, `diff` and `apply`."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.cli.support import run
from tests.projects import ROOT

pytestmark = pytest.mark.quick


def test_the_projects_own_policies_pass_its_hook(monkeypatch, tmp_path) -> None:
    """The hook that the project ships is a strict check."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("DPFLOW_LEDGER_URL", f"sqlite:///{tmp_path}/none.db")
    assert "check --strict" in (ROOT / ".pre-commit-hooks.yaml").read_text("utf-8")
    assert run("policy", "check", "policies", "--strict").exit_code == 0


BASE = ("policy", "diff", "--base", "main")


@pytest.fixture
def project(shop):
    """Return a project in a git repository, with a commit of its policies."""
    ann = "-c user.name=ann -c user.email=ann@example.org -c commit.gpgsign=0"
    for words in ("init -qb main", "add policies", f"{ann} commit -qm policies"):
        subprocess.run(["git", *words.split()], check=True, capture_output=True)
    return shop


def test_a_missing_git_is_an_error(project, monkeypatch):
    """The error says what is needed."""
    monkeypatch.setattr("dpflow.policy.revisions.shutil.which", lambda _: None)
    assert "not installed" in run(*BASE).stderr


def test_what_git_says_of_a_failure_reaches_the_user(project, monkeypatch):
    """A repository of another user, and an object that is missing."""
    real = subprocess.run

    def of_another(command, **options):
        options["env"]["GIT_TEST_ASSUME_DIFFERENT_OWNER"] = "1"
        return real(command, **options)

    with monkeypatch.context() as patch:
        patch.setattr("dpflow.policy.revisions.subprocess.run", of_another)
        words = " ".join(run(*BASE).stderr.split())
        assert "dubious ownership" in words
        assert f"git config --global --add safe.directory {project.root}" in words
        patch.setenv("GIT_CONFIG_COUNT", "1")
        patch.setenv("GIT_CONFIG_KEY_0", "safe.directory")
        patch.setenv("GIT_CONFIG_VALUE_0", "*")
        assert run(*BASE).exit_code == 0
    shutil.rmtree(project.root / ".git" / "objects")
    (project.root / ".git" / "objects").mkdir()
    result = run(*BASE)
    assert result.exit_code == 1
    assert "removed" not in result.output
