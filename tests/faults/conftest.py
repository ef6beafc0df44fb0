"""Ledgers that tests harm, in memory where no disk is needed, and the figures."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import open_ledger
from tests.faults.support import FIGURES
from tests.in_memory import tmp_path  # noqa: F401 (what dies are processes)
from tests.ledger.support import Place, new_ledger, url


@pytest.fixture
def path(tmp_path: Path) -> Path:  # noqa: F811
    """Give the place of a new, empty, closed ledger in a file."""
    new_ledger(tmp_path).close()
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    """Give the open ledger of the file."""
    with closing(open_ledger(url(path))) as opened:
        yield opened


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:  # noqa: F811
    """Give a place without a ledger: a file, or an empty database."""
    if request.param == "sqlite":
        return tmp_path / "ledger.db"
    return str(request.getfixturevalue("postgres_url"))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what each search counted; a violation is a failed test."""
    if FIGURES:
        terminalreporter.section("faults")
    for line in FIGURES:
        terminalreporter.write_line(line)
