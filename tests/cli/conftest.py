"""Every test of the commands runs in a project of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dpflow.guard.project import forget_projects
from tests.cli.support import ADULT, CDNOW, Shop, run


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """Make a folder without ledger and policies the working directory."""
    ours = ("LEDGER_URL", "POLICIES", "ENVIRONMENT")
    for name in (*(f"DPFLOW_{each}" for each in ours), "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    yield Shop(tmp_path)
    forget_projects()


@pytest.fixture
def shop(empty: Shop) -> Shop:
    """Make a project with a ledger and two policies that nothing has used."""
    assert run("ledger", "init").exit_code == 0
    empty.write(CDNOW)
    empty.write(ADULT, "adult.yaml")
    return empty
