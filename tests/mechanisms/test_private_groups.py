"""Which groups there are: the exact law of the code against its price."""

from __future__ import annotations

import itertools
import math
from datetime import date
from fractions import Fraction

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dpflow import ApproxDP, Repeated, guarded
from dpflow.costs import ApproxZCDP
from dpflow.exceptions import ReleaseError
from dpflow.mechanisms import private_groups
from dpflow.mechanisms.groups import BITS, chances, people_in, threshold
from dpflow.rounding import to_fraction
from tests.accounting.oracle import MP, real, renyi_divergence
from tests.mechanisms.projects import fixture_policy

EPSILON, DELTA = Fraction(1), Fraction(1, 20)
TABLE = [Fraction(each, 2**BITS) for each in chances(EPSILON, DELTA)]


def law(counts, table):
    """Return the exact probability of each set of groups."""
    each = [table[min(count, len(table) - 1)] for count in counts]
    return {
        named: math.prod(
            p if here else 1 - p for p, here in zip(each, named, strict=True)
        )
        for named in itertools.product((False, True), repeat=len(counts))
    }


def delta_of(one, other, epsilon):
    """Return the exact delta at an epsilon, to 120 digits."""
    grown = MP.exp(real(epsilon))
    excess = (max(real(one[each]) - grown * real(other[each]), 0) for each in one)
    return to_fraction(MP.fsum(excess))


def worst(changed, *, table, epsilon, groups=3):
    """Return the largest delta when one person is in so many of the groups."""
    found = []
    for counts in itertools.product(range(len(table)), repeat=groups):
        if list(counts) != sorted(counts):
            continue
        for own in itertools.combinations(range(groups), changed):
            more = [count + (at in own) for at, count in enumerate(counts)]
            one, other = law(counts, table), law(more, table)
            found += [delta_of(one, other, epsilon), delta_of(other, one, epsilon)]
    return max(found)


def test_groups_of_a_person_lose_exactly_their_deltas():
    """Over all counts of three groups and both directions; and nothing is wasted.

    Two groups cost two such steps, and are caught at the price of one; so is a
    threshold without noise, where one person decides.
    """
    found = worst(1, table=TABLE, epsilon=EPSILON)
    assert abs(found - DELTA) < Fraction(1, 10**28)
    assert worst(2, table=TABLE, epsilon=2 * EPSILON) <= 2 * DELTA
    assert worst(2, table=TABLE, epsilon=EPSILON) > DELTA
    sharp = [Fraction(0)] * 3 + [Fraction(1)]
    assert worst(1, table=sharp, epsilon=EPSILON) == 1


def normal(sigma, least):
    """Return the chance of a group of 0, 1, 2 ... people under discrete noise."""
    reach = 2 * least
    terms = [MP.exp(-MP.mpf(k * k) / (2 * sigma**2)) for k in range(reach + 1)]
    total = 2 * MP.fsum(terms) - 1

    def beyond(at):
        if at <= 0:
            return 1 - beyond(1 - at)
        return MP.fsum(terms[at:]) / total

    return [beyond(least - people) for people in range(least + 1)]


def holds(rho, delta, changed, sigma, least):
    """Say whether people in several groups lose no more than rho and delta."""
    chances = normal(real(sigma), least)
    lost = max(
        changed * renyi_divergence([(p, q), (1 - p, 1 - q)], order) / order
        for both in itertools.pairwise(chances[1:])
        for p, q in (both, both[::-1])
        for order in map(MP.mpf, ("1.01", "2", "8", "50"))
    )
    return lost <= real(rho) and changed * chances[1] <= real(delta)


@pytest.mark.parametrize(
    ("rho", "delta", "changed", "least"),
    [
        # 2 + ceil(sigma z), with the quantile z to 50 digits by mpmath.
        ("0.02", "1e-6", 10, 85),
        ("0.5", "1e-9", 1, 8),
        ("0.5", "1e-30", 4, 26),
    ],
)
def test_a_threshold_hides_people_of_many_groups(rho, delta, changed, least):
    """By the exact law of each group, of which one more person is in some."""
    rho, delta = Fraction(rho), Fraction(delta)
    sigma, found = threshold(rho, delta, changed)
    assert found == least
    assert holds(rho, delta, changed, sigma, least)
    # The controls: a threshold that is a little lower, and less noise.
    lower = least - 3 - int(sigma / 2)
    assert not holds(rho, delta, changed, sigma, lower)
    assert not holds(rho, delta, changed, sigma * Fraction(4, 5), 2 * least)


