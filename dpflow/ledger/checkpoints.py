"""Signed checkpoints: heads of accounts that someone with the ledger's key has seen.

Whoever can write the database can recompute the whole chain, but not these signatures.
Each counts those before it on its account and names the last one's signature, so none
can be taken out of the middle, edited or put in another's place. The newest can still
be taken off, with the journal's end cut to fit; of that the witness tells, which
remembers the newest count and signature.
"""

from __future__ import annotations

import hmac

from dpflow.config import ledger_key
from dpflow.ledger.database import Row, Session
from dpflow.ledger.records import canonical
from dpflow.ledger.witness_lines import HEAD, Line
from dpflow.ledger.writer import writer

#: What stands before an account in the witness's lines about its checkpoints.
WITNESSED = "checkpoints of "


def signature(
    key: bytes,
    ledger: str,
    account: str,
    seq: int,
    digest: str,
    *,
    number: int | None = None,
    previous: str = "",
) -> str:
    """Return the HMAC-SHA256 over what a checkpoint says.

    Args:
        key: The ledger's key.
        ledger: Id of the ledger.
        account: Which was signed.
        seq: Number of its newest entry.
        digest: Hash of that entry.
        number: How many checkpoints the account has with this one; None for those
            that were signed before they were counted.
        previous: The last one's signature; empty for the first.
    """
    chained = [] if number is None else [number, previous]
    text = canonical([ledger, account, seq, digest, *chained])
    return hmac.new(key, text.encode(), "sha256").hexdigest()


def sign(
    session: Session,
    key: bytes,
    *,
    ledger: str,
    account: str,
    seq: int,
    digest: str,
    at: str,
) -> Line | None:
    """Keep a checkpoint of an account's newest entry, unless it has one.

    Returns:
        What the witness is to be told after the commit; None if nothing is new.
    """
    known = session.rows("checkpoints_of_account", account=account)
    if known and known[-1]["seq"] >= seq:
        return None
    number = len(known) + 1
    previous = known[-1]["signature"] if known else ""
    signed = signature(
        key, ledger, account, seq, digest, number=number, previous=previous
    )
    session.change(
        "add_checkpoint",
        account=account,
        seq=seq,
        hash=digest,
        number=number,
        signature=signed,
        at=at,
        writer=writer(),
    )
    return checkpoint_line(account, {"number": number, "signature": signed})


def checkpoint_line(account: str, row: Row) -> Line:
    """Return what the witness is told of a checkpoint."""
    return Line(
        account=f"{WITNESSED}{account}",
        seq=row["number"],
        hash=row["signature"],
        used=HEAD,
        asked=HEAD,
    )


def sign_opening(session: Session, account: str, digest: str, at: str) -> None:
    """Sign the first entry of an account, if this process has the key.

    So an account without a checkpoint is one whose checkpoints were removed.
    """
    key = ledger_key()
    if key is None:
        return
    ledger = session.rows("read_ledger")[0]["ledger_id"]
    sign(session, key, ledger=ledger, account=account, seq=1, digest=digest, at=at)


def forged(key: bytes, ledger: str, account: str, rows: list[Row]) -> int | None:
    """Return the number of the first entry whose checkpoint the key did not sign so.

    Args:
        key: The ledger's key.
        ledger: Id of the ledger.
        account: Whose checkpoints these are.
        rows: All of them, by the entries that they sign.
    """
    previous, counted = "", False
    for place, row in enumerate(rows, 1):
        counted = counted or row["number"] is not None
        expected = signature(
            key,
            ledger,
            account,
            row["seq"],
            row["hash"],
            number=place if counted else None,
            previous=previous,
        )
        if not hmac.compare_digest(expected, row["signature"]):
            return int(row["seq"])
        if counted and row["number"] != place:
            return int(row["seq"])
        previous = row["signature"]
    return None
