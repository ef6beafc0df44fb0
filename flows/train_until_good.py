# ---
# title: Train until the model is good, and spend the rest on a report
# description: Private gradient descent with early stopping by a private test.
# dependencies: the extra `examples` of dpflow
# run: python flows/train_until_good.py
# ---
"""Stop training by a private test; the saved budget pays for a report.

Gradient descent on Adult, with noise on every gradient. After every ten steps a noisy
test on other people may end it. The price of all hundred steps is reserved, and the
number of executed steps is the cell of the output: the filter `output-dp` charges this
stop alone (Lemma 11 of Hartmann, Bindschaedler, Bentkamp and West 2022). Each stop has
an epsilon by an accountant for fixed sequences, here by Rényi divergences, because
only the number of the steps is open; delta is spent on all stops.

The remaining epsilon pays for the noise of a histogram. The table compares the noise
with cells, which refund the steps that did not run, and without.

Code walkthrough:

1. `STEP` and `TEST` are the two parts of a sub-step, each with a sensitivity.
2. `fit` descends; `good_enough` tests with declared noise.
3. `high_earners` costs the remaining budget, a function of the released number of
   steps.
4. `table` shows the remaining budget without cells.
5. `under_filters` shows the remaining budget under adaptive filters, which charge the
   executed steps and have no cells.
"""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from prefect import task
from scipy import special  # type: ignore[import-untyped]

from dpflow import Composed, EarlyStopping, Gaussian, Laplace, dp_flow, dp_task, release
from dpflow.accounting import make_filter
from dpflow.mechanisms import gradient_descent
from flows import adult, start

REPORTS = Path("reports")
PEOPLE = 48_842
TRAIN = PEOPLE * 7 // 10

# Under replace-one, one gradient clipped to 1/2 takes the place of another.
NORM = Fraction(1, 2)
STEP = Gaussian(sensitivity=2 * NORM, noise_multiplier=40)
# The number of correct answers for the other people: each person counts once.
TEST = Gaussian(sensitivity=1, sigma=44)
STOPS = tuple(range(10, 101, 10))
# The policy's share of epsilon, and its whole delta.
BUDGET, DELTA = Fraction(3), "1e-5"
FIT = EarlyStopping(Composed(STEP, TEST), stops=STOPS, accountant="rdp", delta=DELTA)
# Without cells there is one stop, and all of delta is for it.
WHOLE = EarlyStopping(
    Composed(STEP, TEST), stops=STOPS[-1:], accountant="rdp", delta=DELTA
)
GOOD = 0.825
RATE = 16.0

AGES = (25, 35, 45, 55, 65)
AGE_LABELS = ("under 25", "25-34", "35-44", "45-54", "55-64", "65 and over")


@dp_task(dataset="adult", cost=FIT, load=adult.people, release_key="weights/{good}")
def fit(people: adult.People, good: float) -> dict[str, Any]:
    """Release a model that is good enough, or the last one, and how long it took."""
    features, labels = people
    x, y = features[:TRAIN], np.where(labels[:TRAIN], 1.0, -1.0)
    others, true = features[TRAIN:], labels[TRAIN:]
    steps = 0

    def gradients(weights: adult.Floats) -> adult.Floats:
        nonlocal steps
        steps += 1
        pull = special.expit(-(x @ weights) * y) * y
        return np.asarray(-pull[:, None] * x, np.float64)

    def good_enough(step: Any, weights: adult.Floats) -> bool:
        right = int(((others @ weights > 0) == true).sum())
        passed: bool = step.test(right, at_least=good * len(true), cost=TEST)
        return passed

    weights = gradient_descent(
        np.zeros(x.shape[1]),
        gradients,
        norm=NORM,
        rate=RATE / TRAIN,
        good_enough=good_enough,
    )
    return {"weights": weights.tolist(), "steps": steps}


def price(steps: int) -> Fraction:
    """Return the epsilon of the stop at or after a number of steps."""
    prices = zip(STOPS, FIT.epsilons(), strict=True)
    return next(epsilon for stop, epsilon in prices if stop >= steps)


def rest(spent: Fraction) -> Fraction:
    """Return the remaining epsilon, rounded down: prices are rounded up."""
    return Fraction(math.floor((BUDGET - spent) * 10**9), 10**9)


