"""An account's journal in pages, each in a transaction of its own."""

from __future__ import annotations

from collections.abc import Iterator

from dpflow.ledger.database import Database, Row

_PAGE = 4000


def entries(
    database: Database, account: str, last: int, *, above: int = 0
) -> Iterator[Row]:
    """Yield the entries of an account, oldest first.

    No step waits for more than one page. The journal is append-only, so the pages are
    one history.

    Args:
        database: The ledger's.
        account: Its id.
        last: Number of the newest entry to read.
        above: Number of the newest one to leave out.
    """
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


def sample(
    database: Database, account: str, last: int, *, stride: int
) -> Iterator[Row]:
    """Yield some entries of an account, oldest first: every n-th one, and refusals.

    Args:
        database: The ledger's.
        account: Its id.
        last: Number of the newest entry to read, which is always there.
        stride: How far apart the entries are.
    """
    for above in range(0, last, _PAGE):
        page = {"above": above, "upto": min(above + _PAGE, last)}
        with database.read() as session:
            rows = session.rows(
                "journal_sample", account=account, last=last, stride=stride, **page
            )
        yield from rows
