"""How hypothesis runs in the whole suite, and what every test leaves behind."""

import logging
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("dpflow", deadline=None, print_blob=True, derandomize=False)
settings.load_profile("dpflow")


@pytest.fixture(autouse=True)
def _no_open_projects() -> Iterator[None]:
    """Close the ledgers that a test has opened by way of its working directory."""
    yield
    # Tests of pure maths need not pay for importing the ledger.
    if "dpflow.project" in sys.modules:
        sys.modules["dpflow.project"].forget_projects()


@pytest.fixture(autouse=True)
def _dpflow_logs() -> None:
    """Let dpflow's own messages through: absl raises the root logger's level."""
    logging.getLogger("dpflow").setLevel(logging.DEBUG)
