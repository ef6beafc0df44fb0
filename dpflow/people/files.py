"""Files that are replaced whole or not at all."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from dpflow.durable import sync_path, sync_whole, write

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
            write(descriptor, memoryview(chunk))
        # By the descriptor that wrote: another may not hear of a write that failed.
        sync_whole(descriptor)
    finally:
        os.close(descriptor)
    os.replace(fresh, path)  # noqa: PTH105
    sync_path(path.parent)


def remove_unfinished(path: Path) -> None:
    """Remove what a crash during `replace_file` left; the lock must be held."""
    with suppress(FileNotFoundError):
        path.with_name(f"{path.name}.new").unlink()


def identity(path: Path) -> tuple[int, int]:
    """Return what tells this file from another put in its place."""
    status = path.stat()
    return status.st_dev, status.st_ino


def digest(*parts: Bytes) -> str:
    """Return the SHA-256 of the parts, one after the other."""
    total = hashlib.sha256()
    for part in parts:
        total.update(part)
    return total.hexdigest()
