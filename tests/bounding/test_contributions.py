"""Bounded contributions: the claimed sensitivity, tried on neighbours; refusals."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import warnings
from decimal import Decimal
from fractions import Fraction
from functools import partial

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from dpflow import Clip, Contributions, guarded, spend
from dpflow.exceptions import ConfigurationError, ContributionsError, DPStepFailed
from tests.bounding.frames import LIBRARIES, limits, table
from tests.projects import POLICY, TENTH, caught, chain, make_project, spent
from tests.sizes import scaled
from tests.tables import read_tables

RELATIONS = ("add-or-remove", "replace-one")
AMOUNTS = [-9.0, -2.0, 0.0, 1.0, 2.5, 3.0, 50.0, float("nan"), float("inf")]
GROUPS = ["x", "y", "z"]
#: How a person's rows are chosen; all are to be sound.
CHOICES = [{"seed": None}, {"order_by": ("at",)}, {}, {"order_by": ("at", "group")}]


def vector(frame, column, *, grouped):
    """Return counts (no column) or sums, by group or not, as integers."""
    groups = frame["group"].to_list()
    amounts = [1] * len(groups) if column is None else frame[column].to_list()
    sums = dict.fromkeys(GROUPS, 0)
    for amount, group in zip(amounts, groups, strict=True):
        sums[group] += int(amount)
    return [*sums.values()] if grouped else [sum(sums.values())]


def norms(one, other):
    """Return the L1 norm and the squared L2 norm of a difference."""
    moves = [abs(a - b) for a, b in zip(one, other, strict=True)]
    return sum(moves), sum(move**2 for move in moves)


def claimed(bounds, column, *, grouped):
    """Return the claimed L1 and L2 sensitivity of counts (no column) or sums."""
    ask = bounds.count if column is None else partial(bounds.sum, column)
    return [ask(by=("group",) * grouped, norm=norm) for norm in ("l1", "l2")]


def excess(bounds, first, second, bound=None):
    """Return what of two neighbours differs by more than the bounds claim."""
    one, other = ((bound or bounds.bound)(frame) for frame in (first, second))
    results = []
    for column, grouped in itertools.product((None, "amount"), (False, True)):
        vectors = [vector(each, column, grouped=grouped) for each in (one, other)]
        norm, (l1, l2) = norms(*vectors), claimed(bounds, column, grouped=grouped)
        if norm[0] > l1 or norm[1] > l2**2:
            results.append((column, grouped, norm, l1, l2))
    return results


row = st.tuples(st.sampled_from(GROUPS), st.sampled_from(AMOUNTS), st.integers(0, 3))
rows_of = st.lists(row, max_size=4)
names = st.sampled_from(["ann", "bob", None])
others = st.lists(st.builds(lambda name, rest: (name, *rest), names, row), max_size=6)


def neighbours(rest, own, replaced, places):
    """Return two tables that differ in the rows of one person, put in anywhere."""
    tables = []
    for rows in (own, replaced):
        result = list(rest)
        for row, place in zip(rows, itertools.cycle(places), strict=False):
            result.insert(place % (len(result) + 1), ("cem", *row))
        tables.append(result)
    return tables


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("relation", RELATIONS)
@given(data=st.data())
@hypothesis_settings(max_examples=scaled(12, push=8))
def test_no_neighbour_differs_by_more_than_is_claimed(library, relation, data):
    """Counts and sums, scalar and by group, in both norms, however rows are chosen."""
    rest, own = data.draw(others), data.draw(rows_of)
    replaced = data.draw(rows_of) if relation == "replace-one" else []
    places = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
    bounds = limits(
        relation,
        rows=data.draw(st.integers(1, 3)),
        clip=data.draw(st.sampled_from([(-2, 3), (0, 3), (1, 3), (-3, -1)])),
        per_group=data.draw(st.sampled_from([None, 1, 2])),
        **data.draw(st.sampled_from(CHOICES)),
    )
    first, second = neighbours(rest, own, replaced, places)
    assert excess(bounds, table(first, library), table(second, library)) == []


def cases(seed=1, number=300):
    """Yield neighbours, the same ones always."""
    chance = random.Random(seed)

    def row():
        amount = chance.choice([a for a in AMOUNTS if a == a])  # noqa: PLR0124
        return chance.choice(GROUPS), amount, chance.randrange(4)

    for _ in range(number):
        rest = [(chance.choice(["ann", "bob"]), *row()) for _ in range(5)]
        own = [row() for _ in range(chance.randrange(1, 4))]
        places = [chance.randrange(9) for _ in range(3)]
        yield [table(each) for each in neighbours(rest, own, [], places)]


def clipped(frame, low=-2, high=3):
    """Clip as the bounds of these tests do."""
    return frame.assign(amount=frame["amount"].clip(low, high).round().astype(int))


def largest_first(frame):
    """Keep the largest rows of the whole table: others' rows move up."""
    return clipped(frame.sort_values("amount", ascending=False, kind="stable").head(4))


def by_place(frame):
    """Keep two rows of each person by a hash of their place in the table."""
    order = [random.Random(f"s{place}").random() for place in range(len(frame))]
    shuffled = frame.iloc[np.argsort(order, kind="stable")]
    return clipped(shuffled.groupby("person").head(2))


def unclipped(frame):
    """Bound the rows and not the numbers."""
    return clipped(frame.groupby("person").head(2), -50, 50)


