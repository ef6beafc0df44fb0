"""A folder that is mounted a second time, read-only, where the user may mount."""

from __future__ import annotations

import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def read_only_view(folder: Path, at: Path) -> Iterator[Path | None]:
    """Mount a folder a second time, read-only; None if this user may not."""
    at.mkdir(exist_ok=True)
    bind = ["mount", "--bind", str(folder), str(at)]
    done = subprocess.run(bind, capture_output=True, text=True, check=False)
    if done.returncode:
        warnings.warn(f"no mount is permitted: {done.stderr}", stacklevel=3)
        yield None
        return
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(at)], check=True)
        yield at
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=True)
