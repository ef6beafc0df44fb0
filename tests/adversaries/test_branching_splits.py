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
from dpflow.accounting.costs.notions import ApproxDP
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
    widest_pair,
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


def floating_split(epsilon, delta, order) -> Admits:
    """Return a mistake: delta of the divergence so far plus the steps' deltas."""

    def admits(path: Sequence[Mechanism]) -> bool:
        a = real(order)
        spent, own = MP.mpf(0), MP.mpf(0)
        for mechanism in path:
            if isinstance(mechanism.cost, ApproxDP):
                own += real(mechanism.cost.delta)
            else:
                spent += mechanism.divergence(order)
        kappa = (1 - 1 / a) ** a / (a - 1)
        floating = kappa * MP.exp((a - 1) * (spent - real(epsilon)))
        return floating + own <= real(delta)

    return admits


def split_tree(admits: Admits, epsilon, delta) -> Tree:
    """On +, a pair that saturates the divergence; on -, a reveal."""
    start = response(HALF)
    choices = []
    for tenth in range(10):
        loss = real(epsilon - Fraction(1, 2)) + MP.mpf(3 + tenth) / 10
        chosen = widest_pair(lambda m: admits((start, m)), loss)
        up, down = chosen.outputs[0]
        choices.append((up - MP.exp(real(epsilon) - real(HALF)) * down, chosen))
    own = largest(lambda d: admits((start, reveal(d))), Fraction(delta))
    best = max(choices, key=lambda choice: choice[0])[1]
    return Tree(start, {0: Tree(best), 1: Tree(reveal(own or Fraction("1e-9")))})


def test_a_floating_split_of_delta_fails():
    """Traded along the path, delta is exceeded by nearly a fifth."""
    epsilon, order = Fraction(8), Fraction(2)
    wrong = floating_split(epsilon, TENTH, order)
    found = true_delta(split_tree(wrong, epsilon, TENTH), wrong, epsilon)
    assert found > real(TENTH) * MP.mpf("1.19")


#: The parts of a tenth that a split leaves for the loss, and the two filters of one.
PARTS = ("0.02", "0.05", "0.08")
LOSSES = [("rdp", {"order": 2}), ("gdp", {})]


@pytest.mark.parametrize(("theorem", "options"), LOSSES)
def test_a_fixed_split_of_delta_passes_the_same_audit(theorem, options):
    """Each part is used, and never more than both."""
    epsilon = Fraction(8)
    for part in PARTS:
        rule = make_filter(
            theorem, epsilon=epsilon, delta=TENTH, delta_loss=part, **options
        )
        admits = by_rule(rule)
        found = true_delta(split_tree(admits, epsilon, TENTH), admits, epsilon)
        assert real(TENTH) / 3 < found <= real(TENTH)


@pytest.mark.parametrize(("theorem", "options"), LOSSES)
def test_the_whole_delta_for_each_part_fails(theorem, options):
    """What a filter of the loss allows, and as much of deltas beside it."""
    epsilon = Fraction(8)
    loss = by_rule(make_filter(theorem, epsilon=epsilon, delta=TENTH, **options))

    def wrong(path: Sequence[Mechanism]) -> bool:
        own = [m for m in path if isinstance(m.cost, ApproxDP)]
        rest = tuple(m for m in path if m not in own)
        kept = sum((m.cost.delta for m in own), Fraction(0)) <= TENTH
        return kept and loss(rest)

    found = true_delta(split_tree(wrong, epsilon, TENTH), wrong, epsilon)
    assert found > real(TENTH) * MP.mpf("1.05")
