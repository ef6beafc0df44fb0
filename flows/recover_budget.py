# ---
# title: A refund for a useless model
# description: Noisy logistic regression that must pass a noisy test, on Adult.
# dependencies: the extra `examples` of dpflow
# run: python flows/recover_budget.py
# ---
"""Train with little budget, and recover most of it if the model is useless.

A model with much noise may be worse than none, which only a test can show. Algorithm 5
of Hartmann, Bindschaedler, Bentkamp and West 2022 fits logistic regression with noise
on its parameters and tests it on other people, with noise again. A failed model is
deleted unseen: the output is "none", and only the test is charged, although the price
of a model was reserved.

The flow does this once and pays. The figure is Figure 2 of the paper: the reach of the
test's noise.

Code walkthrough:

1. `model` is the step; `output_perturbation` reports whether there is a model.
2. `recover_budget` is the flow; a second call replays its release.
3. `draw` draws Figure 2.
"""

from __future__ import annotations

import math
import warnings
from fractions import Fraction
from pathlib import Path

import numpy as np
from prefect import task

from dpflow import dp_flow, dp_task
from dpflow.mechanisms import output_perturbation, recoverable_model
from dpflow.mechanisms.perturbed_models import Recipe
from flows import adult, start

REPORTS = Path("reports")
PEOPLE = 48_842
REGULARISATION = "0.001"
# A good model's mean error is near 0.55, a model without any noise in it has 0.549.
THRESHOLD = 0.62
TEST = Fraction("0.2")
COST = recoverable_model(model=1, test=TEST)
# With a larger chance the test says little, and the caller is warned.
LARGEST_CHANCE = 0.05


@dp_task(dataset="adult", cost=COST, release_key="model/{people}")
def model(people: int = PEOPLE) -> list[float] | None:
    """Release a model fitted to 70 % of the people, if it passes the test on the rest.

    Assumes replace-one, one row per person, and that the people used are the first of
    an order that does not depend on the data.
    """
    features, labels = adult.people()
    weights = output_perturbation(
        features[:people],
        labels[:people],
        train=_train(people),
        regularisation=REGULARISATION,
        threshold=THRESHOLD,
    )
    return None if weights is None else weights.tolist()


def _train(people: int) -> int:
    return people * 7 // 10


@dp_flow(name="recover-budget")
def recover_budget(people: int = PEOPLE) -> list[float] | None:
    """Release a model, or the fact that no model passed."""
    # A missing file must not fail inside a step, which would be charged in full.
    adult.data_files()
    chance = chance_of_the_worst(people)
    if chance > LARGEST_CHANCE:
        msg = (
            f"the test says little: of {people} people, a model with the largest "
            f"error, 2, would pass with a chance of {chance:.0%}, for the test's noise "
            "is that large. Use more people or a larger epsilon of the test."
        )
        warnings.warn(msg, stacklevel=2)
    return model(people)


def chance_of_the_worst(people: int) -> float:
    """Return the chance that a model with the largest error, 2, passes the test."""
    train = _train(people)
    recipe = Recipe(train, REGULARISATION, THRESHOLD)
    scale = recipe.test_sensitivity(people - train) / TEST
    return math.exp(-max(2 - THRESHOLD, 0) / scale) / 2


def reach(people: int, test: float, regularisation: float = 1.0) -> float:
    """Return the 95th percentile of the test's noise, of Figure 2.

    With the scale of the paper, max(2 / m, 2 (exp(2 / (n Lambda)) - 1)) / e2; at these
    numbers the tighter scale of dpflow is the same 2 / m.
    """
    train = _train(people)
    moved = 2 * math.expm1(2 / (train * regularisation))
    scale = max(2 / (people - train), moved) / test
    return -scale * math.log(2 - 2 * 0.95)


@task
def draw() -> Path:
    """Draw Figure 2."""
    from matplotlib.figure import Figure  # noqa: PLC0415 (slow to import)

    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axes = figure.subplots()
    sizes = np.unique(np.geomspace(500, 50_000, 60).astype(int)).tolist()
    for test in (0.1, 0.2, 0.5):
        label = f"test epsilon {test}"
        axes.loglog(sizes, [reach(size, test) for size in sizes], label=label)
    axes.set(xlabel="people", ylabel="95th percentile of the test's noise")
    axes.legend(frameon=False)
    REPORTS.mkdir(exist_ok=True)
    path = REPORTS / "recover-budget.png"
    figure.savefig(path, dpi=150, facecolor="white")
    return path


def main() -> None:
    """Run the flow, and draw the figure."""
    start.make_first_ledger()
    weights = recover_budget()
    outcome = "no model, and most of its price is back"
    print("a model was released" if weights is not None else outcome)
    print("Figure 2: 95th percentile at 1,000 and 5,000 people, Lambda 1")
    for test in (0.1, 0.2, 0.5):
        print(f"  test {test}: {reach(1000, test):.10f} {reach(5000, test):.10f}")
    print(f"drawn in {draw.fn()}")


if __name__ == "__main__":
    main()