@pytest.mark.parametrize("wrong", [largest_first, by_place, unclipped])
def test_a_wrong_choice_of_rows_is_caught(wrong):
    """The test above can fail: these look at other people's rows, or do not clip."""
    bounds = limits("add-or-remove")
    assert any(excess(bounds, *pair, bound=wrong) for pair in cases())


def test_the_claim_of_another_relation_is_caught():
    """Who is replaced may leave one group and enter another."""
    added, replaced = (limits(relation) for relation in RELATIONS)
    first, second = (table([("cem", *row, 0)] * 2) for row in (("x", 3.0), ("y", -2.0)))
    assert excess(replaced, first, second) == []
    assert len(excess(added, first, second)) == 3


def test_the_claims_are_reached():
    """None is larger than it has to be: some neighbours differ by as much."""
    places = [(None, False), (None, True), ("amount", False), ("amount", True)]
    for relation, pair, per_group, claims, reached in read_tables(__file__)["claims"]:
        bounds = limits(relation, clip=(0, 3), per_group=per_group)
        frames = [table([("cem", g, 3.0, 0) for g in each]) for each in pair]
        result = 0
        for (column, grouped), claim in zip(places, claims, strict=True):
            l1, l2 = claimed(bounds, column, grouped=grouped)
            assert l1 == claim[0]
            assert claim[1] <= l2**2 < claim[1] + Fraction(1, 10**9)
            vectors = [vector(bounds.bound(f), column, grouped=grouped) for f in frames]
            result = 2 * result + (norms(*vectors) == tuple(claim))
        assert result == reached


# What becomes of the rows and numbers


def one_row(unit="person", relation="add-or-remove", **options):
    """Return bounds of one row of each unit."""
    words = {"unit": (unit,), "max_rows": 1, "relation": relation}
    return Contributions(**words | options)


@pytest.mark.parametrize("library", LIBRARIES)
def test_an_entry_that_is_no_number_counts_as_zero(library):
    """It raises nothing, for an error would show it; infinities are the bounds."""
    values = [float("nan"), float("inf"), -float("inf"), 2.4, 2.6, -1.0, 1e300]
    rows = [(str(n), "x", value, 0) for n, value in enumerate(values)]
    bound = limits("add-or-remove").bound(table(rows, library))
    assert bound["amount"].to_list() == [0, 3, -2, 2, 3, -1, 3]
    positive = limits("add-or-remove", clip=(1, 3)).bound(table(rows, library))
    assert positive["amount"].to_list()[0] == 1


def test_objects_are_read_one_by_one():
    """What one entry is read as does not depend on the others."""
    values = [None, "7", Decimal("2.4"), Fraction(5, 2), True, 10**400, 1 + 2j]
    series = pd.Series(values, dtype=object)
    bounds = limits("add-or-remove", objects="decimal")
    with warnings.catch_warnings():
        # A warning would show that a person has such a number.
        warnings.simplefilter("error")
        for rows in (series, *(series[[at]] for at in range(len(values)))):
            frame = pd.DataFrame({"person": range(len(rows)), "amount": rows})
            bound = bounds.bound(frame)["amount"].tolist()
            assert bound == [[0, 0, 2, 2, 1, 3, 0][at] for at in rows.index]


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_grid_turns_dollars_into_cents(library):
    """Sums of the integers are exact, where those of floats are not."""
    frame = LIBRARIES[library]({"person": [1, 2, 3], "paid": [0.1, 0.2, 19.999]})
    bounds = one_row(clip={"paid": Clip(0, 10, grid="0.01")})
    bound = bounds.bound(frame)
    assert bound["paid"].to_list() == [10, 20, 1000]
    assert str(bound["paid"].dtype).lower() == "int64"
    assert bounds.sum("paid") == 1000
    assert frame["paid"].to_list() == [0.1, 0.2, 19.999]


def test_a_hashed_choice_does_not_depend_on_other_people():
    """And another one for another key; a float column of names hashes as integers."""
    rows = [(7, "x", float(n % 4), n) for n in range(40)]
    whole = table(rows).astype({"person": "int64"})
    alone = limits("add-or-remove", rows=5, seed="k").bound(whole)
    more = [(float(3), "x", 1.0, 99), *rows, (None, "x", 0.0, 98)]
    frame = table(more).astype({"person": "float64"})
    among = limits("add-or-remove", rows=5, seed="k").bound(frame)
    assert among["at"].tolist() == [99, *alone["at"].tolist()]
    other = limits("add-or-remove", rows=5, seed="l").bound(whole)
    assert other["at"].tolist() != alone["at"].tolist()
    assert alone["at"].tolist() != list(range(5))


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

    for body in (lambda: declared.bound(frame), spelled):
        step = guarded(dataset="shop", cost=TENTH, name="count")(body)
        with pytest.raises(ContributionsError, match="tailnumber") as caught:
            step()
        assert str(caught.value).count("charged in full") == 1
    assert spent() == "0.2"


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


def test_a_replaced_persons_rows_may_be_fewer_or_of_another_sign():
    """Sums of positive numbers reach zero; numbers across zero add up to twice."""
    for low, high, plain, grouped in ((5, 10, 20, 29), (-10, 10, 40, 40)):
        wide = one_row(relation="replace-one", max_rows=2, clip={"x": Clip(low, high)})
        assert wide.sum("x") == plain
        assert math.ceil(wide.sum("x", by=("group",), norm="l2")) == grouped
