"""Where the hunts keep their ledgers, and the figures that they end with."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hunts.machinery.support import FIGURES, memory_folder

#: The backends to hunt on: `sqlite`, or the URLs of empty places for a ledger.
BACKENDS = os.environ.get("DPFLOW_HUNT_URLS", "sqlite").split(",")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a folder in memory."""
    place = memory_folder()
    yield place
    shutil.rmtree(place)


@pytest.fixture(params=BACKENDS)
def ledger_url(request: pytest.FixtureRequest, folder: Path) -> str:
    """Give a place where a hunt may make a ledger; a file lies in memory."""
    file = f"sqlite:///{folder / 'ledger.db'}"
    return file if request.param == "sqlite" else request.param


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what each hunt counted; a violation is a failed test."""
    if FIGURES:
        terminalreporter.section("hunts")
    for line in FIGURES:
        terminalreporter.write_line(line)
