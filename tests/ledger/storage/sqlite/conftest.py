"""A ledger in a closed file, and the same opened."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import open_ledger
from tests.ledger.support import new_ledger, url


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Give the place of a new, empty, closed ledger."""
    new_ledger(tmp_path).close()
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    """Give an open ledger."""
    opened = open_ledger(url(path))
    yield opened
    opened.close()
