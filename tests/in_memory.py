"""Folders in memory: no disk is waited for, whose syncs are most of a ledger's time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

MEMORY = Path("/dev/shm")


@pytest.fixture
def tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a folder in memory; without the right to write there, one on disk.

    Its times tell two writes apart, so that no reader waits for a second to pass.
    """
    monkeypatch.setattr("dpflow.ledger.tables.sqlite_files._UNSURE", 0.001)
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with TemporaryDirectory(dir=MEMORY, ignore_cleanup_errors=True) as name:
        yield Path(name)
