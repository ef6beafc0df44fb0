"""Writes that outlast a loss of power."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

#: What a disk says that has no such command; any other error is a lost write.
_UNSUPPORTED = (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY)


def write(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of it."""
    while data:
        data = data[os.write(descriptor, data) :]


def sync(descriptor: int) -> None:
    """Make what was written durable, past the disk's own cache where that can be.

    Raises:
        OSError: If it may be lost.
    """
    if not _synced_past_cache(descriptor):
        getattr(os, "fdatasync", os.fsync)(descriptor)


def sync_whole(descriptor: int) -> None:
    """Make a file durable with all that is known of it, or the names in a folder.

    Raises:
        OSError: If it may be lost.
    """
    _synced_past_cache(descriptor)
    os.fsync(descriptor)


def sync_path(path: Path) -> None:
    """Do so by name."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        sync_whole(descriptor)
    finally:
        os.close(descriptor)


def _synced_past_cache(descriptor: int) -> bool:
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is None:
        return False
    try:
        fcntl.fcntl(descriptor, full)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        return False
    return True
