"""The journal as a stream of rows, for other programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from dpflow.ledger.entry import canonical, parsed
from dpflow.ledger.ledger import Ledger

_MANY = 2**31
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
    "dataset",
)


def journal_rows(ledger: Ledger) -> Iterator[dict[str, Any]]:
    """Yield what every entry posts to each account, dataset by dataset, in order.

    An entry that posts nothing is one row, of no account. Entries that are written
    meanwhile are left out.
    """
    for columns in entry_columns(ledger):
        book, number, kind, charge, postings, body, at, writer, digest = columns
        postings = json.loads(postings) or {"": ([], [], [])}
        run = json.loads(body).get("flow_run")
        for account, amounts in postings.items():
            amount, settled, held = map(canonical, amounts)
            values = (account, number, kind, charge, amount, settled, held, run)
            rest = (body, at, writer, digest, book)
            yield dict(zip(COLUMNS, (*values, *rest), strict=True))


def entry_columns(
    ledger: Ledger, newest: Mapping[str, int] | None = None
) -> Iterator[tuple[Any, ...]]:
    """Yield the columns of every entry with its hash, as they are kept.

    Each page is read in a transaction of its own.

    Args:
        ledger: The ledger to read.
        newest: By dataset, the number of the last entry to read. Default: as it is
            now.
    """
    if newest is None:
        with ledger.storage.read() as reading:
            books = [parsed(row[1]) for row in reading.kept("book", limit=_MANY)]
            newest = {name: number for name, number, *_ in books}
    for book, last in newest.items():
        number = 0
        while number < last:
            with ledger.storage.read() as reading:
                page = reading.page(book, number)
            yield from page[: last - number]
            if not page:
                return
            number = page[-1][1]
