"""The tables refuse negative amounts and what is no list; the reader, all else."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import psycopg
import pytest

from dpflow.exceptions import LedgerCorrupt
from dpflow.ledger import Ledger
from tests.ledger.support import Place, edit, granted, make_ledger, read

COLUMNS = ("settled", "held")
BAD = ["[-1]", "[1,-2]", "[]", "", "1", "null", "[[1]]x", "[1.5,0]", "[1e5,0]"]
BAD += ['[1,"2"]', "[1, 2]"]
GOOD = ["[0]", "[1]", f"[{10**40},0]", f"[{','.join(map(str, range(64)))}]"]
REFUSED = (sqlite3.IntegrityError, psycopg.errors.CheckViolation)


def put(column: str, amounts: str) -> str:
    """Say how to write these amounts into a column of every account."""
    return f"UPDATE account SET {column} = '{amounts}'"


@pytest.fixture
def ledger(path: Place) -> Iterator[Ledger]:
    """Give a ledger with one charge."""
    opened = make_ledger(path)
    granted(opened, "0.1")
    yield opened
    opened.close()


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.usefixtures("ledger")
def test_a_table_takes_amounts_only(path: Place, column: str) -> None:
    """A wrong one is refused where it would be written, a right one is not."""
    before = read(path, "SELECT settled, held FROM account ORDER BY id")
    for amounts in BAD:
        with pytest.raises(REFUSED):
            edit(path, put(column, amounts), checked=True)
    assert read(path, "SELECT settled, held FROM account ORDER BY id") == before
    for amounts in GOOD:
        edit(path, put(column, amounts), checked=True)


@pytest.mark.parametrize("amounts", [*BAD, *GOOD[:3], "[1,,2]", "[1,]", "[1"])
@pytest.mark.parametrize("column", COLUMNS)
def test_what_no_entry_says_is_refused_when_it_is_read(
    ledger: Ledger, path: Place, column: str, amounts: str
) -> None:
    """Where a table's checks were taken away, or let something pass."""
    edit(path, put(column, amounts))
    with pytest.raises(LedgerCorrupt):
        granted(ledger, "0.1")


@pytest.mark.usefixtures("ledger")
def test_without_the_checks_it_takes_them(path: Place) -> None:
    """So it is the checks that refuse, and nothing else."""
    edit(path, put("held", "[-1]"))
    assert {held for (held,) in read(path, "SELECT held FROM account")} == {"[-1]"}
