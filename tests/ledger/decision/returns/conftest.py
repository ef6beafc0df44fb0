"""A ledger in memory, audited at the end."""

import uuid
from collections.abc import Iterator

import pytest

from dpflow.ledger import Ledger, create_ledger
from dpflow.ledger.storage.memory import forget_memory
from tests.ledger.support import audit


@pytest.fixture
def place() -> Iterator[str]:
    """Give the place of a ledger in memory."""
    url = f"memory://{uuid.uuid4().hex}"
    yield url
    forget_memory(url)


@pytest.fixture
def ledger(place: str) -> Iterator[Ledger]:
    """Give a new ledger, and audit it at the end."""
    opened = create_ledger(place)
    yield opened
    opened.close()
    audit(place)
