"""What an example flow needs before it runs as one command: a ledger."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_LEDGER = Path(".dpflow") / "ledger.db"
_PIN = Path("policies") / "ledger.lock"


def make_first_ledger() -> None:
    """Make this folder's first ledger if there never was one.

    A pinned ledger that is missing is never replaced: the first step then fails and
    says what to do.
    """
    known = _LEDGER.exists() or _PIN.exists() or "DPFLOW_LEDGER_URL" in os.environ
    if not known:
        command = [sys.executable, "-m", "dpflow", "ledger", "init"]
        subprocess.run(command, check=True)  # noqa: S603 (our own command)
