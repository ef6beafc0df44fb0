"""Writes that survive a power failure."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from dpflow.interrupts import without_interrupts

#: Errors of a disk without the command that empties its cache; others lose a write.
_UNSUPPORTED = (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY)


def make_private_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing, for their owner only."""
    if not path.is_dir():
        make_private_folder(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)


def write(descriptor: int, data: bytes | memoryview) -> None:
    """Write all data."""
    while data:
        data = data[os.write(descriptor, data) :]


def sync(descriptor: int) -> None:
    """Sync a file's data and metadata, or a folder's entries, past the disk's cache.

    Raises:
        OSError: If the sync failed; the data may be lost.
    """
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        try:
            fcntl.fcntl(descriptor, full)
        except without_interrupts(OSError) as error:
            if error.errno not in _UNSUPPORTED:
                raise
    os.fsync(descriptor)


def sync_path(path: Path) -> None:
    """Sync the file or folder at a path."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)
