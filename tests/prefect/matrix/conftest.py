"""The laboratory of the matrix, which has the server of all tests."""

from __future__ import annotations

import pytest
from prefect.settings import PREFECT_API_URL

from tests.prefect.matrix.laboratory import Laboratory


@pytest.fixture(scope="session")
def laboratory(programs, prefect_server, tmp_path_factory):
    """Give the experiments that server."""
    folder = tmp_path_factory.mktemp("laboratory")
    return Laboratory(folder, programs, PREFECT_API_URL.value())