def test_a_person_counts_in_no_more_groups_than_said():
    """Whatever rows they have; twice in one group is once."""
    people = ["ann"] * 50 + ["bob", "bob", None, float("nan")]
    groups = [f"g{k}" for k in range(50)] + ["g1", "g1", "g2", "g3"]
    for kept in (1, 2, 60):
        found = people_in(people, groups, kept)
        assert sum(found.values()) == min(kept, 50) + 1
        assert {name for _, name in found} <= {f"g{k}" for k in range(50)}


def test_names_that_are_equal_are_the_same_to_the_last_bit():
    """1, 1.0 and True are groups of their own; zeros have no sign."""
    groups = [1, 1.0, True, 0.0, -0.0, ("a", 1), ("a", True), date(2026, 1, 2)]
    odd = [float("nan"), [1], object(), None]
    found = people_in(range(12), groups + odd, 1)
    names = [1, 1.0, True, 0.0, ("a", 1), ("a", True), date(2026, 1, 2)]
    assert sorted(repr(name) for _, name in found) == sorted(map(repr, names))


NANOSECOND = pl.Series([0, 1])
TIMES = [
    *(NANOSECOND.cast(kind) for kind in (pl.Time, pl.Datetime("ns"), pl.Duration)),
    pd.Series(pd.to_timedelta([0, 1])),
    pa.array([0, 1], pa.timestamp("ns")),
    pa.array([0, 1], pa.duration("ns")).dictionary_encode(),
]


def test_people_and_groups_by_time_are_refused():
    """Python's own times take people a nanosecond apart for one."""
    for times in TIMES:
        for rows in (times, ["a", "b"]), (["a", "b"], times):
            with pytest.raises(ReleaseError, match="by time need a name"):
                people_in(*rows, 1)
    dates = NANOSECOND.cast(pl.Date)
    assert len(people_in(dates, dates, 1)) == 2


@pytest.mark.parametrize(
    ("relation", "times"), [("add-or-remove", 2), ("replace-one", 4)]
)
def test_a_step_releases_its_groups_once(dpflow_ledger, relation, times):
    """Two groups of a person cost two such steps, four where people are replaced."""
    dpflow_ledger.use(fixture_policy("basic", relation, "1e-6"))
    one = ApproxDP(epsilon="0.125", delta="1e-8")

    @guarded(dataset="orders", cost=Repeated(one, times), release_key="groups")
    def groups():
        return private_groups(range(900), ["a", "b", "c"] * 300, max_groups=2)

    assert groups() == groups() == ["a", "b", "c"]
    spent = dpflow_ledger.spent("orders")
    assert Fraction(spent["epsilon"]) == times * Fraction("0.125")
    assert Fraction(spent["delta"]) == times * Fraction("1e-8")

    @guarded(dataset="orders", cost=one)
    def cheaper():
        return private_groups([1], ["a"], max_groups=2)

    with pytest.raises(ReleaseError, match=rf"Repeated\(ApproxDP\(...\), {times}\)"):
        cheaper()


def test_a_step_may_name_groups_by_a_threshold(dpflow_ledger, caplog):
    """At the price of the whole table; the log says how many people it takes."""
    zcdp = "{theorem: zcdp, delta_loss: 5e-7}"
    dpflow_ledger.use(fixture_policy(zcdp, "replace-one", "1e-6"))
    cost = ApproxZCDP(rho="0.01", delta="1e-7")

    @guarded(dataset="orders", cost=cost, release_key="groups", ignore=("rows",))
    def groups(rows):
        return private_groups(range(rows), ["a", "b", "c"] * (rows // 3), max_groups=2)

    caplog.set_level("INFO", "dpflow")
    assert groups(1500) == ["a", "b", "c"]
    least = threshold(cost.rho, cost.delta, 4)[1]
    assert f"even odds at {least} people" in caplog.text
