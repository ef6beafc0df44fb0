"""Adversaries that trade epsilon against delta along the path.

The natural filter (docs/derivations/fixed.md#natural-filter) and a floating split of
delta fail; every filter that lets deltas of steps through keeps its promise under the
same strategy.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest

from dpflow.accounting import make_filter
from tests.adversaries.branching_trees import (
    MP,
    Admits,
    Mechanism,
    Tree,
    by_rule,
    largest,
    real,
    response,
    reveal,
    true_delta,
)

ONE = Fraction(1)
# ---- the natural filter ------------------------------------------------------------

HALF, LONGER = Fraction("0.5"), Fraction("0.6")


def natural(epsilon, delta) -> Admits:
    """Return a mistake: the optimal composition of what ran, as if fixed."""

    def admits(path: Sequence[Mechanism]) -> bool:
        ends = [(MP.mpf(1), MP.mpf(1))]
        for mechanism in path:
            ends = [(p * u, q * d) for p, q in ends for u, d in mechanism.outputs]
        factor = MP.exp(real(epsilon))
        spent = MP.fsum(max(0, p - factor * q) for p, q in ends)
        return spent <= delta * (1 + MP.mpf("1e-40"))

    return admits


def test_the_natural_filter_is_no_filter():
    """Both branches compose to exactly delta; together they are 1.38 times that."""
    p1, p2 = (1 / (1 + MP.exp(-real(e))) for e in (HALF, LONGER))
    delta = p1 * p2 * -MP.expm1(1 - real(HALF + LONGER))
    assert float(delta) == pytest.approx(0.038245346137870957)
    tree = Tree(
        response(HALF), {0: Tree(response(LONGER)), 1: Tree(reveal(_exact(delta)))}
    )
    found = true_delta(tree, natural(ONE, delta), ONE)
    assert float(found) == pytest.approx(0.0526845195971793264)
    assert found > delta * MP.mpf("1.37")


def _exact(value) -> Fraction:
    return Fraction(int(value * 10**35), 10**35)


TENTH = Fraction(1, 10)
#: At (4, 0.1), every filter that lets a delta of a step through.
SPLIT_RULES = [
    ("basic", {}),
    ("zcdp", {"delta_loss": "0.05"}),
    ("gdp", {"delta_loss": "0.05"}),
    ("rdp", {"delta_loss": "0.05", "order": 2}),
    ("whitehouse", {"delta_loss": "0.05", "drift": "tanh"}),
    ("rogers", {}),
    ("auto", {}),
    (
        "auto",
        {
            "members": [
                {"theorem": "zcdp", "delta": "0.06", "delta_loss": "0.03"},
                {"theorem": "basic", "delta": "0.04"},
            ]
        },
    ),
]


def natural_tree(admits: Admits, first: Fraction, epsilon, delta) -> Tree:
    """Return the tree of the natural filter, its steps as large as the rule admits."""
    start = response(first)
    after = {}
    more = largest(lambda e: admits((start, response(e))), Fraction(epsilon))
    if more is not None:
        after[0] = Tree(response(more))
    own = largest(lambda d: admits((start, reveal(d))), Fraction(delta))
    if own is not None:
        after[1] = Tree(reveal(own))
    return Tree(start, after)


@pytest.mark.parametrize(("theorem", "options"), SPLIT_RULES)
def test_steps_with_and_without_delta_by_branch(theorem, options):
    """Large randomized responses on one branch, a reveal on the other: below delta."""
    rule = make_filter(theorem, epsilon=4, delta=TENTH, **options)
    admits = by_rule(rule)
    found = [
        true_delta(natural_tree(admits, first, 4, TENTH), admits, 4)
        for first in (Fraction("0.1"), HALF, Fraction(1), Fraction(2))
    ]
    assert max(found) <= real(TENTH)
    assert max(found) > 0


# ---- the floating split of delta ---------------------------------------------------


#: The parts of a tenth that a split leaves for the loss, and the two filters of one.
