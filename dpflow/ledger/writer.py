"""Who writes to the ledger."""

from __future__ import annotations

import getpass
import socket
from functools import cache


@cache
def writer() -> str:
    """Return who writes: the operating-system user and the host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
