"""A database of Prefect's server that has its tables."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import prefect

UPGRADE = ("server", "database", "upgrade", "-y")


def copy_database(target: Path) -> None:
    """Copy an empty one; each server would take many seconds to make its own.

    Args:
        target: The new file. The one that is copied stays in the environment.
    """
    kept = Path(sys.prefix) / f"prefect-{prefect.__version__}.db"
    with kept.with_suffix(".lock").open("w") as lock:
        # Of several processes of tests one makes it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            _make_database(kept)
    shutil.copyfile(kept, target)


def _make_database(kept: Path) -> None:
    with tempfile.TemporaryDirectory(dir=sys.prefix) as home:
        subprocess.run(
            [sys.executable, "-m", "prefect", *UPGRADE],
            env={**os.environ, "PREFECT_HOME": home},
            capture_output=True,
            check=True,
        )
        (Path(home) / "prefect.db").replace(kept)
