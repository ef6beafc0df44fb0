"""Noise reduction: the law of all answers together, exactly, and what a stop costs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from dpflow import OutputDP, guarded
from dpflow.exceptions import ReleaseError
from dpflow.mechanisms import noise_reduction as mechanism
from dpflow.mechanisms import refinable, refined
from tests.projects import POLICY, account, make_project

EPSILONS = (0.3, 0.5, 1.1)
STEPS = np.arange(-60, 61)


def laplace(rate: float) -> np.ndarray:
    """Return the law of discrete Laplace noise."""
    ratio = math.exp(-rate)
    return (1 - ratio) / (1 + ratio) * ratio ** np.abs(STEPS)


def added(coarse: float, fine: float) -> np.ndarray:
    """Return the law of what turns the finer noise into the coarser."""
    zero = math.exp(coarse - fine) * (math.expm1(-coarse) / math.expm1(-fine)) ** 2
    return (1 - zero) * laplace(coarse) + zero * (STEPS == 0)


def test_more_noise_makes_the_noise_of_a_larger_scale() -> None:
    """The finer noise with what is added has the law of the coarser."""
    for coarse, fine in itertools.combinations(EPSILONS, 2):
        both = np.convolve(laplace(fine), added(coarse, fine), "same")
        assert both[30:91] == pytest.approx(laplace(coarse)[30:91], rel=1e-6)


Joint = Callable[[int], np.ndarray]


def correlated(value: int) -> np.ndarray:
    """Return the law of (first, second) answers, the second the finer."""
    fine = laplace(0.5)[_shifted(value)]
    return added(0.3, 0.5)[_differences()] * fine[None, :]


def independent(value: int) -> np.ndarray:
    """Return the law of two answers with noise of their own."""
    return np.outer(laplace(0.3)[_shifted(value)], laplace(0.5)[_shifted(value)])


def _shifted(value: int) -> np.ndarray:
    return np.clip(np.arange(-20, 21) - value + 60, 0, 120)


def _differences() -> np.ndarray:
    answers = np.arange(-20, 21)
    return answers[:, None] - answers[None, :] + 60


def loss(law: Joint) -> float:
    """Return the largest loss of two answers of neighbours, one apart."""
    return float(np.abs(np.log(law(0) / law(1))).max())


def test_all_answers_together_lose_the_epsilon_of_the_last() -> None:
    """And independent noise loses the sum: the same look notices it."""
    assert loss(correlated) == pytest.approx(0.5)
    assert loss(independent) == pytest.approx(0.8)
    assert loss(independent) > 0.5 + 1e-9


def test_stopping_by_the_answers_stays_within_the_cells() -> None:
    """A stop that looks at the first answer: cell 1 loses 0.3, cell 2 loses 0.5."""
    stops = np.abs(np.arange(-20, 21)) % 3 == 0
    one, two = correlated(0), correlated(1)
    ends = np.log(laplace(0.3)[_shifted(0)] / laplace(0.3)[_shifted(1)])[stops]
    goes = np.log(one / two)[~stops]
    assert np.abs(ends).max() == pytest.approx(0.3)
    assert np.abs(goes).max() == pytest.approx(0.5)
    # Charging all stops as the first would be noticed.
    assert np.abs(goes).max() > 0.3 + 1e-9


COST = refinable("0.3", "0.5", "1.1")


def test_the_answers_get_closer_until_one_will_do() -> None:
    """The cell is how many there were; the last one needs no asking."""
    seen: list[int] = []

    def ask(answers: Sequence[tuple[int, ...]]) -> bool:
        seen.append(len(answers))
        return len(answers) == 2

    drawn = mechanism.refined(COST, [5, 7], sensitivity=1, good_enough=ask)
    assert drawn.cell == 2
    assert seen == [1, 2]
    assert len(drawn.output) == 2
    full = mechanism.refined(COST, [5], sensitivity=1, good_enough=lambda _: False)
    assert full.cell == 3
    errors = [
        [
            abs(a[0])
            for a in mechanism.refined(
                COST, [0], sensitivity=1, good_enough=lambda _: False
            ).output
        ]
        for _ in range(400)
    ]
    means = np.mean(errors, axis=0)
    assert means[0] > means[1] > means[2]


@pytest.mark.parametrize(
    ("cost", "values", "sensitivity"),
    [
        (OutputDP({"none": 0, "answer": 1}), [1], 1),
        (OutputDP({"1": "0.5", "2": "0.5"}), [1], 1),
        (OutputDP({"1": "0.5", "2": 1}, delta="1e-9"), [1], 1),
        (COST, [1.0], 1),
        (COST, [], 1),
        (COST, [1], 0),
    ],
)
def test_what_has_no_finer_answers_is_refused(cost, values, sensitivity) -> None:
    """Other cells, floats, nothing, and no sensitivity."""
    with pytest.raises(ReleaseError, match="needs"):
        mechanism.refined(
            cost, values, sensitivity=sensitivity, good_enough=lambda _: True
        )


@guarded(dataset="shop", cost=refinable("0.1", "0.4"))
def visitors(enough: bool) -> tuple:
    """Release a count, as finely as needed."""
    return refined([1000], sensitivity=1, good_enough=lambda _: enough)


def test_a_step_pays_for_the_last_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.1 if the first will do, 0.4 in all if it will not."""
    make_project(tmp_path, monkeypatch, POLICY.replace("basic", "output"))
    assert len(visitors(enough=True)) == 1
    assert account().spent["epsilon"] == "0.1"
    assert len(visitors(enough=False)) == 2
    assert account().spent["epsilon"] == "0.5"
