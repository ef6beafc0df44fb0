"""The stamp of a verification: what was recomputed, what came of it, and when."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime

from dpflow.exceptions import LedgerError
from dpflow.ledger import Ledger
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.keys import ledger_key

_MOST_PROBLEMS = 20
#: What a stamp says as the verification does.
_SAME = (
    *("fine", "accounts", "entries", "reservations", "releases"),
    *("checkpoints", "signed", "witness"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The newest entry of a dataset or population that was recomputed."""

    dataset: str
    entry: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """What a verification found.

    Attributes:
        fine: Whether all that was recomputed agrees.
        witness: "agrees", "contradicts", "missing" or "waived".
        checkpoints: How many signed ones there are.
        signed: Whether their signatures were checked, too: the key was set.
        heads: By dataset; who kept an earlier page can compare.
        problems: What is bad, in words.
        at: When it was done.
        seconds: How long it took.
    """

    fine: bool
    at: str
    seconds: float
    accounts: int = 0
    entries: int = 0
    reservations: int = 0
    releases: int = 0
    checkpoints: int = 0
    signed: bool = False
    witness: str = "waived"
    heads: tuple[Head, ...] = ()
    problems: tuple[str, ...] = ()


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
        found = verify(ledger, key=key, sign=False)
    except LedgerError as error:
        seconds = time.monotonic() - start
        return Stamp(fine=False, at=at, seconds=seconds, problems=(error.message,))
    return Stamp(
        **{name: getattr(found, name) for name in _SAME},
        at=at,
        seconds=time.monotonic() - start,
        heads=tuple(
            Head(dataset=book, entry=entry, digest=digest)
            for book, (entry, digest) in sorted(found.heads.items())
        ),
        problems=tuple(map(str, found.bad[:_MOST_PROBLEMS])),
    )
