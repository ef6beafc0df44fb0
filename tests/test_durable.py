"""A disk without a command to empty its cache is synced; a lost write is an error."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from dpflow.durable import sync, sync_path


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the calls of the system, in a system that has all of them."""
    calls: list[str] = []
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda *_: calls.append("full"))
    monkeypatch.setattr(os, "fsync", lambda _: calls.append("fsync"))
    return calls


def fail(number: int) -> None:
    """Answer as a disk with an error does."""
    raise OSError(number, os.strerror(number))


def test_the_cache_of_the_disk_is_emptied(synced: list[str], tmp_path: Path) -> None:
    """Of a file and of a folder."""
    sync(0)
    sync_path(tmp_path)
    assert synced == ["full", "fsync"] * 2


def test_a_disk_that_cannot_is_synced_as_far_as_it_goes(
    synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some network disks have no such command."""
    monkeypatch.setattr(fcntl, "fcntl", lambda *_: fail(errno.ENOTSUP))
    sync(0)
    assert synced == ["fsync"]


def test_a_write_that_is_lost_is_an_error(
    synced: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The next sync would not hear of it any more."""
    monkeypatch.setattr(fcntl, "fcntl", lambda *_: fail(errno.EIO))
    for call in (lambda: sync(0), lambda: sync_path(tmp_path)):
        with pytest.raises(OSError, match="Input/output"):
            call()
    assert synced == []
