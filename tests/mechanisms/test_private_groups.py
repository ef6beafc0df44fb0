"""The names of groups, and the largest groups: exact laws against their prices."""

from __future__ import annotations

import itertools
import math
from datetime import date
from fractions import Fraction
from types import SimpleNamespace

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dpflow import ApproxDP, Repeated, guarded
from dpflow.costs import ApproxZCDP, TopK
from dpflow.exceptions import BudgetRefused, PublicError, ReleaseError
from dpflow.mechanisms import private_groups, top_k
from dpflow.mechanisms.drawn import Drawn
from dpflow.mechanisms.groups import BITS, chances, largest, people_in, threshold
from dpflow.rounding import to_fraction
from tests.accounting.oracle import MP, real, renyi_divergence
from tests.mechanisms.projects import fixture_policy, make_shop
from tests.projects import account
from tests.sizes import spread
from tests.walks import law_of

EPSILON, DELTA = Fraction(1), Fraction(1, 20)
TABLE = [Fraction(each, 2**BITS) for each in chances(EPSILON, DELTA)]


def law(counts, table):
    """Return the exact probability of each set of groups."""
    own = [table[min(count, len(table) - 1)] for count in counts]
    return [*map(math.prod, itertools.product(*((1 - p, p) for p in own)))]


def delta_of(one, other, epsilon):
    """Return the exact delta at an epsilon, to 120 digits."""
    grown = MP.exp(real(epsilon))
    pairs = zip(one, other, strict=True)
    return to_fraction(MP.fsum(max(real(p) - grown * real(q), 0) for p, q in pairs))


def worst(changed, *, table, epsilon, groups=3):
    """Return the largest delta when one person is in several of the groups."""
    losses = []
    for counts in itertools.combinations_with_replacement(range(len(table)), groups):
        for own in itertools.combinations(range(groups), changed):
            more = [count + (at in own) for at, count in enumerate(counts)]
            one, other = law(counts, table), law(more, table)
            losses += [delta_of(one, other, epsilon), delta_of(other, one, epsilon)]
    return max(losses)


def test_groups_of_a_person_lose_exactly_their_deltas():
    """Over all counts of three groups and both directions; and nothing is wasted.

    Two groups cost two such steps, and are caught at the price of one; so is a
    threshold without noise, where one person decides.
    """
    reached = worst(1, table=TABLE, epsilon=EPSILON)
    assert abs(reached - DELTA) < Fraction(1, 10**28)
    assert worst(2, table=TABLE, epsilon=2 * EPSILON) <= 2 * DELTA
    assert worst(2, table=TABLE, epsilon=EPSILON) > DELTA
    sharp = [Fraction(0)] * 3 + [Fraction(1)]
    assert worst(1, table=sharp, epsilon=EPSILON) == 1


def normal(sigma, least):
    """Return the chance of a group of 0, 1, 2 ... people under discrete noise."""
    terms = [MP.exp(-MP.mpf(k * k) / (2 * sigma**2)) for k in range(2 * least + 1)]
    total = 2 * MP.fsum(terms) - 1
    below = [MP.fsum(terms[at:]) / total for at in range(1, least + 1)]
    return [*reversed(below), 1 - below[0]]


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


#: Rho, delta, groups of a person, and 2 + ceil(sigma z) with a quantile of 50 digits.
LEAST = [("0.02", "1e-6", 10, 85), ("0.5", "1e-9", 1, 8), ("0.5", "1e-30", 4, 26)]


@pytest.mark.parametrize(("rho", "delta", "changed", "least"), LEAST)
def test_a_threshold_hides_people_of_many_groups(rho, delta, changed, least):
    """By the exact law of each group, of which one more person is in some."""
    rho, delta = Fraction(rho), Fraction(delta)
    sigma, smallest = threshold(rho, delta, changed)
    assert smallest == least
    assert holds(rho, delta, changed, sigma, least)
    # The controls: a threshold that is a little lower, and less noise.
    lower = least - 3 - int(sigma / 2)
    assert not holds(rho, delta, changed, sigma, lower)
    assert not holds(rho, delta, changed, sigma * Fraction(4, 5), 2 * least)


def test_a_person_counts_in_the_declared_number_of_groups():
    """Whatever rows they have; twice in one group is once."""
    people = ["ann"] * 50 + ["bob", "bob", None, float("nan")]
    groups = [f"g{k}" for k in range(50)] + ["g1", "g1", "g2", "g3"]
    for kept in (1, 2, 60):
        counts = people_in(people, groups, kept)
        assert sum(counts.values()) == min(kept, 50) + 1
        assert {name for _, name in counts} <= {f"g{k}" for k in range(50)}


