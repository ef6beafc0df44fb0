"""Frames of a few rows, and limits on them."""

from __future__ import annotations

import pandas as pd
import polars as pl

from dpflow import Clip, Contributions

LIBRARIES = {"pandas": pd.DataFrame, "polars": pl.DataFrame}


def limits(relation, *, rows=2, clip=(-2, 3), per_group=None, objects=None, **choice):
    """Return bounds on the table of these tests."""
    by = ("group",) if per_group else ()
    return Contributions(
        unit=("person",),
        max_rows=rows,
        relation=relation,
        clip={"amount": Clip(*clip, objects=objects)},
        by=by,
        max_rows_per_group=per_group,
        **{"objects": "text", **choice},
    )


def table(rows, library="pandas"):
    """Return a frame of (person, group, amount, at) rows."""
    names = ("person", "group", "amount", "at")
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    data = {name: list(column) for name, column in zip(names, columns, strict=True)}
    if library == "polars":
        types = (pl.String, pl.String, pl.Float64, pl.Int64)
        return pl.DataFrame(data, dict(zip(names, types, strict=True)))
    types = (object, "str", "float64", "int64")
    return pd.DataFrame(data).astype(dict(zip(names, types, strict=True)))
