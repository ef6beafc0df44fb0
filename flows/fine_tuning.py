# ---
# title: Fine-tune until the model is good enough
# description: Half of Fashion-MNIST is public; training on the rest ends at a goal.
# dependencies: the extra `examples` of dpflow, Debian's dataset-fashion-mnist
# run: python flows/fine_tuning.py [--quick] [--seeds 0 1 2 3 4]
# ---
"""Fine-tune a network with noise, and stop at a goal; the odometer reports the loss.

The experiment of Lecuyer 2021, Fig. 2, on smaller images. A network learns half of the
classes of clothes without privacy, as if they were public. Then it is fine-tuned on
the private images of the other half: the last layer only, or both layers. After each
epoch a noisy count estimates the number of correct images, and the goal ends the
training. The noise is 1 throughout, or starts at 2 and falls by 0.1 after each epoch
without significant progress.

The flow fine-tunes the last layer under the ledger, with OpenDP's noise: epochs and
counts are DP steps. `study` runs all four variants on public data, without a budget
and with numpy's noise.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

from dpflow import Cost, Gaussian, dp_flow, dp_task, release
from dpflow.mechanisms import gradient_descent
from flows import mnist, start
from flows.adaptive_network import Setting
from flows.network import HIDDEN, Labels, Network, Rehearsal, Singles, with_ones
from flows.rounds import Course, Round, Share, Strategy, train

KINDS = mnist.DIGITS // 2
PEOPLE = 30_000
BATCH, NORM, RATE = 512, 1, 0.05
COUNT = Gaussian(sensitivity=1, sigma=100)
#: What policies/fashion.yaml says.
SHARE = Share("rdp", "6", "1e-5", "6")
GOAL = 0.85
#: Epochs on the public half, and their learning rate.
PUBLIC_EPOCHS, PUBLIC_RATE = 5, 0.1
FIXED = Strategy("fixed", goal=GOAL)
ADAPTIVE = Strategy("adaptive", first=10, spends=True, goal=GOAL)
#: Noise never rises, so no round needs to fit beyond the next.
NO_ROOM = 1


def setting(noise: Fraction, people: int) -> Setting:
    """Return the parts of an epoch."""
    return Setting(noise, min(BATCH, people // 4), people)


def noise_at(notch: int) -> Fraction:
    """Return the noise multiplier at a notch of saving."""
    return 1 + Fraction(notch, 10)


def course(people: int, most: int | None = None) -> Course:
    """Return what is public of a fine-tuning."""

    @functools.cache
    def cost(notch: int) -> Cost:
        return setting(noise_at(notch), people).cost

    return Course(people, SHARE, cost, COUNT, NO_ROOM, most=most)


@functools.cache
def halves() -> tuple[tuple[Singles, Labels], tuple[Singles, Labels]]:
    """Return the images of the public kinds and of the private ones, counted from 0."""
    return _halves(*mnist.train(mnist.pixels, mnist.FASHION))


def private_images() -> tuple[Singles, Labels]:
    """Return the images of the private kinds, before a step is charged."""
    return halves()[1]


def _halves(
    rows: mnist.Floats, kinds: Labels
) -> tuple[tuple[Singles, Labels], tuple[Singles, Labels]]:
    public, images = kinds < KINDS, with_ones(rows)
    return (images[public], kinds[public]), (images[~public], kinds[~public] - KINDS)


@functools.cache
def pretrained(hidden: int, seed: int = 0) -> tuple[Network, Singles]:
    """Return a network that has learnt the public kinds, and no private one yet."""
    (rows, kinds), _ = halves()
    network = Network(rows.shape[1] - 1, hidden, KINDS)
    # Nothing here is private: no gradient is clipped and no noise is added.
    public = Rehearsal(network, rows, kinds, norm=1e9, rate=PUBLIC_RATE)
    weights, generator = network.start(seed), np.random.default_rng(seed)
    planned = setting(Fraction(1), len(rows))
    for _ in range(PUBLIC_EPOCHS * planned.steps):
        weights = public.step(weights, generator, noise=0, batch=planned.batch)
    weights[network.first :] = 0
    return network, weights


@dp_task(
    dataset="fashion",
    cost=lambda noise, people: setting(Fraction(noise), people).cost,
    load=private_images,
    release_key="last-layer/{strategy}/{people}/{hidden}/{number}",
    ignore=("noise", "weights"),
)
def descend(  # noqa: PLR0917 (a step's parameters name its release)
    images: tuple[Singles, Labels],
    strategy: str,  # noqa: ARG001 (the key reads it)
    people: int,
    hidden: int,
    number: int,  # noqa: ARG001 (the key reads it)
    noise: str,  # noqa: ARG001 (the cost reads it)
    weights: list[float],
) -> list[float]:
    """Release the last layer after an epoch."""
    network, frozen = pretrained(hidden)
    rows, kinds = images
    gradients = network.last_gradients(frozen, rows[:people], kinds[:people])
    rate = RATE / setting(Fraction(1), people).batch
    found = gradient_descent(np.array(weights), gradients, norm=NORM, rate=rate)
    values: list[float] = found.tolist()
    return values


@dp_task(
    dataset="fashion",
    cost=COUNT,
    load=private_images,
    release_key="count/{strategy}/{people}/{hidden}/{number}",
    ignore=("weights",),
)
def count(  # noqa: PLR0917 (a step's parameters name its release)
    images: tuple[Singles, Labels],
    strategy: str,  # noqa: ARG001 (the key reads it)
    people: int,
    hidden: int,
    number: int,  # noqa: ARG001 (the key reads it)
    weights: list[float],
) -> int:
    """Release how many of the private images a network gets right."""
    network, whole = _whole(hidden, weights)
    rows, kinds = images
    right = network.right(whole, rows[:people], kinds[:people])
    return release(right, as_int=True)


def _whole(hidden: int, last: Sequence[float]) -> tuple[Network, Singles]:
    network, frozen = pretrained(hidden)
    whole = frozen.copy()
    whole[network.first :] = last
    return network, whole


@dp_flow(name="fine-tuning")
def fine_tuning(
    people: int = PEOPLE, hidden: int = HIDDEN, most: int | None = None
) -> list[Round]:
    """Fine-tune the last layer until the goal, within the flow's share."""
    network, weights = pretrained(hidden)
    name = ADAPTIVE.name
    return train(
        ADAPTIVE,
        course(people, most),
        weights[network.first :].tolist(),
        lambda number, notch, last: descend(
            name, people, hidden, number, str(noise_at(notch)), last
        ),
        lambda number, last: count(name, people, hidden, number, last),
    )


