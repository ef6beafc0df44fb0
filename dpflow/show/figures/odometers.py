"""All odometers over the same steps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dpflow.accounting import ODOMETERS, make_odometer
from dpflow.accounting.costs.notions import PureDP
from dpflow.exceptions import require
from dpflow.rounding import Number, exact
from dpflow.show.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIZE = (9.0, 5.2)
_MOST_STEPS = 10_000


def readings(
    *, epsilon: Number, delta: Number, halt_at_epsilon: Number, steps: int
) -> dict[str, list[float]]:
    """Return the readings of each odometer after each of some (epsilon, 0)-DP steps.

    Args:
        epsilon: Of each step.
        delta: Probability with which a reading may fail.
        halt_at_epsilon: Reading that the odometers' constants are tuned for.
        steps: Number of steps.
    """
    result = {}
    for name in sorted(ODOMETERS):
        odometer = make_odometer(name, delta=delta, halt_at_epsilon=halt_at_epsilon)
        price = odometer.price(PureDP(epsilon=epsilon))
        result[name] = [odometer.read(price.times(n)) for n in range(1, steps + 1)]
    return result


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
    msg = f"steps must be from 2 to {_MOST_STEPS}, got {steps}"
    require(1 < steps <= _MOST_STEPS, msg)
    right = readings(
        epsilon=epsilon, delta=delta, halt_at_epsilon=halt_at_epsilon, steps=steps
    )
    size = style.number(exact(epsilon, name="epsilon"))
    small = style.number(exact(delta, name="delta"))
    what = f"{steps} steps of ({size}, 0)-DP"
    title = f"Odometers over {what}, at delta {small}"
    figure, axes = style.new_figure(title, "epsilon lost at most (log scale)", _SIZE)
    axes.set_xlabel("steps", color=style.TEXT)
    ranked = sorted(right.items(), key=lambda item: -item[1][-1])
    for number, (name, values) in enumerate(ranked):
        look = {**style.look(number), "label": f"{name}  {values[-1]:.2f}"}
        axes.plot(range(1, steps + 1), values, linewidth=1.8, **look)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_yticks([0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50])
    axes.minorticks_off()
    finite = [v for _, values in ranked for v in values if 0 < v < math.inf]
    axes.set_ylim(min(finite) * 0.9, max(finite) * 1.15)
    axes.set_xlim(0, steps)
    style.legend(axes, title=f"epsilon after {steps} steps", title_fontsize=9)
    ends = ", ".join(f"{name} {values[-1]:.2f}" for name, values in ranked[::-1])
    figure.set_label(
        f"Epsilon lost at most after {what}, at delta {small}, by odometer: {ends}."
    )
    return figure
