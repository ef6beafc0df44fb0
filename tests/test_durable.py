"""A disk without a command to empty its cache is synced; a lost write is an error."""

from __future__ import annotations

import errno
import fcntl
import os
from unittest.mock import Mock

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


def test_the_cache_of_the_disk_is_emptied(synced, tmp_path, monkeypatch):
    """Of a file and of a folder; some network disks have no such command."""
    sync(0)
    sync_path(tmp_path)
    assert synced == ["full", "fsync"] * 2
    monkeypatch.setattr(fcntl, "fcntl", Mock(side_effect=OSError(errno.ENOTSUP, "")))
    sync(0)
    assert synced[4:] == ["fsync"]


def test_a_write_that_is_lost_is_an_error(synced, monkeypatch, tmp_path):
    """The next sync would not report it."""
    monkeypatch.setattr(fcntl, "fcntl", Mock(side_effect=OSError(errno.EIO, "lost")))
    for call in (lambda: sync(0), lambda: sync_path(tmp_path)):
        with pytest.raises(OSError, match="lost"):
            call()
    assert synced == []
