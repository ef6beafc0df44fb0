"""Signed checkpoints: ends of journals that someone with the private key has seen.

Whoever can write the database can recompute the whole chain, but not these signatures;
nor can whoever checks them, who needs the public key only.
A checkpoint is an entry of the book that it signs, so it cannot be taken out without
writing what follows anew; each counts those before it and names the last signature. The
newest can still be cut off with the journal's end; the witness detects that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dpflow.ledger.entry import Entry, canonical
from dpflow.ledger.keys import LedgerKey, Sign, from_hex


def message(ledger: str, book: str, point: Mapping[str, Any]) -> bytes:
    """Return what a checkpoint's signature is over.

    Args:
        ledger: Id of the ledger.
        book: Whose journal was signed.
        point: What the checkpoint's entry says: number and hash of the newest entry
            that was signed, count of the book's checkpoints with this one, and the
            previous signature (empty for the first).
    """
    names = ("number", "hash", "count", "previous")
    return canonical([ledger, book, *map(point.__getitem__, names)]).encode()


def signed(
    sign: Sign,
    ledger: str,
    book: str,
    place: tuple[int, str],
    *,
    last: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what a checkpoint's entry says.

    A book's first entry is signed when it is written, so that a book without a
    checkpoint is one whose checkpoints were removed.

    Args:
        sign: Signs with the ledger's private key.
        ledger: Id of the ledger.
        book: Whose journal is signed.
        place: Number and hash of the newest entry that was verified.
        last: What the last checkpoint's entry says; None if there is none.
    """
    point = {
        "number": place[0],
        "hash": place[1],
        "count": 1 if last is None else last["count"] + 1,
        "previous": "" if last is None else last["signature"],
    }
    return {**point, "signature": sign(message(ledger, book, point)).hex()}


def first_wrong(
    key: LedgerKey | None,
    ledger: str,
    book: str,
    points: Iterable[Mapping[str, Any]],
) -> int | None:
    """Return the number that the first wrong checkpoint signs; None if none is.

    It is not in its place, or the key did not sign it so.

    Args:
        key: Checks the signatures; None: places only.
        ledger: Id of the ledger.
        book: Whose checkpoints these are.
        points: What their entries say, oldest first.
    """
    previous = ""
    for count, point in enumerate(points, 1):
        placed = (point["count"], point["previous"]) == (count, previous)
        made = from_hex(point["signature"])
        if not placed or (key and not key.verifies(message(ledger, book, point), made)):
            return int(point["number"])
        previous = point["signature"]
    return None


def points_of(entries: Iterable[Entry]) -> list[Mapping[str, Any]]:
    """Return what the checkpoints among some entries say."""
    return [each.body["signed"] for each in entries if each.kind == "checkpoint"]
