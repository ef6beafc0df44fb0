"""The experiments of the matrix, each made once."""

from __future__ import annotations

import pytest
from prefect.settings import PREFECT_API_URL

from tests.prefect.matrix.laboratory import Laboratory


@pytest.fixture(scope="session")
def laboratory(prefect_server, tmp_path_factory):
    """Give the experiments the server of all tests."""
    folder = tmp_path_factory.mktemp("laboratory")
    with Laboratory(folder, PREFECT_API_URL.value()) as made:
        yield made


@pytest.fixture
def found(laboratory):
    """Return a function that makes an experiment and returns what it found."""
    return laboratory.result
