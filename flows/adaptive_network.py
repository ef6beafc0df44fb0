# ---
# title: Adaptive noise and batches in the training of a network
# description: Adaptive noise and batches on Fashion-MNIST, compared with fixed ones.
# dependencies: the extra `examples` of dpflow, Debian's dataset-fashion-mnist
# run: python flows/adaptive_network.py [--quick] [--seeds 0 1 2 3 4]
# ---
"""Train a network on a fixed budget, with noise or batches that follow progress.

The experiment of Lecuyer 2021, Fig. 1, on a smaller network and smaller images. The
budget is that of 100 epochs of DP-SGD with noise 1 and batches of 512. Every ten
epochs a noisy count estimates the number of correct training images. After significant
progress the next epochs are cheaper: 0.1 more noise, or a batch smaller by 128 (at
least 256), while 50 epochs would still fit. Without progress they are more expensive,
up to the cost of the fixed schedule. The counts are charged to the same budget.

The comparison has a schedule that the paper omits: a fixed one with a well-chosen
noise. It needs no count, but its noise must be chosen in advance.

The images are public, so no budget is spent, and the noise is numpy's. The filter
`rdp` decides the steps of each schedule nevertheless.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpflow import Cost, EarlyStopping, Gaussian, PoissonSampledGaussian
from flows import mnist
from flows.network import HIDDEN, Labels, Network, Rehearsal, Singles, with_ones
from flows.rounds import Course, Round, Share, Strategy, train

PEOPLE = 60_000
BATCH, LEAST_BATCH, FEWER = 512, 256, 128
NOISE, MORE_NOISE = Fraction(1), Fraction(1, 10)
NORM, RATE = 1.0, 0.05
COUNT = Gaussian(sensitivity=1, sigma=100)
#: The least with two digits that admits 100 epochs of noise 1 and batches of 512.
SHARE = Share("rdp", "6.2", "1e-5", "8")
EVERY, ROOM = 10, 50
#: Epochs of a quick run: two counts, and one epoch by each of what they decided.
QUICK = 2 * EVERY + 1


@dataclass(frozen=True, slots=True)
class Setting:
    """Noise, batch size and people of an epoch of DP-SGD; public."""

    noise: Fraction
    batch: int
    people: int

    @property
    def steps(self) -> int:
        """How many steps an epoch has."""
        return self.people // self.batch

    @property
    def cost(self) -> Cost:
        """What an epoch costs."""
        rate = Fraction(self.batch, self.people)
        step = PoissonSampledGaussian(sampling_rate=rate, noise_multiplier=self.noise)
        return EarlyStopping(step, stops=(self.steps,))


def noisier(notch: int, people: int = PEOPLE) -> Setting:
    """Return an epoch with more noise at each notch."""
    return Setting(NOISE + notch * MORE_NOISE, BATCH, people)


def smaller(notch: int, people: int = PEOPLE) -> Setting:
    """Return an epoch with a smaller batch at each notch."""
    return Setting(NOISE, max(LEAST_BATCH, BATCH - notch * FEWER), people)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A strategy, and what its notches are."""

    strategy: Strategy
    setting: Callable[[int, int], Setting]


SCHEDULES = (
    Schedule(Strategy("fixed 1"), noisier),
    Schedule(Strategy("adaptive noise", saves=True, spends=True), noisier),
    Schedule(
        Strategy(
            "adaptive batch",
            saves=True,
            spends=True,
            most=(BATCH - LEAST_BATCH) // FEWER,
        ),
        smaller,
    ),
    Schedule(Strategy("fixed 1.4", first=4), noisier),
)


def course(schedule: Schedule, people: int, most: int | None = None) -> Course:
    """Return what is public of a training by a schedule."""

    @functools.cache
    def cost(notch: int) -> Cost:
        return schedule.setting(notch, people).cost

    return Course(people, SHARE, cost, COUNT, ROOM, EVERY, most)


def clothes(people: int) -> tuple[Singles, Labels]:
    """Return images to train on, with ones behind them for the biases."""
    rows, kinds = mnist.train(mnist.pixels, mnist.FASHION)
    return with_ones(rows[:people]), kinds[:people]


def simulated(
    schedule: Schedule, seed: int, rehearsal: Rehearsal, most: int | None = None
) -> list[Round]:
    """Train outside of any budget, which only public data may, with numpy's noise."""
    generator = np.random.Generator(np.random.SFC64(seed))
    people = len(rehearsal.rows)

    def epoch(_: int, notch: int, weights: Singles) -> Singles:
        setting = schedule.setting(notch, people)
        noise = float(setting.noise)
        for _step in range(setting.steps):
            weights = rehearsal.step(
                weights, generator, noise=noise, batch=setting.batch
            )
        return weights

    def count(_: int, weights: Singles) -> int:
        true = rehearsal.network.right(weights, rehearsal.rows, rehearsal.labels)
        return round(generator.normal(true, float(COUNT.sigma)))

    planned = course(schedule, people, most)
    return train(
        schedule.strategy, planned, rehearsal.network.start(seed), epoch, count
    )


def study(
    people: int, seeds: Sequence[int], most: int | None = None
) -> Iterator[tuple[str, int, list[Round], float]]:
    """Yield each run: its schedule's name, seed, rounds and accuracy on test images."""
    rows, kinds = clothes(people)
    network = Network(rows.shape[1] - 1, HIDDEN, mnist.DIGITS)
    rehearsal = Rehearsal(network, rows, kinds, NORM, RATE)
    images, true = mnist.test(mnist.pixels, mnist.FASHION)
    others = with_ones(images)
    for seed in seeds:
        for each in SCHEDULES:
            rounds = simulated(each, seed, rehearsal, most)
            right = network.right(rounds[-1].weights, others, true)
            yield each.strategy.name, seed, rounds, right / len(true)


def told(name: str, seed: int, rounds: Sequence[Round], right: float) -> str:
    """Return a line on a run; the notches are those of every tenth epoch."""
    notches = " ".join(str(each.notch) for each in rounds[::EVERY])
    return (
        f"{seed} | {name:14} | {100 * right:.2f} | {len(rounds)} epochs | "
        f"{rounds[-1].used:.1%} | notches {notches}"
    )


def main() -> None:
    """Run the study, a line for each run."""
    parser = argparse.ArgumentParser(description="Noise and batches that follow.")
    parser.add_argument("--quick", action="store_true", help="one seed, few epochs")
    parser.add_argument("--seeds", type=int, nargs="+", default=range(5))
    options = parser.parse_args()
    seeds, most = options.seeds, None
    if options.quick:
        seeds, most = options.seeds[:1], QUICK
    print(
        "seed | schedule | right on test images, % | epochs | of the budget | notches"
    )
    for run in study(PEOPLE, seeds, most):
        print(told(*run), f"{time.process_time():.0f} s", sep=" | ", flush=True)


if __name__ == "__main__":
    main()
