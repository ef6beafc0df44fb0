"""Making a ledger, and opening one that exists."""

from __future__ import annotations

import secrets
import uuid
from datetime import UTC, datetime

from dpflow.ledger.ledger import Ledger
from dpflow.ledger.memory import MemoryOwners
from dpflow.ledger.records import Conditions
from dpflow.ledger.storage.base import Identity
from dpflow.ledger.storage.memory import MEMORY, Memory


def open_ledger(
    url: str, *, environment: str | None = None, conditions: Conditions | None = None
) -> Ledger:
    """Open a ledger that exists."""
    storage = Memory(url.removeprefix(MEMORY))
    return Ledger(
        storage, MemoryOwners(), environment=environment, conditions=conditions
    )


def create_ledger(url: str, *, environment: str | None = None) -> Ledger:
    """Make a new, empty ledger."""
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    identity = Identity(uuid.uuid4().hex, environment, at)
    secret = secrets.token_bytes(32)
    storage = Memory.create(url.removeprefix(MEMORY), identity, secret)
    return Ledger(storage, MemoryOwners(), environment=environment)
