"""How much epsilon a number of runs needs, against their noise, for each theorem."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dpflow.accounting import FILTERS, make_filter
from dpflow.accounting.costs.base import Cost, cost_from_description
from dpflow.accounting.rules.rule import Filter
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import ConfigurationError, DpflowError
from dpflow.rounding import Number, exact
from dpflow.show.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: What says how much noise a cost has, and the width of its 95 % interval in it.
_NOISE = {"sigma": 1.96, "scale": 2.996, "noise_multiplier": 1.96}
#: Filters that need more than a budget, or that are for comparison only.
_ASIDE = {"individual", "plan", "output", "rogers"}
_EPSILONS = ("0.1", "0.2", "0.3", "0.5", "0.7", "1", "1.5", "2", "3", "5", "7", "10")
_DOUBLINGS, _HALVINGS = 60, 24
_MOST_RUNS = 10**9


def noise_of(cost: Cost) -> str:
    """Return the name of the parameter that says how much noise a cost has.

    Raises:
        ConfigurationError: If it has none that could be varied.
    """
    for name in _NOISE:
        if name in cost.describe():
            return name
    msg = (
        f"{cost!r} has no noise to vary; take one with a sigma, scale or noise "
        "multiplier, such as Gaussian(sensitivity=1, sigma=20)"
    )
    raise ConfigurationError(msg)


def with_noise(cost: Cost, noise: float) -> Cost:
    """Return a cost with another amount of noise."""
    name = noise_of(cost)
    return cost_from_description({**cost.describe(), name: f"{noise:.10g}"})


def least_noise(rule: Filter, cost: Cost, runs: int) -> float | None:
    """Return the least noise with which a filter admits so many runs.

    Args:
        rule: The filter.
        cost: What one run does; its noise is replaced.
        runs: How many.

    Returns:
        The noise, found to a part in a million, or None if the filter has no price for
        the cost, or no amount of noise is enough.
    """

    def admits(noise: float) -> bool:
        try:
            price = rule.price(with_noise(cost, noise))
        except DpflowError:
            return False
        return rule.admits(Tally(tuple(runs * amount for amount in price.amounts)))

    high = float(exact(cost.describe()[noise_of(cost)], name="noise"))
    for _ in range(_DOUBLINGS):
        if admits(high):
            break
        high *= 2
    else:
        return None
    low = high
    for _ in range(_DOUBLINGS):
        low /= 2
        if not admits(low):
            break
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if admits(middle) else (middle, high)
    return high


def epsilon_against_noise(
    cost: Cost,
    *,
    runs: int,
    delta: Number = "1e-6",
    theorems: Sequence[str] | None = None,
) -> Figure:
    """Draw which budget admits so many runs of a step, against its noise.

    Args:
        cost: What one run does; its noise is varied.
        runs: How many runs the budget is to admit.
        delta: The budget's delta.
        theorems: Names of filters. Default: all that price the cost and need a budget
            only.

    Returns:
        A matplotlib figure of 8 by 4.2 inches.

    Raises:
        ConfigurationError: If matplotlib is missing, the cost has no noise to vary, a
            name or number is wrong, or no theorem prices the cost.
    """
    name = noise_of(cost)
    if not 1 <= runs <= _MOST_RUNS:
        msg = f"runs must be from 1 to {_MOST_RUNS}, got {runs}"
        raise ConfigurationError(msg)
    wanted = sorted(set(FILTERS) - _ASIDE) if theorems is None else list(theorems)
    if unknown := set(wanted) - set(FILTERS):
        msg = (
            f"no filter is called {', '.join(sorted(unknown))}; take {sorted(FILTERS)}"
        )
        raise ConfigurationError(msg)
    figure = style.new_figure()
    curves = {theorem: _curve(theorem, cost, runs, delta) for theorem in wanted}
    curves = {theorem: found for theorem, found in curves.items() if found}
    if not curves:
        msg = f"none of {', '.join(wanted)} prices {cost!r} within these budgets"
        raise ConfigurationError(msg)
    small = style.number(exact(delta, name="delta"))
    times = _NOISE[name]
    of = "sensitivity" if name == "noise_multiplier" else "data"
    axes = style.new_axes(
        figure,
        title=f"{cost.mechanism}: budget for {runs:,} runs, at delta {small}",
        x=f"{name.replace('_', ' ')} (95 % of the noise lies within "
        f"\N{PLUS-MINUS SIGN}{times:g} times it, in units of the {of})",
        y="epsilon of the budget",
    )
    ranked = sorted(curves.items(), key=lambda item: -item[1][0][0])
    handles = []
    for number, (_, points) in enumerate(ranked):
        noises, epsilons = zip(*points, strict=True)
        look = {"color": style.colour(number), "linestyle": style.dash(number)}
        handles += axes.plot(noises, epsilons, linewidth=1.8, **look)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        _plain_ticks(axis)
    axes.grid(axis="x", color=style.GRID, linewidth=0.6)
    style.legend(axes, handles, [theorem for theorem, _ in ranked])
    return style.describe(figure, _sentence(cost, name, runs, small, ranked))


def _plain_ticks(axis: Any) -> None:
    """Label a logarithmic axis with plain numbers at 1, 2 and 5 of each decade."""
    from matplotlib.ticker import LogLocator, NullLocator  # noqa: PLC0415

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:,.6g}")


def _curve(
    theorem: str, cost: Cost, runs: int, delta: Number
) -> list[tuple[float, float]]:
    """Return (noise, epsilon) where the budget just admits the runs."""
    found = []
    for epsilon in _EPSILONS:
        try:
            rule = make_filter(theorem, epsilon=epsilon, delta=delta)
        except DpflowError:
            # No threshold at so small a budget, or an option that is missing.
            continue
        noise = least_noise(rule, cost, runs)
        if noise is not None:
            found.append((noise, float(epsilon)))
    return found


def _sentence(
    cost: Cost,
    name: str,
    runs: int,
    delta: str,
    ranked: list[tuple[str, list[tuple[float, float]]]],
) -> str:
    """Say what noise each theorem needs at the budget nearest to 1."""
    parts = []
    for theorem, points in reversed(ranked):
        noise, epsilon = min(points, key=lambda point: abs(point[1] - 1))
        parts.append(f"{theorem} {noise:.4g} at epsilon {epsilon:.3g}")
    return (
        f"Least {name.replace('_', ' ')} of {cost.mechanism} with which {runs:,} runs "
        f"fit a budget, at delta {delta}, by filter: {', '.join(parts)}."
    )
