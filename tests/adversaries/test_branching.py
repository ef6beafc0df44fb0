"""Adversaries that branch: the next step depends on the outputs before.

"Some order still has room" (docs/derivations/rdp.md#some-order), unions without a split
of delta and the natural filter (docs/derivations/fixed.md#natural-filter) fail the
audit; single orders, unions with a split, the mixture, `auto` and every filter that
lets deltas of steps through pass it.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest

from dpflow.accounting import Filter, make_filter
from dpflow.accounting.curves.conversions import rdp_epsilon_allowed
from dpflow.accounting.rules.auto import RDP_SHARE, ZCDP_SHARE
from tests.accounting.oracle import MP, real
from tests.adversaries import branching_trees as trees
from tests.adversaries.branching_trees import Admits, Mechanism, Tree, by_rule, response
from tests.sizes import spread
from tests.tables import read_tables


def some_order_has_room(epsilon, delta, orders) -> Admits:
    """Return a mistake: each order at the whole delta, any will do."""
    budgets = {a: real(rdp_epsilon_allowed(epsilon, delta, a)) for a in orders}

    def admits(path: Sequence[Mechanism]) -> bool:
        return any(
            MP.fsum(mechanism.divergence(a) for mechanism in path) <= budget
            for a, budget in budgets.items()
        )

    return admits


ONE, MILLIONTH = Fraction(1), Fraction("1e-6")
#: The counterexample: + leads to a pair that order 128 has room for, - to
#: one that order 16 has room for.
SHEET = Tree(
    response("0.02"),
    {
        0: Tree(trees.pair("0.000251929479991375", "0.000093813243015745")),
        1: Tree(trees.pair("0.000011220011119478", "3.793012002056e-6")),
    },
)
ORDERS = (Fraction(16), Fraction(128))


def valid_rules(epsilon, delta, orders) -> list[Filter]:
    """Return the valid ways to use these orders: one each, a union, a mixture."""
    share = delta / len(orders)
    union = [{"theorem": "rdp", "order": a, "delta": share} for a in orders]
    return [
        *(make_filter("rdp", epsilon=epsilon, delta=delta, order=a) for a in orders),
        make_filter("auto", epsilon=epsilon, delta=delta, members=union),
        make_filter("rdp", epsilon=epsilon, delta=delta, orders=list(orders)),
    ]


def test_some_order_has_room_is_no_filter():
    """It admits both branches and leaks 1.34 times delta; each valid rule cuts one."""
    wrong = some_order_has_room(ONE, MILLIONTH, ORDERS)
    reached = trees.true_delta(SHEET, wrong, ONE)
    assert float(reached) == pytest.approx(1.34105911276108e-6, rel=1e-9)
    for rule in valid_rules(ONE, MILLIONTH, ORDERS):
        assert trees.true_delta(SHEET, by_rule(rule), ONE) <= real(MILLIONTH)


FIRSTS = spread(("0.02", "0.01", "0.03"), 1)
LOSSES = spread(
    [Fraction(n, 100) for n in (95, 98, 99, 100, 101, 102, 104, 106, 108, 110)], 5
)


def test_the_branching_adversary_stays_below_delta():
    """Pairs as wide as each rule lets them be: sharp, and never above."""
    shares = [
        trees.realised(by_rule(rule), ONE, MILLIONTH, FIRSTS, LOSSES)
        for rule in valid_rules(ONE, MILLIONTH, ORDERS)
    ]
    one_low, one_high, union, mixture = shares
    assert max(shares) <= 1
    assert min(one_low, one_high) > 0.3
    assert union > 0.6
    assert mixture > 0.9
    # The wrong rule exceeds delta by a third, as in the fixed tree.
    wrong = some_order_has_room(ONE, MILLIONTH, ORDERS)
    assert trees.realised(wrong, ONE, MILLIONTH, FIRSTS, LOSSES) > 1.3


# ---- the union rule ----------------------------------------------------------------


def union_of(shares: Sequence[str]) -> Admits:
    """Return the union of a gdp and two rdp rules at shares of delta."""
    members = ("gdp", {}), ("rdp", {"order": 16}), ("rdp", {"order": 128})
    rules = []
    for share, (name, order) in zip(shares, members, strict=True):
        delta = MILLIONTH * Fraction(share)
        rules.append(by_rule(make_filter(name, epsilon=1, delta=delta, **order)))
    return lambda path: any(admits(path) for admits in rules)


def test_a_union_needs_a_split_of_delta():
    """With the whole delta for every member it fails; with shares it holds."""
    for shares, fits in ((("1", "1", "1"), False), (("0.4", "0.3", "0.3"), True)):
        reached = trees.realised(union_of(shares), ONE, MILLIONTH, FIRSTS, LOSSES)
        assert reached <= 1 if fits else reached > 1.3


def test_the_default_auto_stays_below_delta():
    """These pairs have no price under `residue`, whose adversaries are its own.

    So they come near the share of delta that `rdp` has, and not above.
    """
    rule = make_filter("auto", epsilon=1, delta=MILLIONTH)
    share = trees.realised(by_rule(rule), ONE, MILLIONTH, ["0.01"], LOSSES)
    assert 0.95 * RDP_SHARE < share <= RDP_SHARE + ZCDP_SHARE


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
    leak = Fraction(int(delta * 10**35), 10**35)
    tree = Tree(
        response(HALF), {0: Tree(response(LONGER)), 1: Tree(trees.reveal(leak))}
    )
    reached = trees.true_delta(tree, natural(ONE, delta), ONE)
    assert float(reached) == pytest.approx(0.0526845195971793264)
    assert reached > delta * MP.mpf("1.37")


TENTH = Fraction(1, 10)


def natural_tree(admits: Admits, first: Fraction, epsilon, delta) -> Tree:
    """Return the tree of the natural filter, its steps as large as the rule admits."""
    start = response(first)
    after = {}
    more = trees.largest(lambda e: admits((start, response(e))), Fraction(epsilon))
    if more is not None:
        after[0] = Tree(response(more))
    own = trees.largest(lambda d: admits((start, trees.reveal(d))), Fraction(delta))
    if own is not None:
        after[1] = Tree(trees.reveal(own))
    return Tree(start, after)


@pytest.mark.parametrize(("theorem", "options"), read_tables(__file__)["splits"])
def test_steps_with_and_without_delta_by_branch(theorem, options):
    """Large randomized responses on one branch, a reveal on the other: below delta."""
    rule = make_filter(theorem, epsilon=4, delta=TENTH, **options)
    admits = by_rule(rule)
    reached = [
        trees.true_delta(natural_tree(admits, first, 4, TENTH), admits, 4)
        for first in (Fraction("0.1"), HALF, Fraction(1), Fraction(2))
    ]
    assert max(reached) <= real(TENTH)
    assert max(reached) > 0
