"""Neighbouring data: everything about an output but its noisy numbers is equal."""

# The rows of test_neighbours.yaml are expressions of the imported names.
# ruff: noqa: F401

from __future__ import annotations

import datetime as dt
import io
import pickle
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import yaml

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

pytestmark = pytest.mark.quick

PLANTED = "CANARY-731954286"
GROUPS = ["north", "south", "east"]
TABLES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))


def frame(rows: list[Any], **options: Any) -> pd.DataFrame:
    """Return the rows as a frame."""
    made = pd.DataFrame(rows, columns=["region", "n", "amount"], **options)
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


def polars(rows: list[Any]) -> Any:
    """Return a frame of polars."""
    return pl.DataFrame(rows, ["region", "n", "amount"], orient="row", strict=False)


ONE: dict[str, Any] = {"groups": {"region": GROUPS}, "columns": ["amount"]}
BARE: dict[str, Any] = {"groups": GROUPS, "columns": ["amount"]}
LABELS: dict[str, Any] = {"groups": GROUPS}
NAMED: dict[str, Any] = {"groups": {"region": GROUPS}}
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


def read(expression: str, **names: Any) -> Any:
    """Return the value of an expression of the table."""
    return eval(expression, {**globals(), **names})


@pytest.mark.parametrize(
    ("container", "cost"),
    [(name, "continuous") for name in TABLES["containers"]]
    + [(name, "as_int") for name in spread(TABLES["containers"], 6)],
)
def test_neighbours_differ_in_their_numbers_only(container, cost):
    """Kind, order, labels, columns, riders and success are those of the declaration."""
    expression, declared = TABLES["containers"][container]
    mechanism, options = COSTS[cost]
    forms = {
        name: outcome(
            mechanism, read(expression, rows=rows), read(f"dict({declared})"), **options
        )
        for name, rows in TABLES["data"].items()
        if not (container == "counter" and name.startswith("None"))
    }
    assert not isinstance(forms["base"], str), forms["base"]
    for name, result in forms.items():
        assert result == forms["base"], name


def read_file(library: Any, text: str) -> Any:
    """Return the frame of a CSV file with the columns region and amount."""
    return library.read_csv(io.StringIO("region,amount\n" + text))


@pytest.mark.parametrize("program", TABLES["programs"])
def test_what_a_library_makes_of_other_rows_does_not_show(program):
    """Neither by what comes back nor by an error."""
    values, declared = TABLES["programs"][program]
    shape = read(f"dict({declared})")
    forms = [outcome(COSTS["continuous"][0], value, shape) for value in read(values)]
    assert all(form == forms[0] for form in forms), forms
    assert isinstance(forms[0], str) == (program == "the length of a text")


@pytest.mark.parametrize("cost", COSTS)
def test_the_kind_of_a_number_does_not_show(cost):
    """A region without a row gives an int or a Decimal where others give floats."""
    mechanism, options = COSTS[cost]
    numbers = map(read, TABLES["numbers"])
    assert len({outcome(mechanism, number, {}, **options) for number in numbers}) == 1
    for vector in TABLES["vectors"]:
        forms = [
            outcome(mechanism, read(vector, numbers=pair), {"length": 2}, **options)
            for pair in ([3, 4], [3.0, 4.5], [0, 0])
        ]
        assert len({repr(form) for form in forms}) == 1, forms
        assert "cannot" not in str(forms[0])


@pytest.mark.parametrize(("text", "declared", "value"), TABLES["refused"])
def test_the_four_refusals_have_one_text_each(text, declared, value):
    """And say no value."""
    cost = Gaussian(sensitivity=1, sigma=3)
    if text == "a fraction":
        cost = DiscreteLaplace(sensitivity=1, scale=3)
    messages = {outcome(cost, read(value), read(f"dict({declared})")) for _ in range(2)}
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
