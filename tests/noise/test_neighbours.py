"""Neighbouring data: everything about an output but its noisy numbers is equal."""

from __future__ import annotations

import datetime as dt
import io
import pickle
from collections import Counter
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dpflow import (
    Clip,
    Contributions,
    DiscreteLaplace,
    Gaussian,
    Laplace,
    guarded,
    release,
)
from dpflow.exceptions import DpflowError
from dpflow.ledger.codec import decode, encode
from dpflow.noise.draws import draw
from dpflow.noise.shape import read_shape
from tests.projects import POLICY, make_project
from tests.sizes import spread
from tests.tables import read_tables

pytestmark = pytest.mark.quick

PLANTED = "CANARY-731954286"
GROUPS = ["north", "south", "east"]
#: Neighbours of a small table, in the order of the data.
DATA = read_tables(__file__)


def frame(rows: list[Any], label: str = "region", **options: Any) -> pd.DataFrame:
    """Return the rows as a frame, whose column of labels has a name."""
    made = pd.DataFrame(rows, columns=[label, "n", "amount"], **options)
    made.attrs = {"raw": PLANTED}
    return made


def name_of(rows: list[Any]) -> str:
    """Return a name that tells the number of rows."""
    return f"{PLANTED}, {len(rows)} rows"


def categorical(rows: list[Any]) -> Any:
    """Return a frame whose categories name a row that is filtered out."""
    every = frame([*rows, (PLANTED, 1, 1.0)])
    every["region"] = pd.Categorical(every["region"])
    return every[every["region"].isin(GROUPS)]


def amounts(rows: list[Any]) -> Any:
    """Return the amounts by their regions."""
    return {a: c for a, _, c in rows}


def typed(rows: list[Any], **options: Any) -> Any:
    """Return a frame with nullable dtypes."""
    return frame(rows).convert_dtypes(**options)


def indexed(rows: list[Any], labels: Any = "region") -> Any:
    """Return a frame with labels in its index."""
    return frame(rows).set_index(labels)


def renamed(rows: list[Any]) -> Any:
    """Return a frame whose index has a name that tells the number of rows."""
    return indexed(rows).rename_axis(name_of(rows))


def pivoted(rows: list[Any]) -> Any:
    """Return a frame with a column for each region."""
    return frame(rows).assign(k="k").pivot_table("amount", "k", "region", "sum")


def arrow(rows: list[Any]) -> Any:
    """Return a table with a dictionary, and with metadata, behind a slice."""
    kinds = [("region", pa.string()), ("n", pa.float64()), ("amount", pa.float64())]
    fields = [pa.field(*kind, metadata={"raw": PLANTED}) for kind in kinds]
    schema = pa.schema(fields, metadata={"raw": PLANTED})
    rows = [(a, b and float(b), c and float(c)) for a, b, c in rows]
    columns = [*zip(*rows, (PLANTED, 1.0, 1.0), strict=True)]
    table = pa.table([*map(pa.array, map(list, columns))], names=schema.names)
    return table.cast(schema).slice(0, len(rows))


def encoded(rows: list[Any]) -> Any:
    """Return a table with a dictionary."""
    table = arrow(rows)
    return table.set_column(0, "region", table["region"].dictionary_encode())


def polars(rows: list[Any], label: str = "region") -> Any:
    """Return a frame of polars."""
    return pl.DataFrame(rows, [label, "n", "amount"], orient="row", strict=False)


