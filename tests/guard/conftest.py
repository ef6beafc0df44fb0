"""A project to guard steps in."""

from pathlib import Path

import pytest

from tests.projects import make_project


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a project whose one dataset has epsilon 1 under a sum."""
    return make_project(tmp_path, monkeypatch)
