"""The table of Feldman and Zrnic 2021, with linear models: accuracy at small budgets.

The paper trains on Adult and MNIST with and without individual filtering, at epsilon
0.3, 0.5 and 1.2 and delta 1e-5, and does not say with which models in its short
version. Here both models are linear: logistic regression on Adult's 49 numbers and
softmax regression on the edges of MNIST's images (`flows.mnist.edges`), trained with
all people in every step. Both data sets are public, so runs outside of any budget are
fine. The tallies of the DP step decide who takes part; the noise is numpy's,
from a seed, for nothing here is private and OpenDP's exact sampler takes longer than
all the rest.

Each way spends the same budget, as a squared mu, which is exact for Gaussian noise:

- the worst case, with the noise with which a number of steps just fit;
- the worst case again, with more steps and the larger noise that they need;
- the filter, with more steps and the smaller noise; people without budget are omitted.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special  # type: ignore[import-untyped]

from dpflow.accounting import IndividualBound, make_filter
from dpflow.mechanisms import Factors, NormClip, OuterRows, individual_sum
from dpflow.people import PrivateTally
from flows import adult, mnist
from flows.network import HIDDEN, Network, with_ones

EPSILONS = ("0.3", "0.5", "1.2")
DELTA = "1e-5"
RUNS = 10
#: The network takes 2 seconds for a step on all 60,000 images. Its gradients are long:
#: their norm is 7 for the median of people at the start, and 2 after 60 steps.
NETWORK_PEOPLE, NETWORK_RATE, NETWORK_CLIP, NETWORK_RUNS = 20_000, 0.5, 10, 3
WAYS = ("worst case", "worst case, more steps", "filter, more steps")

#: Percent, without and with filtering, mean and standard deviation: the paper's table.
PUBLISHED = {
    ("mnist", "0.3"): ("92.80 +- 0.52", "93.18 +- 0.32"),
    ("mnist", "0.5"): ("94.62 +- 0.43", "94.90 +- 0.26"),
    ("mnist", "1.2"): ("96.56 +- 0.15", "96.56 +- 0.15"),
    ("adult", "0.3"): ("83.80 +- 0.22", "83.91 +- 0.12"),
    ("adult", "0.5"): ("84.11 +- 0.15", "84.18 +- 0.10"),
    ("adult", "1.2"): ("84.45 +- 0.13", "84.48 +- 0.15"),
}


@dataclass(frozen=True, slots=True)
class Problem:
    """What is trained, and how; the settings were chosen by looking at single runs.

    Attributes:
        name: Of the data set.
        people: How many are trained on.
        start: The first model, zeros.
        gradients: The gradient of each person's loss at a model.
        right: The share of the others for whom a model is right.
        rate: What the mean gradient is multiplied with.
        steps: How many steps the worst case fits the budget with.
        more: How many steps there are with filtering.
        clip: The longest gradient.
        runs: How many seeds.
    """

    name: str
    people: int
    start: adult.Floats
    gradients: Callable[[Any], Any]
    right: Callable[[adult.Floats], float]
    rate: float
    steps: int
    more: int
    clip: int = 1
    runs: int = RUNS


def logistic_adult(*, quick: bool = False) -> Problem:
    """Logistic regression on as many people as UCI's file of training data has.

    Which ones is a public shuffle; the paper may have used the two files as they are.
    """
    features, labels = adult.people()
    people = 500 if quick else 32_561
    factors, signs = Factors(features[:people]), np.where(labels[:people], 1.0, -1.0)
    x, others, true = features[:people], features[people:], labels[people:]
    return Problem(
        name="adult",
        people=people,
        start=np.zeros(adult.FEATURES),
        gradients=lambda w: factors.outer(-special.expit(-(x @ w) * signs) * signs),
        right=lambda w: float(((others @ w > 0) == true).mean()),
        rate=24.0,
        steps=4 if quick else 200,
        more=6 if quick else 300,
    )


def softmax_mnist(*, quick: bool = False) -> Problem:
    """Softmax regression on edges; a gradient is a product of vectors."""
    features, digits = mnist.train(mnist.edges)
    people = 500 if quick else 60_000
    x, wanted = features[:people], np.eye(mnist.DIGITS)[digits[:people]]
    factors, (others, true) = Factors(x), mnist.test(mnist.edges)
    # Half as many bytes to read; a person's error still depends on their row alone.
    single = x.astype(np.float32)

    def gradients(weights: mnist.Floats) -> OuterRows:
        scores = single @ weights.astype(np.float32)
        np.exp(scores - scores.max(axis=1, keepdims=True), out=scores)
        return factors.outer(scores / scores.sum(axis=1, keepdims=True) - wanted)

    return Problem(
        name="mnist",
        people=people,
        start=np.zeros((mnist.EDGES, mnist.DIGITS)),
        gradients=gradients,
        right=lambda w: float(((others @ w).argmax(axis=1) == true).mean()),
        rate=120.0,
        steps=4 if quick else 45,
        more=6 if quick else 60,
    )


def network_mnist(*, quick: bool = False) -> Problem:
    """The network of `flows.network` on pixels; a gradient is a product per layer.

    A person's norm is that of both layers together, exactly as they are summed.
    """
    rows, digits = mnist.train(mnist.pixels)
    people = 500 if quick else NETWORK_PEOPLE
    x, labels = with_ones(rows[:people]), digits[:people]
    images, true = mnist.test(mnist.pixels)
    others, network = with_ones(images), Network(x.shape[1] - 1, HIDDEN, mnist.DIGITS)
    return Problem(
        name="mnist-network",
        people=people,
        start=network.start(0).astype(np.float64),
        gradients=network.gradients(x, labels),
        right=lambda w: network.right(w, others, true) / len(true),
        rate=NETWORK_RATE,
        steps=4 if quick else 45,
        more=6 if quick else 60,
        clip=NETWORK_CLIP,
        runs=NETWORK_RUNS,
    )


PROBLEMS = {
    "adult": logistic_adult,
    "mnist": softmax_mnist,
    "mnist-network": network_mnist,
}


def descend(
    problem: Problem, bound: IndividualBound, sigma: float, steps: int, seed: int
) -> float:
    """Train once on public data; return for how many of the others the model is right.

    If the steps fit for every person, the filter omits no person.
    """
    tally, clip = PrivateTally(bound, people=problem.people), NormClip.to(problem.clip)
    noise, model = np.random.default_rng(seed), problem.start
    scale = sigma * problem.clip
    for _ in range(steps):
        total = individual_sum(tally, problem.gradients(model), clip=clip, sigma=scale)
        total += noise.normal(scale=scale, size=total.shape)
        model = model - problem.rate / problem.people * total
    return problem.right(model)


def accuracies(problem: Problem, epsilon: str, runs: int) -> list[tuple[float, float]]:
    """Return the mean accuracy and its standard deviation over runs, for each way."""
    rule = make_filter("individual", epsilon=epsilon, delta=DELTA, measure="gdp")
    bound = rule.opening()  # type: ignore[attr-defined]

    def noise(steps: int) -> float:
        """Return the smallest noise with which the steps fit, rounded up."""
        return math.sqrt(steps / float(bound.bound)) * (1 + 1e-9)

    less, more = problem.steps, problem.more
    ways = ((less, noise(less)), (more, noise(more)), (more, noise(less)))
    found = [
        [descend(problem, bound, sigma, steps, seed) for seed in range(runs)]
        for steps, sigma in ways
    ]
    return [(statistics.fmean(way), statistics.stdev(way)) for way in found]


def table(name: str, *, quick: bool) -> Iterator[str]:
    """Yield the lines of one data set's table, each when it is complete."""
    problem = PROBLEMS[name](quick=quick)
    runs = 2 if quick else problem.runs
    yield (
        f"{name}: {problem.people} people, {runs} seeds, clip {problem.clip}, "
        f"{problem.steps} and {problem.more} steps, rate {problem.rate:g}; percent"
    )
    yield f"epsilon | {' | '.join(WAYS)} | paper: without, with filtering"
    for epsilon in EPSILONS:
        found = accuracies(problem, epsilon, runs)
        shown = [f"{100 * mean:.2f} +- {100 * spread:.2f}" for mean, spread in found]
        published = PUBLISHED[name.partition("-")[0], epsilon]
        yield " | ".join((epsilon, *shown, *published))


def show(name: str, *, quick: bool) -> None:
    """Print the table of one data set."""
    began = time.monotonic()
    for line in table(name, quick=quick):
        print(line, flush=True)
    print(f"{time.monotonic() - began:.0f} seconds")