def simulated(
    strategy: Strategy, *, last: bool, people: int, seed: int, most: int | None = None
) -> list[Round]:
    """Fine-tune outside of any budget, which only public data may."""
    network, weights = pretrained(HIDDEN, seed)
    _, (rows, kinds) = halves()
    frozen = network.first if last else 0
    private = Rehearsal(network, rows[:people], kinds[:people], NORM, RATE, frozen)
    generator = np.random.default_rng(seed)

    def epoch(_: int, notch: int, model: Singles) -> Singles:
        planned = setting(noise_at(notch), people)
        for _step in range(planned.steps):
            model = private.step(
                model, generator, noise=float(planned.noise), batch=planned.batch
            )
        return model

    def count_by(_: int, model: Singles) -> int:
        true = network.right(model, private.rows, private.labels)
        return round(generator.normal(true, float(COUNT.sigma)))

    return train(strategy, course(people, most), weights, epoch, count_by)


def study(
    people: int, seeds: Sequence[int], most: int | None = None
) -> Iterator[tuple[str, int, list[Round], float]]:
    """Yield each run: its name, the seed, the rounds and the test accuracy."""
    _, (others, true) = _halves(*mnist.test(mnist.pixels, mnist.FASHION))
    for seed in seeds:
        for last in (True, False):
            for strategy in (FIXED, ADAPTIVE):
                rounds = simulated(
                    strategy, last=last, people=people, seed=seed, most=most
                )
                network, _ = pretrained(HIDDEN, seed)
                right = network.right(rounds[-1].weights, others, true)
                name = f"{'last layer' if last else 'all layers'}, {strategy.name}"
                yield name, seed, rounds, right / len(true)


def told(name: str, seed: int, rounds: Sequence[Round], right: float) -> str:
    """Return a line on a run."""
    last = rounds[-1]
    return (
        f"{seed} | {name:20} | {len(rounds)} epochs | odometer {last.reading:.3f} | "
        f"{100 * right:.2f} | {last.used:.1%}"
    )


def main() -> None:
    """Run the study, a line for each run, then the flow."""
    parser = argparse.ArgumentParser(description="Fine-tune until a goal.")
    parser.add_argument("--quick", action="store_true", help="few images and epochs")
    parser.add_argument("--seeds", type=int, nargs="+", default=range(5))
    options = parser.parse_args()
    people, seeds, most = PEOPLE, options.seeds, None
    if options.quick:
        people, seeds, most = 5_000, options.seeds[:1], 3
    print("seed | way | epochs | odometer | right on test images, % | of the budget")
    for run in study(people, seeds, most):
        print(told(*run), f"{time.process_time():.0f} s", sep=" | ", flush=True)
    start.make_first_ledger()
    rounds = fine_tuning(people, HIDDEN, most)
    network, whole = _whole(HIDDEN, rounds[-1].weights)
    _, (others, true) = _halves(*mnist.test(mnist.pixels, mnist.FASHION))
    right = network.right(whole, others, true) / len(true)
    print("the flow, charged:", told("last layer, adaptive", 0, rounds, right))


if __name__ == "__main__":
    main()
