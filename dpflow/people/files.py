"""Files that are replaced whole or not at all, and the lock beside them."""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

_SLEEP_SECONDS = 0.005
_MODE: Final = 0o600
Bytes = bytes | bytearray | memoryview


def replace_file(path: Path, chunks: Iterable[Bytes]) -> None:
    """Put new contents at a path, durably: after a crash it holds the old or the new.

    Raises:
        OSError: If any step failed; the contents are then the old or the new.
    """
    fresh = path.with_name(f"{path.name}.new")
    descriptor = os.open(
        fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _MODE
    )
    try:
        for chunk in chunks:
            _write_all(descriptor, memoryview(chunk))
        sync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(fresh, path)  # noqa: PTH105
    sync_folder(path.parent)


def remove_unfinished(path: Path) -> None:
    """Remove what a crash during `replace_file` left; the lock must be held."""
    with suppress(FileNotFoundError):
        path.with_name(f"{path.name}.new").unlink()


def sync_folder(folder: Path) -> None:
    """Make a folder's entries durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def sync(descriptor: int) -> None:
    """Make a file durable, past the disk's own cache where the system can."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        with suppress(OSError):
            fcntl.fcntl(descriptor, full)
            return
    os.fsync(descriptor)


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def identity(path: Path) -> tuple[int, int]:
    """Return what tells this file from another put in its place."""
    status = path.stat()
    return status.st_dev, status.st_ino


def take_lock(path: Path, seconds: float) -> int | None:
    """Lock a file for this process until its descriptor is closed.

    Returns:
        The descriptor, or None if another holder kept it for so long.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(descriptor)
                return None
            time.sleep(_SLEEP_SECONDS)
        except BaseException:
            os.close(descriptor)
            raise
        else:
            return descriptor


def digest(*parts: Bytes) -> str:
    """Return the SHA-256 of the parts, one after the other."""
    total = hashlib.sha256()
    for part in parts:
        total.update(part)
    return total.hexdigest()
