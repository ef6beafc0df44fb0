"""What the odometer of one flow bounds where flows see each other's releases, exactly.

Flow B releases a private bit by randomized response, at its cost. Flow A is charged
next to nothing: B's answer chooses which of two steps it runs, and which one ran is
part of what A releases. So A's releases alone show B's answer.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest

from dpflow import PureDP
from dpflow.accounting import make_filter, make_odometer

BITS = (0, 1)
OF_B, OF_A = Fraction(6), Fraction(1, 1000)

#: Odometers of flow A.
ODOMETERS = [("basic", {}), ("rdp", {"order": 32}), ("mixture", {"rho": "0.001"})]
DELTA = "0.001"


def answers(bit: int, epsilon: Fraction) -> dict[int, float]:
    """Return the law of a randomized response."""
    true = 1 / (1 + math.exp(-float(epsilon)))
    return {bit: true, 1 - bit: 1 - true}


def law(bit: int, *, looks: bool = True) -> dict[tuple[int, int, int], float]:
    """Return the law of both flows' releases; the control does not look at B.

    An output is B's answer, the step that A ran, and its answer.
    """
    first, own = answers(bit, OF_B), answers(bit, OF_A)
    pairs = itertools.product(BITS, BITS)
    return {(b, b if looks else 0, a): first[b] * own[a] for b, a in pairs}


def above(one: dict, other: dict, bound: float) -> float:
    """Return the probability that the loss of an output passes the bound."""
    return sum(
        chance
        for output, chance in one.items()
        if math.log(chance / other[output]) > bound + 1e-9
    )


def seen_of_a(*, looks: bool) -> list[dict[tuple[int, int], float]]:
    """Return the laws of the releases of A alone: its step and the answer."""
    laws: list[dict[tuple[int, int], float]] = [{}, {}]
    for bit, result in enumerate(laws):
        for (_, step, answer), chance in law(bit, looks=looks).items():
            result[step, answer] = result.get((step, answer), 0.0) + chance
    return laws


@pytest.mark.parametrize(("theorem", "options"), ODOMETERS)
def test_a_reading_bounds_a_flows_steps_given_all_other_releases(theorem, options):
    """A's releases alone lose more, nearly always: the loss of B, that A looks at."""
    rule = make_odometer(theorem, delta=DELTA, **options)
    bound = rule.read(rule.price(PureDP(epsilon=OF_A)))
    assert bound < OF_B / 2
    assert above(*seen_of_a(looks=True), bound) > 0.99
    assert above(*seen_of_a(looks=False), bound) == 0
    # Each answer of A given B's: that loss is what A was charged for.
    for bit, answer in itertools.product(BITS, BITS):
        pair = []
        for b in (bit, 1 - bit):
            views = {view: p for view, p in law(b).items() if view[0] == answer}
            pair.append({view: p / sum(views.values()) for view, p in views.items()})
        assert above(*pair, bound) <= float(DELTA)


def test_the_datasets_budget_covers_both_flows() -> None:
    """What both release together loses what both were charged, and no more."""
    views = [law(bit) for bit in BITS]
    assert above(*views, float(OF_A + OF_B)) == 0
    assert above(*views, float(OF_B)) > 0.4
    enough = make_filter("basic", epsilon=OF_A + OF_B)
    total = enough.price(PureDP(epsilon=OF_A)) + enough.price(PureDP(epsilon=OF_B))
    assert enough.admits(total)
    assert not make_filter("basic", epsilon=OF_B).admits(total)
