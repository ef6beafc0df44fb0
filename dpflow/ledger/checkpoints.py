"""Signed checkpoints: heads of accounts that someone with the ledger's key has seen.

Whoever can write the database can recompute the whole chain, but not these signatures.
What was signed last can still be removed or put back; the witness tells of that.
"""

from __future__ import annotations

import hmac

from dpflow.config import ledger_key
from dpflow.ledger.database import Row, Session
from dpflow.ledger.records import canonical
from dpflow.ledger.writer import writer


def signature(key: bytes, ledger: str, account: str, seq: int, digest: str) -> str:
    """Return the HMAC-SHA256 over what a checkpoint says."""
    text = canonical([ledger, account, seq, digest])
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
) -> None:
    """Keep a checkpoint of an entry."""
    session.change(
        "add_checkpoint",
        account=account,
        seq=seq,
        hash=digest,
        signature=signature(key, ledger, account, seq, digest),
        at=at,
        writer=writer(),
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
    """Return the number of the first entry whose checkpoint the key did not sign."""
    for row in rows:
        expected = signature(key, ledger, account, row["seq"], row["hash"])
        if not hmac.compare_digest(expected, row["signature"]):
            return int(row["seq"])
    return None