ONE: dict[str, Any] = {"groups": {"region": GROUPS}, "columns": ["amount"]}
BARE: dict[str, Any] = {"groups": GROUPS, "columns": ["amount"]}
LABELS: dict[str, Any] = {"groups": GROUPS}
NAMED: dict[str, Any] = {"groups": {"region": GROUPS}}
LEVELS: dict[str, Any] = {**ONE, "groups": {"region": GROUPS, "n": [3, 2]}}
PIVOT: dict[str, Any] = {"groups": ["k"], "columns": GROUPS}
#: Containers of the rows, each with its declaration.
CONTAINERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "dict": (amounts, LABELS),
    "counter": (lambda rows: Counter({a: b for a, b, _ in rows if b}), LABELS),
    "tuples": (lambda rows: [(a, c) for a, _, c in rows], LABELS),
    "named tuples": (lambda rows: [(a, c) for a, _, c in rows], NAMED),
    "records": (lambda rows: [{"region": a, "amount": c} for a, _, c in rows], ONE),
    "pandas": (frame, ONE),
    "pandas, bare": (frame, BARE),
    "pandas, object": (lambda rows: frame(rows, dtype=object), ONE),
    "pandas, arrow": (lambda rows: typed(rows, dtype_backend="pyarrow"), ONE),
    "pandas, nullable": (typed, ONE),
    "pandas, index": (indexed, BARE),
    "pandas, levels": (lambda rows: indexed(rows, ["region", "n"])[["amount"]], LEVELS),
    "categories": (categorical, ONE),
    "groupby": (
        lambda rows: categorical(rows).groupby("region", observed=True).n.count(),
        LABELS,
    ),
    "value_counts": (lambda rows: frame(rows).region.value_counts(), LABELS),
    "series of a dict": (lambda rows: pd.Series(amounts(rows), dtype=float), LABELS),
    "pivot": (pivoted, PIVOT),
    "polars": (polars, ONE),
    "polars, bare": (lambda rows: polars(rows).select("region", "amount"), BARE),
    "polars pivot": (lambda rows: pl.from_pandas(pivoted(rows).reset_index()), PIVOT),
    "series, named by data": (lambda rows: renamed(rows).amount, LABELS),
    "index, named by data": (renamed, BARE),
    "pandas, named by data": (lambda rows: frame(rows, name_of(rows)), BARE),
    "polars, named by data": (lambda rows: polars(rows, name_of(rows)).drop("n"), BARE),
    "arrow, named by data": (
        lambda rows: arrow(rows).rename_columns([name_of(rows), "n", "amount"]),
        BARE,
    ),
    "arrow": (arrow, ONE),
    "arrow, dictionary": (encoded, ONE),
}
ROWS = pd.DataFrame({"amount": [1.0, 2.0], "n": [1, 2]}, index=["north", "south"])
COSTS = {
    "continuous": (Gaussian(sensitivity=10, sigma=30), {}),
    "as_int": (Laplace(sensitivity=10, scale=30), {"as_int": True}),
}


def form(value: Any) -> Any:
    """Return all of a value but its numbers."""
    if isinstance(value, dict):
        return [(key, form(each)) for key, each in value.items()]
    if isinstance(value, list | tuple):
        return [type(value), *map(form, value)]
    if isinstance(value, pd.DataFrame):
        columns = [form(value.iloc[:, place]) for place in range(value.shape[1])]
        return [type(value.index), value.index.tolist(), value.index.names, columns]
    if isinstance(value, pd.Series):
        labels = value.index, value.index.dtype, value.index.tolist(), value.name
        entries = value.tolist() if value.dtype.kind not in "if" else len(value)
        return [type(labels[0]), *labels[1:], value.dtype, entries, value.attrs]
    if isinstance(value, np.ndarray):
        return [value.dtype, value.shape, value.dtype.metadata]
    if isinstance(value, pl.Series | pa.Array | pa.ChunkedArray):
        return [type(value), getattr(value, "name", ""), len(value)]
    if isinstance(value, pl.DataFrame):
        return [(s.name, s.dtype, form(s.to_list())) for s in value]
    if isinstance(value, pa.Table):
        lists = [form(column.to_pylist()) for column in value.columns]
        return [str(value.schema), lists, value.schema.metadata]
    return type(value) if isinstance(value, float | int) else value


def outcome(cost: Any, value: Any, declared: dict[str, Any], **options: Any) -> Any:
    """Return the form of what is released, or the error's text."""
    try:
        noisy = draw(cost, value, read_shape(**declared), **options)
    except DpflowError as error:
        return str(error)
    assert PLANTED.encode() not in pickle.dumps(noisy)
    assert form(decode(encode(noisy, ordered=True))) == form(noisy)
    return form(noisy)


