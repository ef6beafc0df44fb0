"""An account's journal in pages, each in a transaction of its own."""

from __future__ import annotations

from collections.abc import Iterator

from dpflow.ledger.database import Database, Row

_PAGE = 4000


def entries(database: Database, account: str, last: int) -> Iterator[Row]:
    """Yield the entries of an account, oldest first.

    No step waits for more than one page. The journal is append-only, so the pages are
    one history.

    Args:
        database: The ledger's.
        account: Its id.
        last: Number of the newest entry to read.
    """
    above = 0
    while above < last:
        size = min(_PAGE, last - above)
        with database.read() as session:
            rows = session.rows(
                "journal_after", account=account, above=above, limit=size
            )
        if not rows:
            return
        yield from rows
        above = rows[-1]["seq"]
