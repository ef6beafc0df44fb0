"""Ledgers to try things on, in memory or in files that need no disk.

What dies in these tests are processes, not machines.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dpflow.ledger.ledger import Ledger
from tests.in_memory import tmp_path  # noqa: F401
from tests.ledger.support import Place, make_ledger


@pytest.fixture
def ledger(path: Place) -> Iterator[Ledger]:
    """Give a new, open ledger."""
    with closing(make_ledger(path)) as opened:
        yield opened


@pytest.fixture(params=["file", "postgres"])
def place(
    request: pytest.FixtureRequest,
    tmp_path: Path,  # noqa: F811
) -> str:
    """Give a place for a witness."""
    if request.param == "file":
        return str(tmp_path / "witness")
    return str(request.getfixturevalue("postgres_url"))
