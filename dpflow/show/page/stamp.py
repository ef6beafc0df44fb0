"""The stamp of a verification: what was recomputed, what came of it, and when."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime

from dpflow.exceptions import LedgerError
from dpflow.ledger import Ledger
from dpflow.ledger.audit.findings import Finding, Verification
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.keys import ledger_key

_MOST_PROBLEMS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """What a verification found, and when.

    Attributes:
        found: What it found; the newest entry lets who kept an earlier page compare.
        at: When it was done.
        seconds: How long it took.
    """

    found: Verification
    at: str
    seconds: float

    @property
    def problems(self) -> tuple[str, ...]:
        """What is bad, in words."""
        return tuple(map(str, self.found.bad[:_MOST_PROBLEMS]))


def verified(ledger: Ledger) -> Stamp:
    """Recompute the whole ledger; nothing is written.

    Signatures of checkpoints are checked if `DPFLOW_LEDGER_KEY` is set.

    Raises:
        ConfigurationError: If that names no key.
    """
    key = ledger_key()
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    start = time.monotonic()
    try:
        found = verify(ledger, key=key)
    except LedgerError as error:
        found = Verification(bad=[Finding(problem=error.message)])
    return Stamp(found=found, at=at, seconds=time.monotonic() - start)
