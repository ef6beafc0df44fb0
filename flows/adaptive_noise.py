# ---
# title: Noise that follows progress, and a stop at a goal
# description: Softmax regression on MNIST; progress sets the next round's noise.
# dependencies: the extra `examples` of dpflow
# run: python flows/adaptive_noise.py [--quick]
# ---
"""Choose the noise of the next round from the progress of the last ones.

A filter and an odometer stay valid if decisions depend on releases only. Lecuyer 2021
(Sec. 5) uses this twice, and so does this flow:

- Under a filter: after each round a noisy count estimates the number of correct
  images. After a significant rise the next round has more noise and costs less.
  Otherwise it has less noise, down to that of the fixed schedule. The savings pay for
  more rounds.
- Under an odometer: training starts with twice the noise and ends when the count
  reaches a goal. After each round without significant progress the noise becomes
  smaller. The odometer reports the loss at the stop.

Every count is a DP step and is charged like a round: a decision that reads the
training images needs a charge.

Code walkthrough:

1. `descend` is a round of steps with the given noise; `count` is the test.
2. `flows.rounds` has the loop and the rule by which the noise follows progress.
3. `study` repeats all strategies on public data; `draw` draws one run.
4. `flows/adaptive_network.py` does the same for a network, and for batches.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from prefect import task
from scipy import special  # type: ignore[import-untyped]

from dpflow import EarlyStopping, Gaussian, dp_flow, dp_task, release
from dpflow.mechanisms import Factors, NormClip, gradient_descent
from flows import mnist, start
from flows.rounds import Course, Round, Share, Strategy, train

REPORTS = Path("reports")
PEOPLE = 60_000
RATE = 60.0

# What policies/mnist.yaml says: each flow's share, and where the odometer halts.
SHARE = Share("gdp", epsilon="0.3", delta="1e-5", halt="0.5")

# A gradient is clipped to norm 1, and an image is there or not: sensitivity 1.
NORM = 1
STEPS = 5
# One image is counted or not.
COUNT = Gaussian(sensitivity=1, sigma=150)

Weights = list[list[float]]
Images = tuple[mnist.Floats, mnist.Labels]


def images() -> Images:
    """Return the images to train on and their digits: private."""
    return mnist.train()


def descent(noise: int) -> EarlyStopping:
    """Return the cost of a round of steps."""
    step = Gaussian(sensitivity=NORM, noise_multiplier=noise)
    return EarlyStopping(step, stops=(STEPS,))


@dp_task(
    dataset="mnist",
    cost=lambda noise: descent(noise),  # noqa: PLW0108 (names what the cost reads)
    load=images,
    release_key="weights/{strategy}/{people}/{number}",
    ignore=("noise", "weights"),
)
def descend(  # noqa: PLR0917 (a step's parameters name its release)
    table: Images,
    strategy: str,  # noqa: ARG001 (the key reads it)
    people: int,
    number: int,  # noqa: ARG001 (the key reads it)
    noise: int,  # noqa: ARG001 (the cost reads it)
    weights: Weights,
) -> Weights:
    """Release a model after a round of noisy steps."""
    gradients = gradients_of(table, people)
    found = gradient_descent(
        np.array(weights), gradients, norm=NORM, rate=RATE / people
    )
    values: Weights = found.tolist()
    return values


@dp_task(
    dataset="mnist",
    cost=COUNT,
    load=images,
    release_key="count/{strategy}/{people}/{number}",
    ignore=("weights",),
)
def count(
    table: Images,
    strategy: str,  # noqa: ARG001 (the key reads it)
    people: int,
    number: int,  # noqa: ARG001 (the key reads it)
    weights: Weights,
) -> int:
    """Release how many of the training images a model gets right."""
    return release(right(table, np.array(weights), people), as_int=True)


def gradients_of(table: Images, people: int) -> Any:
    """Return a function from weights to the gradient of each person's loss."""
    features, digits = table
    x, wanted = features[:people], np.eye(mnist.DIGITS)[digits[:people]]
    factors = Factors(x)
    return lambda weights: factors.outer(special.softmax(x @ weights, axis=1) - wanted)


def right(table: Images, weights: mnist.Floats, people: int) -> int:
    """Return how many of the training images a model gets right: private."""
    features, digits = table
    return int(((features[:people] @ weights).argmax(axis=1) == digits[:people]).sum())


BASE, MORE = 80, 8


def noise_at(notch: int) -> int:
    """Return the noise multiplier at a notch of saving."""
    return BASE + MORE * notch