@pytest.mark.parametrize(
    ("container", "cost"),
    [(name, "continuous") for name in CONTAINERS]
    + [(name, "as_int") for name in spread(CONTAINERS, 6)],
)
def test_neighbours_differ_in_their_numbers_only(container, cost):
    """Kind, order, labels, columns, riders and success are those of the declaration."""
    make, declared = CONTAINERS[container]
    mechanism, options = COSTS[cost]
    forms = {
        name: outcome(mechanism, make(rows), declared, **options)
        for name, rows in DATA.items()
        if not (container == "counter" and name.startswith("None"))
    }
    assert not isinstance(forms["base"], str), forms["base"]
    for name, result in forms.items():
        assert result == forms["base"], name


def read_files(library: Any, *texts: str) -> list[Any]:
    """Return the frames of CSV files with the columns region and amount."""
    return [library.read_csv(io.StringIO("region,amount\n" + text)) for text in texts]


def category(label: Any) -> pd.DataFrame:
    """Return a frame of one row, whose region is a category."""
    return pd.DataFrame({"region": pd.Categorical([label]), "amount": [1.0]})


def wide(*names: str) -> pd.DataFrame:
    """Return a frame with a column of a region, and with two others."""
    return pd.DataFrame([["k", 1.0, 2.0, 3.0]], columns=["k", "north", *names])


FILES = ("north,1\n", ",1\n", "", "north,\n")
FRAMES = (pd.DataFrame([{"region": "north", "amount": 1.0}]), pd.DataFrame([]))
NUMBERED = {"groups": [0, 1, 2]}
CODES = {**ONE, "groups": {"region": [1, 2]}}
KEYED = {**PIVOT, "groups": {"k": ["k"]}}
TWO = {"length": 2}
#: Values of one program on neighbouring data, whose libraries change dtypes, classes
#: of indexes and names by the rows.
PROGRAMS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "a file without a label": (read_files(pd, *FILES), ONE),
    "a file of polars": (read_files(pl, *FILES), ONE),
    "a file of numbered labels": (read_files(pl, "1,1\n", ",1\n", ""), CODES),
    "categories of nothing": ([category("north"), category(np.nan)], ONE),
    "rows without columns": (
        [each.rename_axis(name) for each in FRAMES for name in (None, "id")],
        ONE,
    ),
    "rows of lists": ([[["north", 1.0]], []], LABELS),
    "a Series without a row": (
        [ROWS.amount.rename_axis("region"), pd.Series([], dtype=float)],
        NAMED,
    ),
    "a dict of numbers": (
        [pd.Series(each, dtype=float) for each in ({0: 1, 1: 2}, {0: 1, 2: 5}, {})],
        NUMBERED,
    ),
    "numbered rows": (
        [ROWS.reset_index(drop=True)[["amount"]][keep:] for keep in (0, 1)],
        {**NUMBERED, "columns": ["amount"]},
    ),
    "an order": ([pd.Series([1.0, last]).sort_values() for last in (0.0, 2.0)], TWO),
    "an index without a name": ([ROWS, ROWS[:0]], BARE),
    "a row of a frame": (
        [ROWS.T.rename({"amount": name}).loc[name] for name in (PLANTED, "ann")],
        LABELS,
    ),
    "two columns of other people": ([wide("ann", "bob"), wide("ann", "ann")], KEYED),
    "the length of a text": ([np.array(["a", "b"]), np.array([PLANTED, "b"])], TWO),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_a_library_makes_of_other_rows_does_not_show(program):
    """Neither by what comes back nor by an error."""
    values, declared = PROGRAMS[program]
    forms = [outcome(COSTS["continuous"][0], value, declared) for value in values]
    assert all(form == forms[0] for form in forms), forms
    assert isinstance(forms[0], str) == (program == "the length of a text")


