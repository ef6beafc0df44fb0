"""What bounds nothing, or could bound wrongly, is refused."""

from __future__ import annotations

import asyncio

import pandas as pd
import polars as pl
import pytest

from dpflow import Clip, Contributions, guarded, spend
from dpflow.exceptions import ConfigurationError, ContributionsError, DPStepFailed
from tests.bounding.frames import limits, table
from tests.projects import POLICY, TENTH, caught, chain, make_project, spent

RELATIONS = ("add-or-remove", "replace-one")


def test_bounds_for_another_relation_do_not_bound_a_steps_frame(tmp_path, monkeypatch):
    """The cost was declared from them, and would be too small.

    A thread of the body inherits the step: what it bounds is of the step's data.
    """
    policy = POLICY.replace("add-or-remove", "replace-one")
    make_project(tmp_path, monkeypatch, policy)
    added, replaced = (limits(relation) for relation in RELATIONS)
    frame = table([("ann", "x", 2.0, 0)])
    step = guarded(dataset="shop", cost=TENTH, name="count")
    assert step(lambda: len(replaced.bound(frame)))() == 1
    with (
        spend(dataset="shop", cost=TENTH, step="wrong"),
        pytest.raises(ConfigurationError, match="running step say replace-one"),
    ):
        added.bound(frame)

    @guarded(dataset="shop", cost=TENTH)
    async def count():
        return await asyncio.to_thread(added.bound, frame)

    with pytest.raises(ContributionsError, match="say replace-one"):
        asyncio.run(count())


# Bad input


def test_bounds_that_bound_nothing_are_refused():
    """Before any data is read; off the grid the claim would be of other numbers."""
    for changes, message in (
        ({"rows": 0}, "max_rows must lie in"),
        ({"rows": True}, "whole number"),
        ({"per_group": -1}, "max_rows_per_group must lie in"),
        ({"order_by": ("at",), "seed": "s"}, "not both"),
        ({"seed": 7}, "seed must be text"),
        ({"order_by": ("amount",)}, "columns of their own"),
        ({"relation": "substitute"}, "add-or-remove or replace-one"),
        ({"clip": (3, 1)}, "swap them"),
        ({"clip": (0, 2**31 + 1)}, "at most"),
        ({"clip": (0, 1, "0.3")}, "multiple of grid"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            limits(**{"relation": "replace-one", **changes})


TEXTS = {"person": ["1"], "amount": ["1.5"]}


def test_a_frame_that_cannot_be_bounded_is_refused():
    """By its schema, which is public; no value is quoted."""
    for frame, message in (
        ({"person": [1]}, "DataFrame can be bounded, not dict"),
        (pl.DataFrame({"person": [1]}).lazy(), "needs order_by="),
        (pd.DataFrame({"person": [1]}), r"each of these columns once: \['amount'\]"),
        (pd.DataFrame([[1, 2, 3]], columns=["person", "amount", "amount"]), "once"),
        (pd.DataFrame({"person": [1], "amount": pd.Timestamp(0)}), "type Datetime"),
        (pl.DataFrame(TEXTS), "type String"),
        (pd.DataFrame(TEXTS), "type String"),
        (pd.DataFrame(TEXTS, dtype=object), r'Clip\(..., objects="decimal"\)'),
        (pl.DataFrame(TEXTS, schema_overrides={"amount": pl.Object}), "type Object"),
        (pd.DataFrame(TEXTS).astype("string[pyarrow]"), "type String"),
        (pl.DataFrame({"person": [[1]], "amount": [1]}), "'person' is of type List"),
        (pl.DataFrame({"person": [{"a": 1}], "amount": [1]}), "is of type Struct"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            limits("add-or-remove").bound(frame)


def one_row(unit="person", relation="add-or-remove", **options):
    """Return bounds of one row of each unit."""
    words = {"unit": (unit,), "max_rows": 1, "relation": relation}
    return Contributions(**words | options)


@pytest.mark.parametrize("errors", ["redact", "keep"])
def test_a_typo_inside_a_body_is_shown(tmp_path, monkeypatch, errors):
    """Names of columns that were declared, or are spelled out, are public."""
    make_project(tmp_path, monkeypatch, f"{POLICY}errors: {errors}\n")
    frame = pd.DataFrame({"person": ["ann"], "amount": [1.0]})
    declared = one_row("tailnumber")

    def spelled():
        limits = Contributions(
            unit=("tailnumber",), max_rows=1, relation="add-or-remove"
        )
        return limits.bound(frame)

    other, wrong = lambda: one_row(relation="replace-one").bound(frame), "tailnumber"
    for body, text in (
        (lambda: declared.bound(frame), wrong),
        (spelled, wrong),
        (other, "the policies of the running step say add-or-remove"),
    ):
        step = guarded(dataset="shop", cost=TENTH, name="count")(body)
        with pytest.raises(ContributionsError, match=text) as found:
            step()
        assert str(found.value).count("charged in full") == 1
    assert spent() == "0.3"


def test_a_name_that_is_made_of_data_is_withheld(tmp_path, monkeypatch):
    """So are the frame's own columns, the categories of a type, and other errors."""
    make_project(tmp_path, monkeypatch)
    secret = "canary-" + "662607"
    words = pl.Series([secret], dtype=pl.Enum([secret]))
    frame = pl.DataFrame({"person": ["ann"], "kind": words, secret: [1]})

    for names in (
        {"unit": secret * 3},
        {"unit": "absent"},
        {"clip": {"kind": Clip(0, 1)}},
        {"order_by": (secret * 2,)},
        {"max_rows": secret},
        {"relation": secret},
        {"clip": {secret: secret}},
    ):
        body = lambda names=names: one_row(**names).bound(frame)
        error = caught(guarded(dataset="shop", cost=TENTH, name="count")(body))
        assert isinstance(error, ContributionsError | DPStepFailed)
        assert secret not in repr(list(chain(error)))
    declared = one_row(clip={"kind": Clip(0, 1)})
    with pytest.raises(ContributionsError, match="'kind' is of type Enum;"):
        guarded(dataset="shop", cost=TENTH)(lambda: declared.bound(frame))()
