"""Adversaries that branch: what may run next depends on what came out before.

"Some order still has room" (docs/derivations/rdp.md#some-order) and unions without a
split of delta fail the audit; single orders, unions with a split, the mixture and the
`auto` pass it.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest

from dpflow.accounting import Filter, make_filter
from dpflow.accounting.curves.conversions import rdp_epsilon_allowed
from dpflow.accounting.rules.auto import RDP_SHARE, ZCDP_SHARE
from tests.adversaries.branching_trees import (
    MP,
    Admits,
    Mechanism,
    Tree,
    by_rule,
    pair,
    real,
    realised,
    response,
    true_delta,
)


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
        0: Tree(pair("0.000251929479991375", "0.000093813243015745")),
        1: Tree(pair("0.000011220011119478", "3.793012002056e-6")),
    },
)
ORDERS = (Fraction(16), Fraction(128))


def test_some_order_has_room_is_no_filter():
    """It admits both branches; the interaction is 1.34 times what it promises."""
    wrong = some_order_has_room(ONE, MILLIONTH, ORDERS)
    found = true_delta(SHEET, wrong, ONE)
    assert float(found) == pytest.approx(1.34105911276108e-6, rel=1e-9)
    assert found > real(MILLIONTH)


def valid_rules(epsilon, delta, orders) -> list[Filter]:
    """Return the valid ways to use these orders: one each, a union, a mixture."""
    share = delta / len(orders)
    union = [{"theorem": "rdp", "order": a, "delta": share} for a in orders]
    return [
        *(make_filter("rdp", epsilon=epsilon, delta=delta, order=a) for a in orders),
        make_filter("auto", epsilon=epsilon, delta=delta, members=union),
        make_filter("rdp", epsilon=epsilon, delta=delta, orders=list(orders)),
    ]


def test_valid_rules_cut_the_same_tree():
    """One order, the union and the mixture refuse a branch and keep their promise."""
    for rule in valid_rules(ONE, MILLIONTH, ORDERS):
        found = true_delta(SHEET, by_rule(rule), ONE)
        assert found <= real(MILLIONTH)


FIRSTS = ("0.01", "0.02", "0.03")
LOSSES = ("0.95", "0.98", "0.99", "1", "1.01", "1.02", "1.04", "1.06", "1.08", "1.1")


def test_the_branching_adversary_stays_below_delta():
    """Pairs as wide as each rule lets them be: sharp, and never above."""
    shares = [
        realised(by_rule(rule), ONE, MILLIONTH, FIRSTS, LOSSES)
        for rule in valid_rules(ONE, MILLIONTH, ORDERS)
    ]
    one_low, one_high, union, mixture = shares
    assert max(shares) <= 1
    assert min(one_low, one_high) > 0.3
    assert union > 0.6
    assert mixture > 0.9


def test_the_same_adversary_breaks_the_wrong_rule():
    """Its own choice of pairs exceeds delta by a third, as in the fixed tree."""
    wrong = some_order_has_room(ONE, MILLIONTH, ORDERS)
    assert realised(wrong, ONE, MILLIONTH, FIRSTS, LOSSES) > 1.3


# ---- the union rule ----------------------------------------------------------------


def union_admits(members: list[Filter]) -> Admits:
    """Return the union of several rules, whatever their deltas."""
    rules = [by_rule(member) for member in members]
    return lambda path: any(admits(path) for admits in rules)


def members_of(epsilon, delta, shares) -> list[Filter]:
    """Return a gdp and two rdp members at shares of delta."""
    gaussian, low, high = (delta * Fraction(share) for share in shares)
    return [
        make_filter("gdp", epsilon=epsilon, delta=gaussian),
        make_filter("rdp", epsilon=epsilon, delta=low, order=16),
        make_filter("rdp", epsilon=epsilon, delta=high, order=128),
    ]


def test_a_union_needs_a_split_of_delta():
    """With the whole delta for every member it fails; with shares it holds."""
    whole = union_admits(members_of(ONE, MILLIONTH, (1, 1, 1)))
    assert realised(whole, ONE, MILLIONTH, FIRSTS[1:2], LOSSES) > 1.3
    parts = union_admits(members_of(ONE, MILLIONTH, ("0.4", "0.3", "0.3")))
    assert realised(parts, ONE, MILLIONTH, FIRSTS[1:2], LOSSES) <= 1


def test_the_default_auto_stays_below_delta():
    """These pairs have no price under `residue`, whose adversaries are its own.

    So they come near the share of delta that `rdp` has, and not above.
    """
    rule = make_filter("auto", epsilon=1, delta=MILLIONTH)
    share = realised(by_rule(rule), ONE, MILLIONTH, FIRSTS[:1], LOSSES)
    assert 0.95 * RDP_SHARE < share <= RDP_SHARE + ZCDP_SHARE