#: One number as several types.
NUMBERS = [5, 5.0, 5.5, Decimal(5), Decimal("5.50"), np.int64(5), np.float32(5.5)]
#: Vectors without labels.
VECTORS: list[Any] = [
    list,
    tuple,
    np.array,
    lambda numbers: pd.Series(numbers, name=PLANTED),
    lambda numbers: pd.Series(numbers, dtype="Float64"),
    lambda numbers: pd.Series(numbers, dtype="double[pyarrow]"),
    lambda numbers: pl.Series(PLANTED, numbers),
    pa.array,
    lambda numbers: pa.chunked_array([numbers]),
]


@pytest.mark.parametrize("cost", COSTS)
def test_the_kind_of_a_number_does_not_show(cost):
    """A region without a row gives an int or a Decimal where others give floats."""
    mechanism, options = COSTS[cost]
    assert len({outcome(mechanism, number, {}, **options) for number in NUMBERS}) == 1
    for make in VECTORS:
        values = map(make, ([3, 4], [3.0, 4.5], [0, 0]))
        forms = [outcome(mechanism, value, TWO, **options) for value in values]
        assert len({repr(form) for form in forms}) == 1, forms
        assert "cannot" not in str(forms[0])


#: What a fixed text refuses, and the only refusals that depend on rows.
REFUSED = [
    ("two rows of one group", LABELS, [("north", 1), ("north", 2)]),
    ("length is not the declared", TWO, [1.0, 2.0, 3.0]),
    ("a fraction", LABELS, {"north": 1.5}),
    ("too large", LABELS, {"north": 2**60}),
    ("too large", LABELS, {"north": float("inf")}),
]


@pytest.mark.parametrize(("text", "declared", "value"), REFUSED)
def test_the_four_refusals_have_one_text_each(text, declared, value):
    """And say no value."""
    cost = Gaussian(sensitivity=1, sigma=3)
    if text == "a fraction":
        cost = DiscreteLaplace(sensitivity=1, scale=3)
    messages = {outcome(cost, value, declared) for _ in range(2)}
    (message,) = messages
    assert text in message
    assert "north" not in message


@pytest.mark.parametrize(
    "rows", [[], [("ann", 5.0)], [("ann", 5.0), ("bob", 2.5), (PLANTED, 9.0)]]
)
def test_bounded_rows_are_released_alike(rows, tmp_path, monkeypatch):
    """From the rows of persons by Contributions to the stored release."""
    make_project(tmp_path, monkeypatch, POLICY)
    limits = Contributions(
        unit=("who",), max_rows=1, relation="add-or-remove", clip={"x": Clip(0, 10)}
    )

    @guarded(
        dataset="shop",
        cost=Laplace(sensitivity=10, epsilon="0.1"),
        release_key="sum",
        ignore=("limits", "rows"),
        groups=["ann", "bob"],
    )
    def total() -> Any:
        table = pd.DataFrame(rows, columns=["who", "x"]).astype({"x": float})
        table["who"] = table["who"].astype("string")
        return release(limits.bound(table).groupby("who")["x"].sum())

    first, again = total(), total()
    assert first.equals(again)
    assert form(first) == form(again)
    assert first.index.tolist() == ["ann", "bob"]
    assert PLANTED.encode() not in pickle.dumps(first)


@pytest.mark.parametrize(
    "label",
    [
        *("text", 3, 2.5, True, None, Decimal("1.5"), dt.date(2026, 1, 1)),
        *(dt.datetime(2026, 1, 1, tzinfo=dt.UTC), dt.time(1), dt.timedelta(hours=3)),
    ],
    ids=repr,
)
@pytest.mark.parametrize("make", [dict, pd.DataFrame, pl.DataFrame, pa.table])
def test_every_label_is_kept(label, make):
    """The replay equals the first answer, whatever the labels are."""
    value, declared = {label: 1}, {"groups": [label]}
    if make is not dict:
        value = make({"k": [label], "n": [1.0]})
        declared = {"groups": {"k": [label]}, "columns": ["n"]}
    noisy = draw(COSTS["continuous"][0], value, read_shape(**declared))
    again = decode(encode(noisy, ordered=True))
    assert again.equals(noisy) if hasattr(noisy, "equals") else again == noisy
    assert form(again) == form(noisy)
