"""A project that receives bad input."""

import pytest

from dpflow import guarded
from tests.projects import TENTH, make_project


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """Return the folder of a project that has spent a tenth of its budget."""
    make_project(tmp_path, monkeypatch)
    guarded(dataset="shop", cost=TENTH)(lambda: 1)()
    return tmp_path