GOAL = 0.88
FIXED = Strategy("fixed")
ADAPTIVE = Strategy("adaptive", saves=True, spends=True)
FIXED_GOAL = Strategy("fixed-to-goal", goal=GOAL)
NOISY_GOAL = Strategy("noisy-to-goal", first=BASE // MORE, goal=GOAL)
ADAPTIVE_GOAL = Strategy("adaptive-to-goal", first=BASE // MORE, spends=True, goal=GOAL)
#: Noise rises only while this many more rounds would fit: half of the fixed schedule.
ROOM = 5


def course(people: int) -> Course:
    """Return what is public of a training."""
    return Course(people, SHARE, lambda notch: descent(noise_at(notch)), COUNT, ROOM)


def nothing() -> Weights:
    """Return the first model."""
    zeros: Weights = np.zeros((mnist.FEATURES, mnist.DIGITS)).tolist()
    return zeros


def _charged(strategy: Strategy, people: int) -> list[Round]:
    """Train with DP steps, each of which the ledger charges."""
    name = strategy.name
    return train(
        strategy,
        course(people),
        nothing(),
        lambda number, notch, weights: descend(
            name, people, number, noise_at(notch), weights
        ),
        lambda number, weights: count(name, people, number, weights),
    )


@dp_flow(name="adaptive-noise")
def adaptive_noise(people: int = PEOPLE) -> list[Round]:
    """Train within the flow's share of the budget, with noise that follows progress."""
    return _charged(ADAPTIVE, people)


@dp_flow(name="stop-at-goal")
def stop_at_goal(people: int = PEOPLE) -> list[Round]:
    """Train until a noisy count reaches the goal; the odometer says what that took."""
    return _charged(ADAPTIVE_GOAL, people)


def simulated(strategy: Strategy, people: int, seed: int) -> list[Round]:
    """Train outside of any budget, which only public data may, with numpy's noise.

    OpenDP's exact sampler would take longer than all the rest.
    """
    table = images()
    gradients, clip = gradients_of(table, people), NormClip.to(NORM)
    generator = np.random.default_rng(seed)

    def descend_by(_: int, notch: int, weights: Weights) -> Weights:
        model = np.array(weights)
        for _step in range(STEPS):
            total = clip.apply(gradients(model)).total()
            total += generator.normal(scale=NORM * noise_at(notch), size=total.shape)
            model -= RATE / people * total
        values: Weights = model.tolist()
        return values

    def count_by(_: int, weights: Weights) -> int:
        true = right(table, np.array(weights), people)
        return round(generator.normal(true, float(COUNT.sigma)))

    return train(strategy, course(people), nothing(), descend_by, count_by)


def accuracy(weights: Weights) -> float:
    """Return for which share of the test images a model is right: public here."""
    features, digits = mnist.test()
    return float(((features @ np.array(weights)).argmax(axis=1) == digits).mean())


STRATEGIES = (FIXED, ADAPTIVE, FIXED_GOAL, NOISY_GOAL, ADAPTIVE_GOAL)


def study(people: int, runs: int) -> dict[str, list[list[Round]]]:
    """Train by every strategy, again and again."""
    return {
        each.name: [simulated(each, people, seed) for seed in range(runs)]
        for each in STRATEGIES
    }


def table(found: dict[str, list[list[Round]]]) -> list[str]:
    """Return lines with means over runs: rounds, accuracy, budget and reading."""
    lines = ["strategy          steps  right on test (least, most)  used  odometer"]
    for name, runs in found.items():
        scores = [accuracy(run[-1].weights) for run in runs]
        steps = STEPS * statistics.fmean(len(run) for run in runs)
        used = statistics.fmean(run[-1].used for run in runs)
        reading = statistics.fmean(run[-1].reading for run in runs)
        lines.append(
            f"{name:17} {steps:5.0f}  {statistics.fmean(scores):.4f} "
            f"({min(scores):.4f}, {max(scores):.4f})     {used:5.0%}  {reading:.3f}"
        )
    return lines


@task
def draw(runs: dict[str, list[Round]]) -> Path:
    """Draw one run of each strategy: its noise, and accuracy against the budget."""
    from matplotlib.figure import Figure  # noqa: PLC0415 (slow to import)

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes: Any = figure.subplots(1, 2)
    for name, rounds in runs.items():
        dashed = "-" if name.startswith("adaptive") else "--"
        steps = STEPS * np.arange(1, len(rounds) + 1)
        axes[0].plot(
            steps, [noise_at(each.notch) for each in rounds], dashed, label=name
        )
        scores = [accuracy(each.weights) for each in rounds]
        axes[1].plot([each.used for each in rounds], scores, dashed, label=name)
    axes[0].set(xlabel="steps", ylabel="noise multiplier", ylim=(0, None))
    axes[1].axhline(GOAL, color="0.8", lw=1)
    axes[1].set(xlabel="share of the budget used", ylabel="right on test images")
    axes[0].legend(frameon=False, fontsize=8)
    REPORTS.mkdir(exist_ok=True)
    path = REPORTS / "adaptive-noise.png"
    figure.savefig(path, dpi=150, facecolor="white")
    return path


def _told(name: str, rounds: Sequence[Round]) -> str:
    last = rounds[-1]
    return (
        f"{name}: {STEPS * len(rounds)} steps, right for {accuracy(last.weights):.4f} "
        f"of the test images, {last.used:.0%} of its share, odometer {last.reading:.3f}"
    )


def main() -> None:
    """Run both flows, then the study, and draw a run of it."""
    parser = argparse.ArgumentParser(description="Noise that follows progress.")
    parser.add_argument("--quick", action="store_true", help="few images, one run each")
    people, runs = (5_000, 1) if parser.parse_args().quick else (PEOPLE, 5)
    start.make_first_ledger()
    print(_told("adaptive noise under a filter", adaptive_noise(people)))
    print(_told("a goal under an odometer", stop_at_goal(people)))
    found = study(people, runs)
    print(
        f"{people} images, means of {runs} runs, (epsilon {SHARE.epsilon}, delta "
        f"{SHARE.delta}), goal {GOAL}"
    )
    print("\n".join(table(found)))
    print(f"drawn in {draw.fn({name: each[0] for name, each in found.items()})}")


if __name__ == "__main__":
    main()
