"""Exact audits of cells under RDP rules: mechanisms of two outputs, at their worst.

A mechanism whose outputs fall into cells of its own epsilons has, at its worst, one
output with P/Q = e^epsilon of one cell and one with e^-epsilon of another, or of the
same. An adversary picks among all of them by what it saw; values are finite sums.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from dpflow import OutputDP, PureDP
from dpflow.accounting import make_filter, make_odometer
from dpflow.accounting.rules.rdp import RdpFilter
from dpflow.accounting.rules.rule import Odometer
from dpflow.accounting.rules.tally import Tally
from tests.adversaries.games import excess, game

Charge = Callable[[RdpFilter, OutputDP, str], Tally]
Atom = tuple[float, Fraction, str]  # P of an output, its loss and its cell


def settled(rule: RdpFilter, cost: OutputDP, cell: str) -> Tally:
    """Charge as the filter does."""
    return rule.price_realised(cost, cell)


def as_if_alone(rule: RdpFilter, cost: OutputDP, cell: str) -> Tally:
    """Charge the divergence of a pure step of the cell's epsilon: no common slope."""
    epsilon = dict(cost.cells)[cell]
    return rule.price(PureDP(epsilon=epsilon)) if epsilon else rule.zero()


def small_is_free(rule: RdpFilter, cost: OutputDP, cell: str) -> Tally:
    """Charge nothing for a cell whose outputs tell something."""
    return rule.zero() if cell == "small" else rule.price(cost)


def worst_mechanisms(cost: OutputDP) -> list[list[Atom]]:
    """Return all mechanisms with two outputs at the ends of their cells."""
    found = []
    for (high, up), (low, down) in itertools.product(cost.cells, repeat=2):
        x, y = math.exp(float(up)), math.exp(-float(down))
        if x == y:
            continue
        weight = (1 - y) / (x - y)  # Q of the first output
        found.append([(weight * x, up, high), ((1 - weight) * y, -down, low)])
    return found


def delta_of(
    rule: RdpFilter, cost: OutputDP, rounds: int, charge: Charge = settled
) -> float:
    """Return the largest delta at the rule's epsilon that an adversary reaches."""
    menu = [
        (rule.price(cost), [(p, loss, charge(rule, cost, c)) for p, loss, c in atoms])
        for atoms in worst_mechanisms(cost)
    ]
    limit = float(rule.epsilon)
    stop = lambda _, loss: excess(limit, loss)
    return game(menu, rule.admits, stop, rounds, rule.zero())


def cells(small: str, large: str) -> OutputDP:
    """Return a mechanism with a cheap cell and a dear one."""
    return OutputDP({"small": small, "large": large})


CASES = {
    "far apart": ("1", "0.05", "6", cells("0.1", "0.5"), 8, 0.866),
    "wide": ("1", "0.2", None, cells("0.1", "0.9"), 7, 0.855),
    "near": ("1", "0.01", "6", cells("0.1", "0.2"), 14, 0.501),
}


def filter_of(name: str) -> RdpFilter:
    """Make the filter of a case."""
    epsilon, delta, order, *_ = CASES[name]
    rule = make_filter("rdp", epsilon=epsilon, delta=delta, order=order)
    assert isinstance(rule, RdpFilter)
    return rule


@pytest.mark.parametrize("name", CASES)
def test_delta_is_kept(name: str) -> None:
    """Whatever the adversary picks by the cells it saw, and it comes near."""
    _, delta, _, cost, rounds, share = CASES[name]
    found = delta_of(filter_of(name), cost, rounds)
    assert found <= float(delta)
    assert found == pytest.approx(share * float(delta), rel=2e-3)


@pytest.mark.parametrize("wrong", [as_if_alone, small_is_free])
def test_cells_whose_condition_fails_are_caught(wrong: Charge) -> None:
    """Each cell at the divergence of its own epsilon is too little, and so is zero."""
    _, delta, _, cost, rounds, _ = CASES["far apart"]
    found = delta_of(filter_of("far apart"), cost, rounds, wrong)
    assert found > 1.4 * float(delta)


def crossing(
    rule: Odometer, cost: OutputDP, rounds: int, charge: Callable[[str], Tally]
) -> float:
    """Return the largest probability that the loss ever passes the reading."""
    menu = [
        (rule.zero(), [(p, loss, charge(cell)) for p, loss, cell in atoms])
        for atoms in worst_mechanisms(cost)
    ]
    stop = lambda spent, loss: float(float(loss) > rule.read(spent))
    return game(menu, lambda _: True, stop, rounds, rule.zero())


@pytest.mark.parametrize("options", [{"order": 3}, {"orders": [2, 4, 8]}])
def test_odometers_hold_with_cells(options: dict[str, Any]) -> None:
    """The reading is passed with probability delta at most; with free cells, more."""
    rule = make_odometer("rdp", delta="0.1", halt_at_epsilon=5, **options)
    cost = cells("0.3", "0.9")
    kept = crossing(rule, cost, 9, lambda cell: rule.charge_realised(cost, cell))
    free = {"small": rule.zero(), "large": rule.charge(cost)}
    passed = crossing(rule, cost, 9, lambda cell: free[cell])
    assert 0.01 < kept <= 0.1 < passed
