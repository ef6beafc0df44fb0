"""Who writes to the ledger."""

from __future__ import annotations

import socket
from functools import cache

from dpflow.ledger.provenance import system_user


@cache
def writer() -> str:
    """Return who writes: the operating-system user and the host."""
    return f"{system_user()}@{socket.gethostname()}"
