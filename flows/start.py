"""What an example flow needs before it runs as one command: a ledger and patience."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prefect.settings import (
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
    temporary_settings,
)

_LEDGER = Path(".dpflow") / "ledger.db"
_PIN = Path("policies") / "ledger.lock"


@contextmanager
def project() -> Iterator[None]:
    """Make this folder's first ledger if there never was one, and wait for Prefect.

    A pinned ledger that is missing is never replaced: the first step then fails and
    says what to do.
    """
    known = _LEDGER.exists() or _PIN.exists() or "DPFLOW_LEDGER_URL" in os.environ
    if not known:
        command = [sys.executable, "-m", "dpflow", "ledger", "init"]
        subprocess.run(command, check=True)  # noqa: S603 (our own command)
    # A fresh Prefect home is migrated first, which can take longer than the default.
    with temporary_settings({PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS: 180}):
        yield
