"""The journal as a stream of rows, for other programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dpflow.ledger.database import Row
from dpflow.ledger.kernel import Ledger

_PAGE = 2000

#: What each row holds, in this order; more may follow in later versions, at the end.
COLUMNS = (
    "account",
    "seq",
    "kind",
    "reservation",
    "amount",
    "settled_after",
    "held_after",
    "run",
    "body",
    "at",
    "writer",
    "hash",
)


def journal_rows(
    ledger: Ledger, accounts: Sequence[Row] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield every entry as the ledger keeps it, account by account, in order.

    Args:
        ledger: The ledger to read.
        accounts: Rows of accounts, up to whose newest entries is read. Default: all as
            they are now; entries that are written meanwhile are left out.
    """
    if accounts is None:
        with ledger.database.read() as session:
            accounts = session.rows("list_accounts", dataset=None)
    for account in accounts:
        seq = 0
        while seq < account["seq"]:
            size = min(_PAGE, account["seq"] - seq)
            with ledger.database.read() as session:
                rows = session.rows(
                    "journal_after", account=account["id"], above=seq, limit=size
                )
            if not rows:
                return
            for row in rows:
                yield {name: row[name] for name in COLUMNS}
            seq = rows[-1]["seq"]
