"""Stamp of a verification: its time and its findings."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from dpflow.exceptions import LedgerError
from dpflow.ledger import Ledger
from dpflow.ledger.audit.journals import Finding, Verification
from dpflow.ledger.audit.verify import verify


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """Findings of a verification; the reader of an earlier page can compare the head.

    Attributes:
        at: Time of its beginning.
    """

    found: Verification
    at: str


def make_stamp(ledger: Ledger) -> Stamp:
    """Recompute the whole ledger; nothing is written."""
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    try:
        return Stamp(found=verify(ledger), at=at)
    except LedgerError as error:
        return Stamp(found=Verification(bad=[Finding(problem=error.message)]), at=at)