def test_names_that_are_equal_are_the_same_to_the_last_bit():
    """1, 1.0 and True are groups of their own; zeros have one sign."""
    groups = [1, 1.0, True, 0.0, -0.0, ("a", 1), ("a", True), date(2026, 1, 2)]
    odd = [float("nan"), [1], object(), None]
    counts = people_in(range(12), groups + odd, 1)
    names = [1, 1.0, True, 0.0, ("a", 1), ("a", True), date(2026, 1, 2)]
    assert sorted(repr(name) for _, name in counts) == sorted(map(repr, names))


NANOSECOND = pl.Series([0, 1])


def test_people_and_groups_by_time_are_refused():
    """Python's own times take people a nanosecond apart for one."""
    kinds = pl.Time, pl.Datetime("ns"), pl.Duration
    for times in (
        *map(NANOSECOND.cast, kinds),
        pd.Series(pd.to_timedelta([0, 1])),
        pa.array([0, 1], pa.timestamp("ns")),
        pa.array([0, 1], pa.duration("ns")).dictionary_encode(),
    ):
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
    step = guarded(dataset="orders", cost=Repeated(one, times), release_key="groups")
    groups = step(
        lambda: private_groups(range(900), ["a", "b", "c"] * 300, max_groups=2)
    )
    assert groups() == groups() == ["a", "b", "c"]
    spent = dpflow_ledger.spent("orders")
    assert Fraction(spent["epsilon"]) == times * Fraction("0.125")
    assert Fraction(spent["delta"]) == times * Fraction("1e-8")
    cheaper = guarded(dataset="orders", cost=one)
    with pytest.raises(ReleaseError, match=rf"Repeated\(ApproxDP\(...\), {times}\)"):
        cheaper(lambda: private_groups([1], ["a"], max_groups=2))()


def test_a_chance_that_grows_for_too_many_people_is_refused():
    """The table has a line for each number of people, so it ends."""
    with pytest.raises(PublicError, match="131072 people in a group would not"):
        chances(Fraction(1, 10**4), Fraction(1, 10**8))


def test_a_person_counts_in_one_group_by_default(dpflow_ledger):
    """At the price of one step."""
    dpflow_ledger.use(fixture_policy("basic", "add-or-remove", "1e-6"))
    step = guarded(dataset="orders", cost=ApproxDP(epsilon="0.125", delta="1e-8"))
    groups = step(lambda: private_groups(range(900), ["a", "b", "c"] * 300))
    assert groups() == ["a", "b", "c"]


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


#: Two picks of 1.04 each; the margin is 1 + 1.9995 before it is rounded up.
PAIR = TopK(epsilon="2.08", delta="0.2", most=2, among=2)
#: More groups are looked at than there are.
WIDE = TopK(epsilon="2.78", delta="0.5", most=2, among=4)
#: A small delta, which does not hide an excess of epsilon.
SHARP = TopK(epsilon="2.08", delta="0.001", most=2, among=2)
SINGLE = TopK(epsilon="0.71", delta="0.33", most=1, among=1)


def law_of_choice(mechanism, cost, counts):
    """Return the probability of each output."""
    table = {name: n for name, n in zip("abcd", counts, strict=False) if n}

    def run(walk):
        def choose(rates):
            weights = [math.exp(-each) for each in rates]
            total = sum(weights)
            return walk.take([weight / total for weight in weights])

        drawn = mechanism(cost, table, choose=choose)
        return tuple(drawn.output), int(drawn.cell)

    return law_of(run)


def excess(cost, one, other):
    """Return the least delta with which the epsilons of the cells hold, one way."""
    sizes = {str(0): 1.0}
    sizes |= {name: math.exp(e) for name, e in cost.output_dp().cells}
    gains = (p - sizes[str(o[1])] * other.get(o, 0) for o, p in one.items())
    return sum(max(0.0, gain) for gain in gains)


def neighbours(groups, most):
    """Yield counts of people, and those with one person more in some groups."""
    for counts in itertools.product(range(most + 1), repeat=groups):
        for own in itertools.product((0, 1), repeat=groups):
            if any(own):
                yield counts, tuple(map(sum, zip(counts, own, strict=True)))


