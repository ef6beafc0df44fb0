"""A ledger; what a test of run reservations leaves in it must verify and audit."""

from typing import Any

import pytest

from tests.ledger.support import Place, audit, make_ledger


@pytest.fixture
def ledger(path: Place) -> Any:
    """Give a new, open ledger, and audit it at the end."""
    result = make_ledger(path)
    yield result
    audit(result)
    result.close()
