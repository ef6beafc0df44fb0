"""Signed checkpoints: ends of the journal that someone with the private key has seen.

Whoever can write the database can recompute the whole chain, but not these signatures;
nor can whoever checks them, who needs the public key only.
A checkpoint is an entry itself, so it cannot be taken out without writing what follows
anew; each counts those before it and names the last signature. The newest can still be
cut off with the journal's end; the witness detects that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dpflow.ledger.entry import canonical
from dpflow.ledger.keys import LedgerKey, Sign


def message(ledger: str, point: Mapping[str, Any]) -> bytes:
    """Return what a checkpoint's signature is over.

    Args:
        ledger: Id of the ledger.
        point: What the checkpoint's entry says: number and hash of the newest entry
            that was signed, count of the checkpoints with this one, and the previous
            signature (empty for the first).
    """
    names = ("number", "hash", "count", "previous")
    return canonical([ledger, *map(point.__getitem__, names)]).encode()


def signed(
    sign: Sign,
    ledger: str,
    place: tuple[int, str],
    last: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what a checkpoint's entry says.

    Args:
        sign: Signs with the ledger's private key.
        ledger: Id of the ledger.
        place: Number and hash of the newest entry that was verified.
        last: What the last checkpoint's entry says; None if there is none.
    """
    point = {
        "number": place[0],
        "hash": place[1],
        "count": 1 if last is None else last["count"] + 1,
        "previous": "" if last is None else last["signature"],
    }
    return {**point, "signature": sign(message(ledger, point)).hex()}


def first_wrong(
    key: LedgerKey | None, ledger: str, points: Iterable[Mapping[str, Any]]
) -> int | None:
    """Return the number that the first wrong checkpoint signs; None if none is.

    It is not in its place, or the key did not sign it so.

    Args:
        key: Checks the signatures; None: places only.
        ledger: Id of the ledger.
        points: What their entries say, oldest first.
    """
    previous = ""
    for count, point in enumerate(points, 1):
        placed = (point["count"], point["previous"]) == (count, previous)
        text, signature = message(ledger, point), point["signature"]
        if not placed or (key and not key.verifies(text, signature)):
            return int(point["number"])
        previous = point["signature"]
    return None
