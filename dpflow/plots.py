"""Figures. They are returned, never shown; matplotlib is the extra `dpflow[plots]`."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING

from dpflow.exceptions import ConfigurationError
from dpflow.ledger.views import usage
from dpflow.project import current_project

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIZE = (8.0, 4.2)
_LINE, _REFUSED, _GRID, _TEXT = "#1f5fa8", "#b3261e", "#d9d9d9", "#262626"
_LABELS = 12


def burn_down(dataset: str) -> Figure:
    """Draw how the budget of a dataset was used up, charge by charge.

    The shaded part is what is used, the dotted lines are the policy's alerts, and
    crosses mark refusals. Only settled and reserved charges are drawn: no private
    value, and no released one.

    Args:
        dataset: Name of the dataset, in the current project.

    Returns:
        A matplotlib figure of 8 by 4.2 inches.

    Raises:
        ConfigurationError: If matplotlib is missing or nothing was charged yet.
        UnknownDataset: If no policy governs the dataset.
    """
    figure_class = _figure_class()
    project = current_project()
    policy = project.policies.policy_for(dataset)
    points = usage(project.ledger, dataset)
    if not points:
        msg = (
            f"nothing was charged to dataset {dataset!r} yet, so there is no burn-down"
        )
        raise ConfigurationError(msg)
    moves = [point for point in points if point.kind != "refuse"]
    figure: Figure = figure_class(figsize=_SIZE, layout="constrained")
    axes = figure.subplots()
    shares = [0.0, *(100 * point.used_fraction for point in moves)]
    axes.step(range(len(shares)), shares, where="post", color=_LINE, linewidth=1.8)
    axes.fill_between(
        range(len(shares)), shares, step="post", color=_LINE, alpha=0.15, linewidth=0
    )
    for alert in policy.alerts:
        height = 100 * float(alert)
        axes.axhline(height, color=_TEXT, linewidth=0.8, linestyle=":")
        axes.annotate(
            f"alert {height:g} %", (0, height), (4, -11), textcoords="offset points"
        )
    axes.axhline(100, color=_REFUSED, linewidth=1.2)
    refusals = [point for point in points if point.kind == "refuse"]
    if refusals:
        places = [sum(move.seq < point.seq for move in moves) for point in refusals]
        heights = [100 * point.used_fraction for point in refusals]
        label = f"{len(refusals)} refused"
        axes.plot(places, heights, "x", color=_REFUSED, markersize=9, label=label)
        axes.legend(loc="lower right", frameon=False)
    keys = [""] + [(point.release_key or point.step or point.kind) for point in moves]
    ticks = range(0, len(keys), max(1, len(keys) // _LABELS))
    labels = [keys[tick].rsplit("/", 1)[-1] for tick in ticks]
    axes.set_xticks(list(ticks), labels, rotation=45, ha="right")
    axes.set_ylim(0, 112)
    axes.set_xlim(0, max(len(shares) - 1, 1) * 1.02)
    axes.set_ylabel("budget used, %")
    axes.grid(axis="y", color=_GRID, linewidth=0.5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    budget = policy.budget
    axes.set_title(
        f"{dataset}: epsilon {float(budget.epsilon):g} at delta "
        f"{float(budget.delta):g}, "
        f"{policy.filter.theorem} filter",
        loc="left",
        color=_TEXT,
    )
    return figure


def data_uri(figure: Figure, *, dpi: int = 110) -> str:
    """Return a figure as a PNG inside a `data:` address, for pages and artifacts."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, facecolor="white")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _figure_class() -> type[Figure]:
    try:
        # The class itself: no window system, no global state of pyplot.
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError:
        msg = "figures need matplotlib: pip install 'dpflow[plots]'"
        raise ConfigurationError(msg) from None
    return Figure
