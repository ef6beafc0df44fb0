"""Rows of all tables are read and written by one mechanism."""

from __future__ import annotations

from typing import Any

import pytest

from dpflow.ledger.tables.rows import (
    Account,
    Charge,
    ChargeDataset,
    DamagedRow,
    Dataset,
    Entry,
    Evidence,
    Held,
    PeopleStore,
    Release,
    Run,
    Source,
    Term,
    form_of,
    name_columns,
    read_row,
)

BIG = 10**40
REQUEST = {"accounts": ["a#1", "a#1/flow/f"], "cost": {"é": "ü"}}
AMOUNTS = {"a#1": Held((1, BIG), 3), "a#1/flow/f": Held((2,), 1, (0,), (BIG,))}
WHOLE: list[Any] = [
    Dataset("a", 1, 2, {"who": "w"}, 1, 4, 9, "h"),
    Account("a#1", (BIG, 0), (1, 2), 3, "0.5", 1),
    Charge("c", "open", "o", "l", "s", "f", "r", "k", REQUEST, AMOUNTS, [1]),
    ChargeDataset("a", 1, "c", 2, "f", "s"),
    Release("k", "t", "a", "s", "c", "settled", "d", {"x": None}, {"length": 2}, "1"),
    Run("r", "a", "f", 2, ("a#1", "a#1/odometer/f"), 1),
    Evidence("a", 1, "d", 2),
    Source("s", "a", "population/p"),
    PeopleStore("a#1", "c", "c"),
    Entry("a", 1, "t", "w", "open", "x", "c", "s", "f", "r", "{}", "{}", "h"),
    Term("a", 1, 2, {"pinned": {"dataset": "a"}}),
]
#: The same with null wherever a table has it.
EMPTY: list[Any] = [
    Dataset("a"),
    Account("a#1", (0,), (0,)),
    Charge("c", "void", "o", None, "s", None, None, None, REQUEST, {}),
    ChargeDataset("a", 1, "c", None, None, "s"),
    Release("k", "t", "a", "s", "c", "free"),
    Run("r", "a", None),
    Source("s", "a", None),
    Entry("a", 1, "t", "w", "open", "x", None, None, None, None, "{}", "{}", "h"),
]
MARKED = [row for row in WHOLE if "mark" in name_columns(row)]


def name_kind(row: Any) -> str:
    """Return the name of a row's kind."""
    return type(row).__name__


@pytest.mark.parametrize("row", [*WHOLE, *EMPTY], ids=name_kind)
def test_a_row_is_read_as_it_was_written(row, monkeypatch):
    """Also by another process, which remembers none of its rows."""
    columns = name_columns(row)
    monkeypatch.setattr("dpflow.ledger.tables.rows._proved", {})
    read = read_row(type(row), [*columns.values()])
    assert read == row
    assert type(read) is type(row)
    assert name_columns(read) == columns


@pytest.mark.parametrize("row", WHOLE, ids=name_kind)
def test_columns_are_the_fields_in_their_order(row):
    """What is no JSON stands in the column of its name, or of its place in a term."""
    kind: Any = type(row)
    form, columns = form_of(kind), name_columns(row)
    places = {place for place, *_ in form.codecs}
    for place, (name, value) in enumerate(columns.items()):
        if name != "mark" and place not in places:
            assert value == row[place]
            assert kind is Term or kind._fields[place] == name


def test_marked_rows_are_those_that_steps_read():
    """Accounts, charges and datasets have marks."""
    assert [*map(name_kind, MARKED)] == ["Dataset", "Account", "Charge"]


@pytest.mark.parametrize("row", MARKED, ids=name_kind)
def test_an_edit_of_any_column_is_noticed(row):
    """A process notices it although it wrote the row itself."""
    columns = [*name_columns(row).values()]
    for place, value in enumerate(columns):
        edited = [*columns]
        edited[place] = value + 1 if isinstance(value, int) else None
        with pytest.raises(DamagedRow):
            read_row(type(row), edited)
