"""What the odometer of one flow bounds where flows see each other's releases, exactly.

Flow B releases a private bit by randomized response, at its cost. Flow A is charged
next to nothing: B's answer chooses which of two steps it runs, and which one ran is
part of what A releases. So A's releases alone show B's answer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import pytest

from dpflow import PureDP
from dpflow.accounting import make_filter, make_odometer

BITS = (0, 1)
OF_B, OF_A = Fraction(6), Fraction(1, 1000)

#: Odometers of flow A.
ODOMETERS = [
    ("basic", {}),
    ("rdp", {"order": 32}),
    ("mixture", {"rho": "0.001"}),
]
DELTA = "0.001"

#: An output of both flows: B's answer, the step that A ran, and its answer.
View = tuple[int, int, int]


def answers(bit: int, epsilon: Fraction) -> dict[int, float]:
    """Return the law of a randomized response."""
    true = 1 / (1 + math.exp(-float(epsilon)))
    return {bit: true, 1 - bit: 1 - true}


def chosen(answer: int) -> int:
    """Return the step of A that B's answer chooses: 0 and 1 differ in name only."""
    return answer


def ignored(_: int) -> int:
    """Choose without a look at B: the control."""
    return 0


def law(bit: int, choice: Callable[[int], int]) -> dict[View, float]:
    """Return the law of all that both flows release."""
    first, own = answers(bit, OF_B), answers(bit, OF_A)
    return {
        (b, choice(b), a): first[b] * own[a] for b, a in itertools.product(BITS, BITS)
    }


def seen_of_a(whole: dict[View, float]) -> dict[tuple[int, int], float]:
    """Return the law of what A alone releases: its step and the answer."""
    found: dict[tuple[int, int], float] = {}
    for (_, step, answer), chance in whole.items():
        found[step, answer] = found.get((step, answer), 0.0) + chance
    return found


def above(one: dict, other: dict, bound: float) -> float:
    """Return the probability that the loss of an output passes the bound."""
    return sum(
        chance
        for output, chance in one.items()
        if math.log(chance / other[output]) > bound + 1e-9
    )


def reading(theorem: str, options: dict) -> float:
    """Return A's reading after its one step."""
    rule = make_odometer(theorem, delta=DELTA, **options)
    return rule.read(rule.price(PureDP(epsilon=OF_A)))


@pytest.mark.parametrize(("theorem", "options"), ODOMETERS)
def test_a_flows_releases_alone_may_lose_more_than_its_reading(theorem, options):
    """Nearly always, though the reading may fail with probability delta only."""
    bound = reading(theorem, options)
    assert bound < OF_B / 2
    views = [seen_of_a(law(bit, chosen)) for bit in BITS]
    assert above(*views, bound) > 0.99
    # The loss is B's, and it is not there where A does not look at B.
    blind = [seen_of_a(law(bit, ignored)) for bit in BITS]
    assert above(*blind, bound) == 0


@pytest.mark.parametrize(("theorem", "options"), ODOMETERS)
def test_a_reading_bounds_the_flows_steps_given_all_that_was_released(theorem, options):
    """Each answer of A given B's: that loss is what A was charged for."""
    bound = reading(theorem, options)
    for bit, answer in itertools.product(BITS, BITS):
        given = [
            {view: p for view, p in law(b, chosen).items() if view[0] == answer}
            for b in (bit, 1 - bit)
        ]
        given = [{v: p / sum(g.values()) for v, p in g.items()} for g in given]
        assert above(*given, bound) <= float(DELTA)


def test_the_datasets_budget_covers_both_flows() -> None:
    """What both release together loses what both were charged, and no more."""
    views = [law(bit, chosen) for bit in BITS]
    assert above(*views, float(OF_A + OF_B)) == 0
    assert above(*views, float(OF_B)) > 0.4
    enough = make_filter("basic", epsilon=OF_A + OF_B)
    total = enough.price(PureDP(epsilon=OF_A)) + enough.price(PureDP(epsilon=OF_B))
    assert enough.admits(total)
    assert not make_filter("basic", epsilon=OF_B).admits(total)
