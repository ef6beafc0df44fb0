"""The largest groups: the exact law of the code meets its price in every cell.

`law` runs the real code on every choice that it can make. The mistakes that one can
make with it go through the same search and are caught.
"""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import pytest

from dpflow import guarded
from dpflow.costs import TopK
from dpflow.exceptions import BudgetRefused
from dpflow.mechanisms import top_k
from dpflow.mechanisms.drawn import Drawn
from dpflow.mechanisms.groups import largest
from tests.mechanisms.projects import make_shop
from tests.projects import account
from tests.sizes import spread
from tests.walks import law_of

#: Two picks of 1.04 each; the margin is 1 + 1.9995 before it is rounded up.
PAIR = TopK(epsilon="2.08", delta="0.2", most=2, among=2)
#: More groups are looked at than there are.
WIDE = TopK(epsilon="2.78", delta="0.5", most=2, among=4)
#: A small delta, beside which what epsilon hides would be seen.
SHARP = TopK(epsilon="2.08", delta="0.001", most=2, among=2)
SINGLE = TopK(epsilon="0.71", delta="0.33", most=1, among=1)


def law(mechanism, cost, counts):
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


def worst(mechanism, cost, pairs):
    """Return the largest delta over neighbours, in both directions."""
    laws = {c: law(mechanism, cost, c) for c in set(itertools.chain(*pairs))}
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
    pairs = [*spread(neighbours(groups, most), 1500), *at_the_end(cost)]
    found = worst(largest, cost, pairs) / float(cost.delta)
    assert found <= 1 + 1e-12
    assert found == pytest.approx(share, abs=1e-4)


def with_margin(margin):
    """Return the choice with its end elsewhere."""

    def run(cost, counts, *, choose):
        wrong = SimpleNamespace(
            pick=cost.pick, most=cost.most, among=cost.among, margin=margin(cost)
        )
        return largest(wrong, counts, choose=choose)  # type: ignore[arg-type]

    return run


def with_cell(cell):
    """Return the choice with another cell."""

    def run(cost, counts, *, choose):
        drawn = largest(cost, counts, choose=choose)
        return Drawn(drawn.output, cell(drawn))

    return run


def half_noise(cost, counts, *, choose):
    """Choose twice as sharply as the cells say."""
    return largest(cost, counts, choose=lambda rates: choose([2 * r for r in rates]))


#: The end is too low or free, all picks have the price of one, half of the noise.
MISTAKES = [
    with_margin(lambda cost: cost.margin - 1),
    with_cell(lambda drawn: len(drawn.output)),
    with_cell(lambda _: 1),
    half_noise,
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=range(4))
def test_a_mistake_is_caught(mistake):
    """By the search that finds nothing in the right one."""
    excesses = []
    for cost in (PAIR, SHARP):
        pairs = [*spread(neighbours(3, 2), 100), *at_the_end(cost)]
        assert worst(largest, cost, pairs) <= float(cost.delta) + 1e-12
        excesses.append(worst(mistake, cost, pairs) / float(cost.delta))
    assert max(excesses) > 1.1


draw = top_k.__wrapped__
LOUD = TopK(epsilon=400, delta="1e-9", most=2, among=3)


def rows(**counts):
    """Return people and their groups, so many in each."""
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


@guarded(dataset="shop", cost=TopK(epsilon="0.5", delta="1e-7", most=5))
def best_sold(*table):
    """Name what most people buy."""
    return top_k(*table)


def test_a_step_pays_for_its_picks(tmp_path, monkeypatch, caplog):
    """A tenth for a name or the end; delta in full; the rest is spent."""
    words = {"epsilon": "1", "relation": "add-or-remove"}
    make_shop(tmp_path, monkeypatch, "output-dp", **words)
    assert best_sold(*rows(rice=30)) == []
    assert "named 0 of at most 5 groups" in caplog.text
    assert f"{TopK(epsilon='0.5', delta='1e-7', most=5).margin} people" in caplog.text
    assert account().spent == {"epsilon": "0.1", "delta": "1e-7"}
    assert best_sold(*rows(tea=5000, milk=5000)) in (["tea", "milk"], ["milk", "tea"])
    assert account().spent["epsilon"] == "0.4"
    best_sold(*rows(tea=5000))
    with pytest.raises(BudgetRefused):
        best_sold(*rows(tea=4000))
