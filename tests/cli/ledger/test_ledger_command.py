"""`dpflow ledger` makes a ledger once and says which one it is."""

from __future__ import annotations

import pytest

from dpflow.guard.project import forget_projects
from dpflow.ledger.opening import roles_script
from tests.cli.support import run, run_fine, run_json

pytestmark = pytest.mark.quick


def test_a_url_that_no_ledger_has_is_refused(empty, monkeypatch):
    """And its password is not shown."""
    monkeypatch.setenv("DPFLOW_LEDGER_URL", "mysql://me:secret@host/db")
    for command in ("init", "info"):
        result = run("ledger", command)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "mysql://" in result.stderr
        assert "secret" not in result.stderr


@pytest.fixture
def shared(empty, postgres_url, monkeypatch):
    """Give a project whose ledger's URL names an empty database, with a password."""
    url = postgres_url.replace("//postgres@", "//postgres:hunter2@")
    monkeypatch.setenv("DPFLOW_LEDGER_URL", url)
    yield url
    forget_projects()


def test_a_shared_ledger_is_made_shown_and_never_replaced(shared, empty):
    """As in a file, and its password is in no output."""
    text = run_fine("ledger", "init")
    pinned = (empty.policies / "ledger.lock").read_text().strip()
    assert "Made the ledger postgresql://postgres@/" in text
    assert f"with id {pinned}." in text
    assert "dpflow ledger roles --sql" in text
    status = run_json("ledger", "info")
    assert status["ledger"] == pinned
    result = run("ledger", "init")
    assert result.exit_code == 1
    assert "none is ever replaced" in result.stderr
    every = [text, str(status), result.stderr, run_fine("ledger", "info")]
    assert "hunter2" not in "".join(every)


def test_roles_are_explained_and_printed_as_a_script() -> None:
    """The script is SQL and nothing else, so that it can be piped."""
    text = run_fine("ledger", "roles")
    script = run_fine("ledger", "roles", "--sql")
    assert script == roles_script()
    for role in ("owner", "operator", "worker", "reader"):
        assert f"dpflow_{role} " in text
        assert f"'dpflow_{role}'" in script
