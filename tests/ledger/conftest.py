"""Ledgers to try things on, in memory or in files that need no disk.

What dies in these tests are processes, not machines.
"""

from collections.abc import Iterator

import pytest

from dpflow.ledger.ledger import Ledger
from tests.in_memory import tmp_path  # noqa: F401
from tests.ledger.support import Place, make_ledger


@pytest.fixture
def ledger(path: Place) -> Iterator[Ledger]:
    """Give a new, open ledger."""
    opened = make_ledger(path)
    yield opened
    opened.close()
