"""Amounts of a row that are not those of its entry are damage, whatever they are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dpflow.exceptions import LedgerCorrupt
from dpflow.ledger import Ledger
from tests.ledger.support import Place, edit, granted, make_ledger

pytestmark = pytest.mark.storages("sqlite", "postgres")

COLUMNS = ("settled", "held")
BAD = ["[-1]", "[1,-2]", "[]", "", "1", "null", "[[1]]x", "[1.5,0]", "[1e5,0]"]
BAD += ['[1,"2"]', "[1, 2]"]
GOOD = ["[0]", "[1]", f"[{10**40},0]", f"[{','.join(map(str, range(64)))}]"]


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


@pytest.mark.parametrize("amounts", [*BAD, *GOOD[:3], "[1,,2]", "[1,]", "[1"])
@pytest.mark.parametrize("column", COLUMNS)
def test_what_no_entry_says_is_refused_when_it_is_read(
    ledger: Ledger, path: Place, column: str, amounts: str
) -> None:
    """A row's amounts are those of the entry that moved it last, or it is damage."""
    edit(path, put(column, amounts))
    with pytest.raises(LedgerCorrupt):
        granted(ledger, "0.1")
