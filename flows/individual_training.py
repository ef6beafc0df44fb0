# ---
# title: A budget for every person, and more training steps
# description: Private gradient descent on Adult under an individual filter.
# dependencies: the extra `examples` of dpflow
# run: python flows/individual_training.py [--quick] [--table adult|mnist]
# ---
"""Train longer on the same budget, because few people cost the worst case.

A usual filter charges every step the cost of the longest allowed gradient. Under the
individual filter of Feldman and Zrnic 2021 every person pays for the length of their
own gradient. A person without remaining budget is excluded from the sums, invisibly.
As the model improves, most gradients become short, so most people stay for many more
steps than the worst case allows.

This helps where the noise is large: here with a thousand people. With all of Adult the
noise is small in comparison with the sum, and the worst case with more noise is as
good. There the individual filter loses, because it excludes first the people whom the
model serves worst.

The ledger reserves one number, the bound of every person. The remaining budgets are
private and stay inside the step; the model after every step is released.

Code walkthrough:

1. `BOUND` is the whole budget as a squared mu, and `SIGMA` the noise of a step.
2. `train` is the step: `gradient_descent` under an individual bound.
3. `compare` trains both ways on public data, without a budget, for the table.
4. `--table` prints the table of the paper, with linear models:
   `flows.individual_table`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from prefect import task
from scipy import special  # type: ignore[import-untyped]

from dpflow import dp_flow, dp_task
from dpflow.accounting import make_filter
from dpflow.mechanisms import NormClip, gradient_descent, individual_descent
from flows import adult, individual_table, start

REPORTS = Path("reports")
TRAIN = 1_000
RULE = make_filter("individual", epsilon=1, delta="1e-5", measure="gdp")
BOUND = RULE.opening()  # type: ignore[attr-defined]

# No gradient is longer than a row, whose norm is at most 1.
NORM = 1
# This many steps fit if every gradient has the norm 1 in every step.
WORST_CASE_STEPS = 40
SIGMA = math.sqrt(WORST_CASE_STEPS / float(BOUND.bound)) * (1 + 1e-9)
STEPS = (40, 80, 120)
RATE = 16.0


def gradients_of(table: adult.People, people: int) -> Any:
    """Return a function from weights to the gradient of each person's loss."""
    features, labels = table
    x, y = features[:people], np.where(labels[:people], 1.0, -1.0)

    def gradients(weights: adult.Floats) -> adult.Floats:
        pull = special.expit(-(x @ weights) * y) * y
        return np.asarray(-pull[:, None] * x, np.float64)

    return gradients


@dp_task(
    dataset="adult-individual",
    cost=BOUND,
    load=adult.people,
    release_key="weights/{people}/{steps}",
)
def train(table: adult.People, people: int, steps: int) -> list[float]:
    """Release a model that was trained on people with a budget of their own."""
    gradients = gradients_of(table, people)
    start_at = np.zeros(adult.FEATURES)
    weights = gradient_descent(
        start_at, gradients, norm=NORM, rate=RATE / people, sigma=SIGMA, steps=steps
    )
    values: list[float] = weights.tolist()
    return values


@dp_flow(name="individual-training")
def individual_training(people: int = TRAIN, steps: int = STEPS[-1]) -> list[float]:
    """Release a model."""
    return train(people, steps)


def right(weights: Sequence[float], people: int) -> float:
    """Return for how many of the others a model is right; only public data may."""
    features, labels = adult.people()
    found = features[people:] @ np.asarray(weights) > 0
    return float((found == labels[people:]).mean())


def compare(
    people: int, lengths: Sequence[int], runs: int
) -> list[tuple[int, float, float]]:
    """Train on public data, both ways, with the same budget and numbers of steps.

    Args:
        people: How many to train on, the first ones.
        lengths: Numbers of steps.
        runs: How often to train; the means are returned.

    Returns:
        Rows of (steps, right with the worst case, right with individual budgets). The
        worst case needs more noise for more steps; the individual filter keeps it.
    """
    gradients, clip = gradients_of(adult.people(), people), NormClip.to(NORM)
    rows = []
    for steps in lengths:
        found = []
        for spread in (SIGMA * math.sqrt(steps / WORST_CASE_STEPS), SIGMA):
            models = [
                individual_descent(
                    BOUND,
                    np.zeros(adult.FEATURES),
                    gradients,
                    clip=clip,
                    rate=RATE / people,
                    sigma=Fraction(spread),
                    steps=steps,
                )
                for _ in range(runs)
            ]
            found.append(float(np.mean([right(m.tolist(), people) for m in models])))
        rows.append((steps, found[0], found[1]))
    return rows


@task
def draw(rows: Sequence[tuple[int, float, float]]) -> Path:
    """Draw the table."""
    from matplotlib.figure import Figure  # noqa: PLC0415 (slow to import)

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes: Any = figure.subplots()
    steps = [row[0] for row in rows]
    axes.plot(steps, [row[1] for row in rows], "o--", label="worst case")
    axes.plot(steps, [row[2] for row in rows], "o-", label="a budget for every person")
    axes.set(xlabel="steps of gradient descent", ylabel="right for the others")
    axes.legend(frameon=False)
    REPORTS.mkdir(exist_ok=True)
    path = REPORTS / "individual-training.png"
    figure.savefig(path, dpi=150, facecolor="white")
    return path


def main() -> None:
    """Run the flow, print the table, draw it."""
    parser = argparse.ArgumentParser(description="Train with a budget per person.")
    parser.add_argument("--quick", action="store_true", help="few people and steps")
    parser.add_argument(
        "--table", choices=individual_table.PROBLEMS, help="only the paper's table"
    )
    options = parser.parse_args()
    if options.table:
        individual_table.show(options.table, quick=options.quick)
        return
    lengths, runs = ((10, 20), 1) if options.quick else (STEPS, 10)
    start.make_first_ledger()
    weights = individual_training(TRAIN, lengths[-1])
    print(f"sigma {SIGMA:.2f}, {lengths[-1]} steps, epsilon 1 for everybody")
    print(f"right for {right(weights, TRAIN):.4f} of the others (public here)")
    rows = compare(TRAIN, lengths, runs)
    print("steps  worst case  individual")
    for steps, worst, individual in rows:
        print(f"{steps:5} {worst:11.4f} {individual:11.4f}")
    print(f"drawn in {draw.fn(rows)}")


if __name__ == "__main__":
    main()
