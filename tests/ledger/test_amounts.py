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
WRITES = {
    "settled": lambda amount: f"UPDATE account SET settled = '{amount}'",
    "held": lambda amount: f"UPDATE account SET held = '{amount}'",
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
    before = read(path, "SELECT settled, held, entry FROM account ORDER BY id")
    for amount in BAD:
        with pytest.raises(REFUSED, match=f"account_{where}_check"):
            edit(path, WRITES[where](amount), checked=True)
    assert read(path, "SELECT settled, held, entry FROM account ORDER BY id") == before
    for amount in GOOD:
        edit(path, WRITES[where](amount), checked=True)


@pytest.mark.parametrize("amount", ["[1.5,0]", "[1e5,0]", '[1,"2"]', "[1,null]"])
def test_what_is_no_integer_is_refused_when_it_is_written_and_when_it_is_read(
    ledger: Ledger, path: Place, amount: str
) -> None:
    """Whoever turns the checks off finds that no step runs on it."""
    sql = WRITES["held"](amount)
    with pytest.raises(REFUSED, match="account_held_check"):
        edit(path, sql, checked=True)
    edit(path, sql)
    with pytest.raises(LedgerCorrupt):
        granted(ledger, "0.1")


@pytest.mark.usefixtures("ledger")
def test_without_the_checks_it_takes_them(path: Place) -> None:
    """So it is the checks that refuse, and nothing else."""
    edit(path, "UPDATE account SET held = '[-1]'")
    assert {held for (held,) in read(path, "SELECT held FROM account")} == {"[-1]"}
