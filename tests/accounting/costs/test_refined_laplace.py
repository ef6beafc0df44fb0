"""Refined Laplace noise costs its finest draw: the law of all that is released."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from dpflow import Laplace, PureDP, Refined
from dpflow.accounting import make_filter, make_odometer
from dpflow.accounting.fixed.loss_distribution import curves
from dpflow.noise.grid import ADDED, GRID
from dpflow.noise.refining import chance_to_stay, whole_answers

BUDGET: dict[str, Any] = {"epsilon": 20, "delta": "1e-6"}
LOSSES = np.linspace(-3, 3, 2401)
#: Numbers that are looked at: nearly all of the finest noise, in whole numbers.
REACH = 40


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1, 4])
def test_every_theorem_without_cells_charges_the_finest_draw(epsilon: float) -> None:
    """Not the randomized response of its epsilon; `rdp` keeps its cells."""
    # The second draw has a third of the noise.
    cost = Refined(Laplace(sensitivity=1, epsilon=epsilon), spreads=[3 / epsilon])
    pure = PureDP(epsilon=epsilon)
    for rule in (
        *(make_filter(name, **BUDGET) for name in ("gdp", "zcdp", "residue")),
        make_odometer("mixture", delta="1e-6", form="zcdp", halt_at_epsilon=9),
    ):
        assert rule.price(cost) == rule.price(cost.finest)
        assert rule.price(cost).amounts[0] < rule.price(pure).amounts[0]
    (curve,), (finest,) = curves(cost), curves(cost.finest)
    assert np.array_equal(curve(LOSSES), finest(LOSSES))
    rdp = make_filter("rdp", **BUDGET)
    assert rdp.price(cost) == rdp.price(pure)
    assert rdp.price_realised(cost, 1).amounts[0] < rdp.price(cost.finest).amounts[0]


def noise_law(scale: float, size: int) -> Any:
    """Return the discrete Laplace law on the whole numbers from -size to size."""
    ratio = math.exp(-1 / scale)
    powers = ratio ** np.abs(np.arange(-size, size + 1))
    return (1 - ratio) / (1 + ratio) * powers


def released(truth: int, scales: tuple[float, float], steps: int, how: str) -> Any:
    """Return the law of both numbers; an early end shows a function of them.

    Args:
        truth: The true number.
        scales: Of both draws, in steps, the coarse one first.
        steps: Of a whole number, to which both are rounded.
        how: "coarsened" from the finer number, or "independent" of it.
    """
    coarse, fine = scales
    size = REACH * steps
    numbers = np.arange(-size, size + 1)
    more, finest = noise_law(coarse, 2 * size), noise_law(fine, 2 * size)
    first = finest[numbers - truth * steps + 2 * size]
    moved = more[numbers[None, :] - numbers[:, None] + 2 * size]
    stays = float(chance_to_stay(Fraction(fine), Fraction(coarse), 128))
    joint = (1 - stays) * moved + stays * np.eye(len(numbers))
    if how == "independent":
        joint = np.broadcast_to(more[numbers - truth * steps + 2 * size], moved.shape)
    joint = first[:, None] * joint
    whole = np.array([round(Fraction(int(n), steps)) for n in numbers]) + REACH
    law = np.zeros((2 * REACH + 1, 2 * REACH + 1))
    np.add.at(law, (whole[:, None], whole[None, :]), joint)
    return law.ravel()


def needed(law: Any, other: Any) -> Any:
    """Return the delta of two laws at each loss."""
    return np.array([np.maximum(law - np.exp(x) * other, 0).sum() for x in LOSSES])


@pytest.mark.parametrize(
    ("steps", "widened", "how", "holds"),
    [
        (8, 1 + ADDED / 8, "coarsened", True),
        # The controls: noise in whole numbers, and a fresh finer draw.
        (1, 1.0, "coarsened", False),
        (8, 1 + ADDED / 8, "independent", False),
    ],
)
def test_all_that_is_released_loses_no_more_than_the_finest_laplace_noise(
    steps: int, widened: float, how: str, *, holds: bool
) -> None:
    """At every loss, so in every notion; a coarse number may decide about a finer."""
    scales = (3 * steps * widened, steps * widened)
    laws = [released(truth, scales, steps, how) for truth in (0, 1)]
    (curve,) = curves(Laplace(sensitivity=1, epsilon=1))
    excess = [(needed(*pair) - curve(LOSSES)).max() for pair in (laws, laws[::-1])]
    assert max(excess) <= 1e-9 if holds else max(excess) > 0.01


@pytest.mark.parametrize("sensitivity", [1, 2, "2.5", 3 * GRID])
def test_whole_numbers_are_drawn_on_a_fine_grid(sensitivity: Any) -> None:
    """In steps of which a sensitivity has a quarter of a million, and then rounded."""
    cost = Refined(Laplace(sensitivity=sensitivity, epsilon="0.5"), coarsest=10)
    steps = max(GRID // math.ceil(cost.finest.sensitivity), 1)
    assert cost.finest.sensitivity * steps >= GRID / 4
    scales: list[Fraction] = []

    def noise(scale: Fraction) -> int:
        scales.append(scale)
        return 7 * steps + steps // 3

    first = list(whole_answers(cost, [100, -5], noise))[-1]
    assert first == (107, 2)
    least = cost.finest.scale * steps * (1 + Fraction(ADDED, GRID))
    assert scales[0] == scales[1] >= least
