"""A ledger, audited at the end, and its place."""

import pytest

from tests.ledger.decision.run_reservations.conftest import ledger  # noqa: F401
from tests.ledger.support import Place


@pytest.fixture
def place(path: Place) -> Place:
    """Give the place of the ledger."""
    return path
