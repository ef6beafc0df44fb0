"""All odometers over the same steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dpflow.accounting import ODOMETERS, make_odometer
from dpflow.accounting.costs.notions import PureDP
from dpflow.exceptions import ConfigurationError
from dpflow.rounding import Number, exact
from dpflow.show.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIZE = (9.0, 5.2)
_MOST_STEPS = 10_000


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
    100 steps of (0.1, 0)-DP.

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
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_yticks([0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50])
    axes.minorticks_off()
    axes.set_ylim(*_limits(right))
    axes.set_xlim(0, steps)
    style.legend(axes, handles, labels)
    axes.get_legend().set_title(f"epsilon after {steps} steps", {"size": 9})
    sentence = _sentence(ranked, f"{steps} steps of ({each}, 0)-DP", small)
    return style.describe(figure, sentence)


def _limits(readings: Mapping[str, list[float]]) -> tuple[float, float]:
    found = [
        value
        for values in readings.values()
        for value in values
        if 0 < value < math.inf
    ]
    return min(found) * 0.9, max(found) * 1.15


def _sentence(
    ranked: list[tuple[str, list[float]]],
    what: str,
    delta: str,
) -> str:
    valid = ", ".join(f"{name} {found[-1]:.2f}" for name, found in reversed(ranked))
    return f"Epsilon lost at most after {what}, at delta {delta}, by odometer: {valid}."
