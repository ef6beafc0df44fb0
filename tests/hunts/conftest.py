"""Where the hunts keep their ledgers, and the figures that they end with."""

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.hunts.machinery.support import FIGURES, memory_folder

#: The backends to hunt on: `sqlite`, or the URLs of empty places for a ledger.
BACKENDS = os.environ.get("DPFLOW_HUNT_URLS", "sqlite").split(",")


@pytest.fixture(params=BACKENDS)
def ledger_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Give a place where a hunt may make a ledger; a file lies in memory."""
    folder = memory_folder()
    file = f"sqlite:///{folder / 'ledger.db'}"
    yield file if request.param == "sqlite" else request.param
    shutil.rmtree(folder)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what each hunt counted; a violation is a failed test."""
    if FIGURES:
        terminalreporter.section("hunts")
    for line in FIGURES:
        terminalreporter.write_line(line)
