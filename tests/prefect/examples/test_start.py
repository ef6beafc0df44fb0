"""An example flow's first run makes the folder's ledger, and nothing replaces one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from flows import start

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Go to a folder with policies and without a ledger."""
    shutil.copytree(ROOT / "policies", tmp_path / "policies")
    (tmp_path / "policies" / "ledger.lock").unlink(missing_ok=True)
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("DPFLOW_LEDGER_URL", raising=False)
    return tmp_path


def test_the_first_run_makes_a_ledger_and_the_second_keeps_it(folder):
    """Its id is pinned."""
    start.make_first_ledger()
    pinned = (folder / "policies" / "ledger.lock").read_text("utf-8")
    made = (folder / ".dpflow" / "ledger.db").stat().st_ino
    start.make_first_ledger()
    assert (folder / "policies" / "ledger.lock").read_text("utf-8") == pinned
    assert (folder / ".dpflow" / "ledger.db").stat().st_ino == made


def test_a_lost_ledger_is_not_replaced(folder):
    """A new one would forget what was spent."""
    (folder / "policies" / "ledger.lock").write_text("an id\n", "utf-8")
    start.make_first_ledger()
    assert not (folder / ".dpflow").exists()
