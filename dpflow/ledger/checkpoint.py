"""Signed checkpoints: ends of journals that someone with the private key has seen.

Whoever can write the database can recompute the whole chain, but not these signatures;
nor can whoever checks them, who needs the public key only.
A checkpoint is an entry of the book that it signs, so it cannot be taken out without
writing what follows anew; each counts those before it and names the last signature. It
tells what the accounts came to, so that a later run can go on from there. The newest
can still be cut off with the journal's end; of that the witness tells.

It needs the standard library only, so that an auditor can run it alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any

from dpflow.ledger.ed25519 import Sign, Verifies, from_hex
from dpflow.ledger.entry import Entry, canonical
from dpflow.ledger.rows import (
    Account,
    Book,
    Charge,
    Key,
    Row,
    Term,
    key_of,
    sums_of_lists,
)


def told(
    ledger: str,
    book: str,
    number: int,
    digest: str,
    *,
    count: int,
    previous: str,
    sums: str,
) -> bytes:
    """Return what a checkpoint's signature is over.

    A list, which no manifest and no grant begins like: one key signs all three.

    Args:
        ledger: Id of the ledger.
        book: Whose journal was signed.
        number: Of the newest entry that was signed.
        digest: Hash of that entry.
        count: How many checkpoints the book has with this one.
        previous: The last one's signature; empty for the first.
        sums: The sha256 of what everything came to.
    """
    text = canonical([ledger, book, number, digest, count, previous, sums])
    return text.encode()


def signed(
    sign: Sign,
    ledger: str,
    book: str,
    place: tuple[int, str],
    *,
    last: Mapping[str, Any] | None,
    sums: Mapping[str, Any],
) -> dict[str, Any]:
    """Return what a checkpoint's entry says.

    Args:
        sign: Signs with the ledger's private key.
        ledger: Id of the ledger.
        book: Whose journal is signed.
        place: Number and hash of the newest entry that was verified.
        last: What the last checkpoint's entry says; None if there is none.
        sums: What everything came to, from `sums_of`.
    """
    number, digest = place
    count = 1 if last is None else last["count"] + 1
    previous = "" if last is None else last["signature"]
    text = told(
        ledger,
        book,
        number,
        digest,
        count=count,
        previous=previous,
        sums=_digest(sums),
    )
    return {
        "number": number,
        "hash": digest,
        "count": count,
        "previous": previous,
        "sums": dict(sums),
        "signature": sign(text).hex(),
    }


def opening(sign: Sign, ledger: str, entry: Entry) -> dict[str, Any]:
    """Return what the checkpoint of a book's first entry says.

    Signed when it is written, so that a book without a checkpoint is one whose
    checkpoints were removed.
    """
    place = (entry.number, entry.hash)
    sums = {
        "accounts": {},
        "charges": {},
        "terms": {"1": (place, place)},
        "book": Book(entry.book, *place, None, {}, 1)[1:],
    }
    return signed(sign, ledger, entry.book, place, last=None, sums=sums)


def forged(
    verifies: Verifies, ledger: str, book: str, points: Iterable[Mapping[str, Any]]
) -> int | None:
    """Return the number of the first entry whose checkpoint the key did not sign so.

    Args:
        verifies: Checks a signature with the ledger's public key.
        ledger: Id of the ledger.
        book: Whose checkpoints these are.
        points: What their entries say, oldest first.
    """
    previous = ""
    for count, point in enumerate(points, 1):
        text = told(
            ledger,
            book,
            point["number"],
            point["hash"],
            count=count,
            previous=previous,
            sums=_digest(point["sums"]),
        )
        if not verifies(text, from_hex(point["signature"])):
            return int(point["number"])
        previous = point["signature"]
    return None


def miscounted(points: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the number that the first checkpoint signs that is not in its place."""
    previous = ""
    for count, point in enumerate(points, 1):
        if (point["count"], point["previous"]) != (count, previous):
            return int(point["number"])
        previous = point["signature"]
    return None


def points_of(entries: Iterable[Entry]) -> list[Mapping[str, Any]]:
    """Return what the checkpoints among some entries say."""
    return [each.body["signed"] for each in entries if each.kind == "checkpoint"]


# What everything came to


#: By book and number of a term, number and hash of the entry that opened it, and of the
#: one that tightened it last.
Told = Mapping[tuple[str, int], tuple[tuple[int, str], tuple[int, str]]]


def sums_of(rows: Mapping[Key, Row], told: Told) -> dict[str, dict[str, Any]]:
    """Return what each book came to: where a later run goes on.

    Args:
        rows: All rows, after the newest entries that are signed.
        told: Where the terms are told.
    """
    found: dict[str, dict[str, Any]] = defaultdict(
        lambda: {"accounts": {}, "charges": {}, "terms": {}}
    )
    for row in rows.values():
        if isinstance(row, Account):
            found[row.book]["accounts"][row.id] = row[2:]
        elif isinstance(row, Charge) and row.state == "open":
            for book in row.places:
                found[book]["charges"][row.id] = row[1:]
        elif isinstance(row, Term):
            found[row.book]["terms"][str(row.number)] = told[row.book, row.number]
        elif isinstance(row, Book):
            found[row.name]["book"] = row[1:]
    return dict(found)


def rows_from(book: str, sums: Mapping[str, Any]) -> Iterator[tuple[Key, Row]]:
    """Yield the rows that a checkpoint tells of, but the terms."""
    number, digest, frozen, ran, terms = sums["book"]
    found: list[Row] = [Book(book, number, digest, frozen, ran, terms)]
    for name, (entry, settled, held, overdrawn, told) in sums["accounts"].items():
        both = tuple(settled), tuple(held)
        found.append(Account(name, book, entry, *both, overdrawn, told))
    for name, (state, owner, places, held, added, *rest) in sums["charges"].items():
        at = {each: (both[0], both[1]) for each, both in places.items()}
        found.append(
            Charge(
                name, state, owner, at, sums_of_lists(held), sums_of_lists(added), *rest
            )
        )
    for row in found:
        yield key_of(row), row


def _digest(sums: Mapping[str, Any]) -> str:
    return sha256(canonical(sums).encode()).hexdigest()
