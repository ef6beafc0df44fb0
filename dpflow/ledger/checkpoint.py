"""Signed checkpoints: ends of the journal that a holder of the private key verified.

A writer of the database can compute the whole chain anew, but not these signatures. Nor
can a reader who checks them, with the public key.
A checkpoint is an entry of the journal. It counts the checkpoints before it and names
the last signature, so none can be taken out of the middle. The newest can be cut off
together with the journal's end; the witness detects that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpflow.ledger.entry import canonical
from dpflow.ledger.keys import Sign

#: Facts of a checkpoint: number and hash of the newest entry that was verified, count
#: of the checkpoints with this one, the previous signature (empty for the first), and
#: the signature of these.
SIGNED = ("number", "hash", "count", "previous", "signature")


def signed_text(ledger: str, point: Mapping[str, Any]) -> bytes:
    """Return the signed message of a checkpoint of a ledger with this id."""
    return canonical([ledger, *map(point.__getitem__, SIGNED[:-1])]).encode()


def signed_point(
    sign: Sign, ledger: str, head: tuple[int, str], last: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the facts of the next checkpoint.

    Args:
        sign: Signs with the ledger's private key.
        ledger: Id of the ledger.
        head: Number and hash of the newest entry that was verified.
        last: Facts of the last checkpoint, if there is one.
    """
    number, digest = head
    count, previous = (last["count"], last["signature"]) if last else (0, "")
    facts = (number, digest, count + 1, previous)
    point: dict[str, Any] = dict(zip(SIGNED, facts, strict=False))
    return {**point, "signature": sign(signed_text(ledger, point)).hex()}
