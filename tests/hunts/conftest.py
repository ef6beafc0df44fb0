"""Where the hunts keep their ledgers, and the figures that they end with."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hunts.machinery.support import FIGURES, memory_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a folder in memory."""
    place = memory_folder()
    yield place
    shutil.rmtree(place)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what each hunt counted; a violation is a failed test."""
    if FIGURES:
        terminalreporter.section("hunts")
    for line in FIGURES:
        terminalreporter.write_line(line)
