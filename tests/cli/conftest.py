"""Every test of the commands runs in a project of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.support import ADULT, CDNOW, Shop, run


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """Make a folder without ledger and policies the working directory."""
    monkeypatch.chdir(tmp_path)
    return Shop(tmp_path)


@pytest.fixture
def shop(empty: Shop) -> Shop:
    """Make a project with a ledger and two policies that nothing has used."""
    assert run("ledger", "init").exit_code == 0
    empty.write(CDNOW)
    empty.write(ADULT, "adult.yaml")
    return empty
