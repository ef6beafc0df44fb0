"""All odometers over the same steps."""

from __future__ import annotations

import math
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
    what = f"{steps} steps of ({each}, 0)-DP"
    title = f"Odometers over {what}, at delta {small}"
    lost = "epsilon lost at most (log scale)"
    axes = style.new_axes(figure, title=title, x="steps", y=lost)
    ranked = sorted(right.items(), key=lambda item: -item[1][-1])
    for number, (_, found) in enumerate(ranked):
        axes.plot(range(1, steps + 1), found, linewidth=1.8, **style.look(number))
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_yticks([0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50])
    axes.minorticks_off()
    values = [v for _, found in ranked for v in found if 0 < v < math.inf]
    axes.set_ylim(min(values) * 0.9, max(values) * 1.15)
    axes.set_xlim(0, steps)
    labels = [f"{name}  {found[-1]:.2f}" for name, found in ranked]
    style.legend(axes, axes.lines, labels)
    axes.get_legend().set_title(f"epsilon after {steps} steps", {"size": 9})
    valid = ", ".join(f"{name} {found[-1]:.2f}" for name, found in ranked[::-1])
    figure.set_label(
        f"Epsilon lost at most after {what}, at delta {small}, by odometer: {valid}."
    )
    return figure
