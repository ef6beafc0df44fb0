"""Ledgers to try things on, in memory or in files that need no disk.

What dies in these tests are processes, not machines.
"""

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dpflow.ledger.ledger import Ledger
from tests.in_memory import tmp_path  # noqa: F401
from tests.ledger.support import Place, make_ledger
from tests.ledger.witness.accidents import Host
from tests.postgres import server


@pytest.fixture
def ledger(path: Place) -> Iterator[Ledger]:
    """Give a new, open ledger."""
    with closing(make_ledger(path)) as opened:
        yield opened


@pytest.fixture
def host(tmp_path: Path) -> Host:  # noqa: F811
    """Give a host that has charged something."""
    made = Host(tmp_path, str(tmp_path / "state"), random.Random(3))
    made.work()
    return made


@pytest.fixture(params=["file", "postgres"])
def place(
    request: pytest.FixtureRequest,
    tmp_path: Path,  # noqa: F811
) -> Iterator[str]:
    """Give a place for a witness."""
    if request.param == "file":
        yield str(tmp_path / "witness")
    else:
        url = server().new_database()
        yield url
        server().drop(url)
