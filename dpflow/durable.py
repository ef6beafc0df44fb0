"""Writes that outlast a loss of power."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path


def write(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of it."""
    while data:
        data = data[os.write(descriptor, data) :]


def sync(descriptor: int) -> None:
    """Make what was written durable, past the disk's own cache where that can be."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        with suppress(OSError):
            fcntl.fcntl(descriptor, full)
            return
    getattr(os, "fdatasync", os.fsync)(descriptor)


def sync_path(path: Path) -> None:
    """Make a file durable with all that is known of it, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if hasattr(fcntl, "F_FULLFSYNC"):
            sync(descriptor)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
