"""All odometers over the same steps, with the published ones that are wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from dpflow.accounting import ODOMETERS, make_odometer
from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.notions import PureDP
from dpflow.accounting.rules.individual import windows_divergence
from dpflow.exceptions import ConfigurationError
from dpflow.rounding import Number, exact, from_units
from dpflow.show.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIZE = (9.0, 5.2)
_MOST_STEPS = 10_000
_MARKS = ("x", "+", "1", "2")


def readings(
    *, epsilon: Number, delta: Number, halt_at_epsilon: Number, steps: int
) -> dict[str, list[float]]:
    """Return what each odometer reads after each of so many (epsilon, 0)-DP steps.

    Odometers that read the same, as one for every person and one for all do here,
    share a name.

    Args:
        epsilon: Of each step.
        delta: Probability with which a reading may fail.
        halt_at_epsilon: Reading that the odometers' constants are tuned for.
        steps: How many.
    """
    step = PureDP(epsilon=epsilon)
    names: dict[tuple[float, ...], list[str]] = {}
    for name in sorted(ODOMETERS):
        odometer = make_odometer(name, delta=delta, halt_at_epsilon=halt_at_epsilon)
        price = odometer.price(step)
        found = tuple(odometer.read(price.times(n)) for n in range(1, steps + 1))
        names.setdefault(found, []).append(name)
    return {", ".join(same): list(found) for found, same in names.items()}


def compare_odometers(
    *,
    steps: int = 100,
    epsilon: Number = "0.1",
    delta: Number = "1e-6",
    halt_at_epsilon: Number = 5,
) -> Figure:
    """Draw what every odometer reads over the same steps.

    With the defaults it is the figure of the poster of Whitehouse, Ramdas, Rogers, Wu:
    100 steps of (0.1, 0)-DP. Grey lines with marks are published and wrong as
    odometers; no policy can name them.

    Args:
        steps: How many.
        epsilon: Of each step.
        delta: Probability with which a reading may fail.
        halt_at_epsilon: Reading that the odometers' constants are tuned for.

    Returns:
        A matplotlib figure of 9 by 5.2 inches.

    Raises:
        ConfigurationError: If matplotlib is missing, or the number of steps is not one
            to draw.
        InvalidCost: If an epsilon or a delta cannot be used.
    """
    if not 1 < steps <= _MOST_STEPS:
        msg = f"steps must be from 2 to {_MOST_STEPS}, got {steps}"
        raise ConfigurationError(msg)
    figure = style.new_figure(_SIZE)
    right = readings(
        epsilon=epsilon, delta=delta, halt_at_epsilon=halt_at_epsilon, steps=steps
    )
    wrong = wrong_readings(epsilon, delta, halt_at_epsilon, steps)
    each = style.number(exact(epsilon, name="epsilon"))
    small = style.number(exact(delta, name="delta"))
    axes = style.new_axes(
        figure,
        title=f"Odometers over {steps} steps of ({each}, 0)-DP, at delta {small}",
        x="steps",
        y="epsilon lost at most (log scale)",
    )
    numbers = range(1, steps + 1)
    handles, labels = [], []
    ranked = sorted(right.items(), key=lambda item: -item[1][-1])
    for number, (name, found) in enumerate(ranked):
        look = {"color": style.colour(number), "linestyle": style.dash(number)}
        handles += axes.plot(numbers, found, linewidth=1.8, **look)
        labels.append(f"{name}  {found[-1]:.2f}")
    for number, (name, found) in enumerate(wrong.items()):
        look = {"color": style.WRONG, "marker": _MARKS[number % len(_MARKS)]}
        every = max(1, steps // 12)
        handles += axes.plot(
            numbers, found, linewidth=0.8, markevery=every, markersize=6, **look
        )
        labels.append(f"WRONG {name}  {found[-1]:.2f}")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_yticks([0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50])
    axes.minorticks_off()
    axes.set_ylim(*_limits(right, wrong))
    axes.set_xlim(0, steps)
    style.legend(axes, handles, labels)
    axes.get_legend().set_title(f"epsilon after {steps} steps", {"size": 9})
    sentence = _sentence(ranked, wrong, f"{steps} steps of ({each}, 0)-DP", small)
    return style.describe(figure, sentence)


def _limits(*groups: Mapping[str, list[float]]) -> tuple[float, float]:
    found = [
        value
        for group in groups
        for values in group.values()
        for value in values
        if 0 < value < math.inf
    ]
    return min(found) * 0.9, max(found) * 1.15


def _sentence(
    ranked: list[tuple[str, list[float]]],
    wrong: Mapping[str, list[float]],
    what: str,
    delta: str,
) -> str:
    valid = ", ".join(f"{name} {found[-1]:.2f}" for name, found in reversed(ranked))
    bad = ", ".join(f"{name} {found[-1]:.2f}" for name, found in wrong.items())
    return (
        f"Epsilon lost at most after {what}, at delta {delta}, by odometer: {valid}. "
        f"Published, but wrong as odometers: {bad}."
    )


#: So many windows for all steps of a comparison.
_WINDOWS = 10


def mixture_without_drift(epsilon: float, delta: float, steps: int) -> list[float]:
    """Return the mixture odometer as a poster shows it: without the drift V/2; rho = 1.

    Source: poster of Whitehouse, Ramdas, Rogers, Wu; what is wrong with it is in
    docs/derivations/time-uniform.md#lost-drift.
    """
    spreads = [n * epsilon**2 + 1 for n in range(1, steps + 1)]
    return [math.sqrt(2 * v * math.log1p(math.sqrt(v) / (2 * delta))) for v in spreads]


def stitched_without_drift(epsilon: float, delta: float, steps: int) -> list[float]:
    """Return the stitched odometer as a poster shows it: without V/2; v0 = epsilon**2.

    Source: poster of Whitehouse, Ramdas, Rogers, Wu; what is wrong with it is in
    docs/derivations/time-uniform.md#lost-drift.
    """
    tail = 0.72 * math.log(5.2 / delta)
    return [
        1.7 * epsilon * math.sqrt(n * (math.log(math.log(2 * n)) + tail))
        for n in range(1, steps + 1)
    ]


def advanced(epsilon: float, delta: float, steps: int) -> list[float]:
    """Return advanced composition, read after every step as if it were an odometer.

    Source: Dwork, Rothblum, Vadhan 2010, with the drift epsilon**2 / 2; it holds for a
    number of steps fixed in advance (docs/derivations/fixed.md).
    """
    log = math.log(1 / delta)
    return [
        n * epsilon**2 / 2 + epsilon * math.sqrt(2 * n * log)
        for n in range(1, steps + 1)
    ]


def windows(step: Cost, delta: Number, halt: Number, steps: int) -> list[float]:
    """Return the windows of Renyi filters, converted at the number that was read.

    Source: Feldman, Zrnic 2021 (arXiv 2008.11193) Alg. 2 and Cor. 2.3; a number of
    windows that is read out was not fixed in advance
    (docs/derivations/individual.md#windows).
    """
    odometer = make_odometer("renyi", delta=delta, halt_at_epsilon=halt)
    order = float(exact(odometer.parameters()["order"], name="order"))
    each = from_units(odometer.price(step).amounts[0])
    size = each * max(1, steps // _WINDOWS)
    extra = math.log(1 / float(exact(delta, name="delta"))) / (order - 1)
    return [
        float(windows_divergence([each] * count, window=size)) + extra
        for count in range(1, steps + 1)
    ]


def wrong_readings(
    epsilon: Number, delta: Number, halt: Number, steps: int
) -> Mapping[str, list[float]]:
    """Return what the wrong odometers read after each of so many (epsilon, 0) steps."""
    each, tail = (
        float(exact(epsilon, name="epsilon")),
        float(exact(delta, name="delta")),
    )
    rules: dict[str, Callable[[float, float, int], list[float]]] = {
        "poster's mixture (no drift)": mixture_without_drift,
        "poster's stitched (no drift)": stitched_without_drift,
        "advanced composition": advanced,
    }
    found = {name: rule(each, tail, steps) for name, rule in rules.items()}
    step = PureDP(epsilon=epsilon)
    return {**found, "Feldman-Zrnic windows": windows(step, delta, halt, steps)}