def earners_by_age() -> list[int]:
    """Count how many earn more than 50,000 dollars, by age: private."""
    counts: list[int] = adult.high_earners(AGES).tolist()
    return counts


# A person who is replaced leaves one bar and joins another: L1 sensitivity 2.
@dp_task(
    dataset="adult",
    cost=lambda steps: Laplace(sensitivity=2, epsilon=rest(price(steps))),
    load=earners_by_age,
    release_key="high-earners/{steps}",
    length=len(AGE_LABELS),
)
def high_earners(counts: list[int], steps: int) -> list[int]:  # noqa: ARG001 (the cost reads it)
    """Release how many earn more than 50,000 dollars, by age."""
    return release(counts, as_int=True)


@dp_flow(name="train-until-good")
def train_until_good(good: float = GOOD) -> dict[str, Any]:
    """Release a model, then a histogram with the remaining budget."""
    model = fit(good)
    counts = high_earners(model["steps"])
    return {**model, "high_earners": dict(zip(AGE_LABELS, counts, strict=True))}


def table(steps: int) -> list[tuple[str, float, float, float]]:
    """Return rows of (kind of charge, training, remaining, scale of the noise)."""
    rows = []
    (whole,) = WHOLE.epsilons()
    for name, spent in (("with cells", price(steps)), ("without cells", whole)):
        left = rest(spent)
        rows.append((name, float(spent), float(left), float(2 / left)))
    return rows


def under_filters(steps: int) -> list[tuple[str, float, float]]:
    """Return rows of (filter, remaining epsilon, scale of the noise), without cells.

    The remaining epsilon is the largest, to three places, of which the filter admits
    the histogram after the steps that ran, within the same (epsilon, delta).
    """
    rows = []
    for theorem in ("rdp", "auto", "zcdp", "gdp"):
        rule = make_filter(theorem, epsilon=BUDGET, delta=DELTA)
        spent = rule.price(FIT.realised(steps))
        # Thousandths of epsilon: none fits, and BUDGET is too much.
        fits, too_many = 0, math.floor(BUDGET * 1000)
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            cost = Laplace(sensitivity=2, epsilon=Fraction(middle, 1000))
            admitted = rule.admits(spent + rule.price(cost))
            fits, too_many = (middle, too_many) if admitted else (fits, middle)
        left = fits / 1000
        rows.append((theorem, left, 2 / left if fits else math.inf))
    return rows


@task
def draw(steps: int) -> Path:
    """Draw the price of each stop, and where this run ended."""
    from matplotlib.figure import Figure  # noqa: PLC0415 (slow to import)

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes: Any = figure.subplots()
    prices = [float(epsilon) for epsilon in FIT.epsilons()]
    axes.step((0, *STOPS), prices[:1] + prices, where="pre", label="charged with cells")
    axes.axhline(
        float(WHOLE.epsilons()[0]),
        color="tab:red",
        ls="--",
        label="charged without cells",
    )
    axes.plot(steps, float(price(steps)), "o", color="tab:green", label="this run")
    axes.axhline(float(BUDGET), color="0.7", label="budget of the flow")
    axes.set(xlabel="steps of gradient descent", ylabel="epsilon", ylim=(0, None))
    axes.legend(frameon=False)
    REPORTS.mkdir(exist_ok=True)
    path = REPORTS / "train-until-good.png"
    figure.savefig(path, dpi=150, facecolor="white")
    return path


def main() -> None:
    """Run the flow, print the table, draw the prices."""
    start.make_first_ledger()
    report = train_until_good()
    features, labels = adult.people()
    right = (features[TRAIN:] @ np.array(report["weights"]) > 0) == labels[TRAIN:]
    print(f"stopped after {report['steps']} of {STOPS[-1]} steps")
    print(f"right for {right.mean():.4f} of the others (public here)")
    print("charged           training  left   noise of each bar (scale)")
    for name, spent, left, scale in table(report["steps"]):
        print(f"{name:16} {spent:9.3f} {left:6.3f} {scale:8.3f}")
    print("filters that charge the steps that ran: left, scale")
    for name, left, scale in under_filters(report["steps"]):
        print(f"{name:16} {left:16.3f} {scale:8.3f}")
    for label, count in report["high_earners"].items():
        print(f"  {label:12} {count:6}")
    print(f"drawn in {draw.fn(report['steps'])}")


if __name__ == "__main__":
    main()