def at_the_end(cost):
    """Return neighbours with groups as large as the end."""
    levels = [range(cost.margin - 1, cost.margin + 2)] * cost.among
    return [
        ((*counts, beyond), (*counts, beyond + 1))
        for *counts, beyond in itertools.product(*levels, range(2))
    ]


def worst_excess(mechanism, cost, pairs):
    """Return the largest delta over neighbours, in both directions."""
    laws = {c: law_of_choice(mechanism, cost, c) for c in set(itertools.chain(*pairs))}
    return max(
        max(excess(cost, laws[a], laws[b]), excess(cost, laws[b], laws[a]))
        for a, b in pairs
    )


@pytest.mark.parametrize(
    ("cost", "groups", "most", "share"),
    [(PAIR, 4, 3, 0.9995), (WIDE, 3, 4, 0.826), (SINGLE, 3, 4, 0.9987)],
)
def test_no_neighbours_lose_more_than_cells_and_delta(cost, groups, most, share):
    """Over all small tables; and nothing is wasted where all groups may change."""
    pairs = [*spread(neighbours(groups, most), 900), *at_the_end(cost)]
    reached = worst_excess(largest, cost, pairs) / float(cost.delta)
    assert reached <= 1 + 1e-12
    assert reached == pytest.approx(share, abs=1e-4)


def mistaken(mistake):
    """Return the choice with a mistake."""

    def run(cost, counts, *, choose):
        same = {name: getattr(cost, name) for name in ("pick", "most", "among")}
        low = SimpleNamespace(**same, margin=cost.margin - (mistake == "low end"))
        factor = 2 if mistake == "half the noise" else 1
        sharp = lambda rates: choose([factor * rate for rate in rates])
        drawn = largest(low, counts, choose=sharp)  # type: ignore[arg-type]
        cells = {"free end": len(drawn.output), "price of one": 1}
        return Drawn(drawn.output, cells.get(mistake, drawn.cell))

    return run


#: An end no higher than the next group and one person; all picks at the price of one.
MISTAKES = ["low end", "half the noise", "free end", "price of one"]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_caught(mistake):
    """By the search that finds nothing in the right one."""
    excesses = []
    for cost in (PAIR, SHARP):
        pairs = [*spread(neighbours(3, 2), 40), *at_the_end(cost)]
        assert worst_excess(largest, cost, pairs) <= float(cost.delta) + 1e-12
        wrong = worst_excess(mistaken(mistake), cost, pairs)
        excesses.append(wrong / float(cost.delta))
    assert max(excesses) > 1.1


draw = top_k.__wrapped__
LOUD = TopK(epsilon=400, delta="1e-9", most=2, among=3)


def rows(**counts):
    """Return people and their groups, of the given sizes."""
    groups = [name for name, n in counts.items() for _ in range(n)]
    return list(range(len(groups))), groups


def test_the_largest_come_out_in_their_order():
    """With next to no noise; what does not stand out ends it."""
    assert LOUD.margin == 2
    for counts, drawn in (
        ({"tea": 5, "milk": 9, "salt": 7, "rice": 1}, (["milk", "salt"], 2)),
        ({"tea": 3, "milk": 9, "salt": 3, "rice": 3}, (["milk"], 2)),
        ({"tea": 3, "milk": 3, "salt": 3, "rice": 3}, ([], 1)),
        ({}, ([], 1)),
    ):
        assert draw(LOUD, *rows(**counts)) == Drawn(*drawn)


def test_a_step_pays_for_its_picks(tmp_path, monkeypatch, caplog):
    """A tenth for a name or the end; delta in full; the rest is spent."""
    words = {"epsilon": "1", "relation": "add-or-remove"}
    make_shop(tmp_path, monkeypatch, "output-dp", **words)
    cost = TopK(epsilon="0.5", delta="1e-7", most=5)

    @guarded(dataset="shop", cost=cost)
    def best_sold(*table):
        return top_k(*table)

    assert best_sold(*rows(rice=30)) == []
    assert "named 0 of at most 5 groups" in caplog.text
    assert f"{cost.margin} people" in caplog.text
    assert account().spent == {"epsilon": "0.1", "delta": "1e-7"}
    assert best_sold(*rows(tea=5000, milk=5000)) in (["tea", "milk"], ["milk", "tea"])
    assert account().spent["epsilon"] == "0.4"
    best_sold(*rows(tea=5000))
    with pytest.raises(BudgetRefused):
        best_sold(*rows(tea=4000))
