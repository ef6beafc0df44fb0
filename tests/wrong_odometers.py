"""Published odometers that are wrong: controls for the right ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction

from dpflow import Cost, PureDP
from dpflow.accounting import make_odometer
from dpflow.rounding import Number, exact, from_units

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
    """Return the windows of RDP filters, converted at the number that was read.

    Source: Feldman, Zrnic 2021 (arXiv 2008.11193) Alg. 2 and Cor. 2.3; a number of
    windows that is read out was not fixed in advance
    (docs/derivations/individual.md#windows).
    """
    odometer = make_odometer("rdp", delta=delta, halt_at_epsilon=halt)
    order = float(exact(odometer.parameters()["order"], name="order"))
    each = from_units(odometer.price(step).amounts[0])
    size = each * max(1, steps // _WINDOWS)
    extra = math.log(1 / float(exact(delta, name="delta"))) / (order - 1)
    return [
        float(windows_divergence([each] * count, window=size)) + extra
        for count in range(1, steps + 1)
    ]


def windows_divergence(costs: Iterable[Number], *, window: Number) -> Fraction:
    """Return k * window of the same odometer of one person, exactly.

    A new window starts with the step that would overfill the one before. The number of
    windows must be fixed in advance.
    """
    size, windows, used = Fraction(window), 1, Fraction(0)
    for cost in costs:
        used += Fraction(cost)
        if used > size:
            windows, used = windows + 1, Fraction(cost)
    return windows * size


def wrong_readings(
    epsilon: Number, delta: Number, halt: Number, steps: int
) -> Mapping[str, list[float]]:
    """Return the readings of the wrong odometers after each (epsilon, 0) step."""
    each, tail = (
        float(exact(epsilon, name="epsilon")),
        float(exact(delta, name="delta")),
    )
    rules: dict[str, Callable[[float, float, int], list[float]]] = {
        "poster's mixture (no drift)": mixture_without_drift,
        "poster's stitched (no drift)": stitched_without_drift,
        "advanced composition": advanced,
    }
    readings = {name: rule(each, tail, steps) for name, rule in rules.items()}
    step = PureDP(epsilon=epsilon)
    return {**readings, "Feldman-Zrnic windows": windows(step, delta, halt, steps)}
