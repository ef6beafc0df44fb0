"""The tables themselves refuse negative amounts, and what is no list of numbers."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import psycopg
import pytest

from dpflow.exceptions import LedgerCorrupt
from dpflow.ledger import Ledger
from tests.ledger.support import Place, edit, granted, make_ledger, read

BAD = ["[-1]", "[1,-2]", "[]", "", "[1", "1", "[1,]", "[1,,2]", "null", "[[1]]x"]
GOOD = ["[0]", "[1]", f"[{10**40},0]", f"[{','.join(map(str, range(64)))}]"]
COPY = (
    "INSERT INTO entry (account, seq, kind, reservation, amount, settled_after, "
    "held_after, run, body, at, writer, hash) SELECT account, seq + 100, 'refuse', "
    "'r', {amount}, {settled_after}, {held_after}, run, body, at, writer, hash "
    "FROM entry WHERE seq = 1"
)
COLUMNS = ("amount", "settled_after", "held_after")


def copied(column: str, amount: str) -> str:
    """Say how to append an entry with this amount in this column."""
    return COPY.format(**{name: name for name in COLUMNS} | {column: f"'{amount}'"})


WRITES = {
    "settled": lambda amount: f"UPDATE account SET settled = '{amount}'",
    "held": lambda amount: f"UPDATE account SET held = '{amount}'",
    "granted": lambda amount: f"UPDATE granted SET amount = '{amount}'",
    "amount": lambda amount: copied("amount", amount),
    "settled_after": lambda amount: copied("settled_after", amount),
    "held_after": lambda amount: copied("held_after", amount),
}
REFUSED = (sqlite3.IntegrityError, psycopg.errors.CheckViolation)


@pytest.fixture
def ledger(path: Place) -> Iterator[Ledger]:
    """Give a ledger with one charge."""
    opened = make_ledger(path)
    granted(opened, "0.1")
    yield opened
    opened.close()


@pytest.mark.parametrize("where", WRITES)
@pytest.mark.usefixtures("ledger")
def test_a_table_takes_amounts_only(path: Place, where: str) -> None:
    """A wrong one is refused where it would be written, a right one is not."""
    before = read(path, "SELECT settled, held, seq FROM account ORDER BY id")
    entries = read(path, "SELECT count(*) FROM entry")
    for amount in BAD:
        with pytest.raises(REFUSED, match="amounts"):
            edit(path, WRITES[where](amount), checked=True)
    assert read(path, "SELECT settled, held, seq FROM account ORDER BY id") == before
    assert read(path, "SELECT count(*) FROM entry") == entries
    for amount in GOOD if where in ("settled", "held", "granted") else GOOD[-1:]:
        edit(path, WRITES[where](amount), checked=True)


@pytest.mark.parametrize("amount", ["[1.5,0]", "[1e5,0]", '[1,"2"]', "[1,null]"])
def test_what_is_no_integer_is_refused_at_the_latest_when_it_is_read(
    ledger: Ledger, path: Place, amount: str
) -> None:
    """PostgreSQL refuses to write it; elsewhere no step runs on it."""
    sql = WRITES["held"](amount)
    if isinstance(path, str) and path.startswith("postgresql"):
        with pytest.raises(psycopg.errors.CheckViolation):
            edit(path, sql, checked=True)
        return
    edit(path, sql, checked=True)
    with pytest.raises(LedgerCorrupt):
        granted(ledger, "0.1")


@pytest.mark.usefixtures("ledger")
def test_without_the_checks_it_takes_them(path: Place) -> None:
    """So it is the checks that refuse, and nothing else."""
    edit(path, "UPDATE account SET held = '[-1]'")
    assert {held for (held,) in read(path, "SELECT held FROM account")} == {"[-1]"}
