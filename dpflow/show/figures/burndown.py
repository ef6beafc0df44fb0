"""Remaining budget of a dataset, charge by charge or day by day."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, time
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

from dpflow.exceptions import ConfigurationError
from dpflow.forecast import BudgetLine, budget_line, outlooks
from dpflow.guard.project import current_project
from dpflow.ledger.views import accounts, refusals, usage
from dpflow.ledger.views.accounts import AccountView
from dpflow.ledger.views.entries import account_title, percent_text
from dpflow.ledger.views.reading import Source
from dpflow.ledger.views.spending import Usage, find_newest_entries
from dpflow.show.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_LINES, _MOST_POINTS, _MOST_LABELS = 6, 600, 12
#: Charges over a longer time are drawn over dates, in days.
_DATES_FROM = 2.0
#: A forecast takes at most this many times the room of the journal.
_HORIZON = 2.0
_WHOLE = 100.0
_ORDER = ("population", "dataset", "others", "flow", "partition", "odometer")


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnDown:
    """What the figure shows of a dataset.

    Attributes:
        budget: Its budget and theorem, for the title.
        lines: Title and points of each gate: accounts that have a budget, and
            odometers that halt.
        omitted: Further accounts that are not drawn.
        refused: Steps that its gates refused in the newest term.
        alerts: Shares of the budget at which the policy alerts.
        line: Forecast from the ledger's runs.
    """

    dataset: str
    budget: str
    lines: tuple[tuple[str, tuple[Usage, ...]], ...]
    omitted: int = 0
    refused: int = 0
    alerts: tuple[Fraction, ...] = ()
    line: BudgetLine | None = None

    @classmethod
    def read(
        cls,
        source: Source,
        dataset: str,
        *,
        alerts: Iterable[Any] = (),
        line: BudgetLine | None = None,
    ) -> BurnDown | None:
        """Read a dataset's newest term; None before the first step."""
        views = [v for v in accounts(source, dataset) if v.used_fraction is not None]
        # Of a divided dataset, the parts that were charged last say most.
        newest = find_newest_entries(source, dataset)
        views.sort(key=lambda view: newest.get(view.id, 0), reverse=True)
        views.sort(key=lambda view: _ORDER.index(view.kind))
        names = [view.id for view in views[:_MOST_LINES]]
        points = usage(source, dataset, names, most=_MOST_POINTS)
        shown = [(v, tuple(points[v.id])) for v in views if points.get(v.id)]
        if not shown:
            return None
        shown.sort(key=lambda group: (_ORDER.index(group[0].kind), group[0].name))
        first = shown[0][0]
        same = len({v.epsilon for v, _ in shown if v.epsilon is not None}) == 1
        limits = f"epsilon {_number(first.epsilon)} at delta {_number(first.delta)}"
        refused = [e for e in refusals(source, dataset=dataset) if e.term == first.term]
        return cls(
            dataset=dataset,
            budget=f"{limits}, {first.theorem} filter",
            lines=tuple((_title(view, same=same), own) for view, own in shown),
            omitted=len(views) - len(names),
            refused=len(refused),
            alerts=tuple(map(Fraction, alerts)),
            # It goes on from the first account's newest point only.
            line=line if line is not None and line.account == first.id else None,
        )

    @property
    def points(self) -> list[Usage]:
        """All points of all lines."""
        return [point for _, points in self.lines for point in points]

    def sentence(self) -> str:
        """Describe the figure in words."""
        first, last = (f(p.at for p in self.points)[:10] for f in (min, max))
        when = f"on {first}" if first == last else f"from {first} to {last}"
        parts = [f"Burn-down of {self.dataset} ({self.budget}) {when}"]
        parts += [f"{name}: {_left(pts[-1])} left" for name, pts in self.lines]
        parts.append(f"{self.refused} refusal{'' if self.refused == 1 else 's'}")
        if self.alerts:
            marks = ", ".join(f"{_WHOLE * float(a):g} %" for a in self.alerts)
            parts.append(f"alerts at {marks} used")
        if self.line is not None:
            day, share, _ = self.line.points[-1]
            calendar = "" if self.line.clock else ", as release keys count"
            parts.append(f"forecast: {percent_text(share)} used on {day}{calendar}")
        if self.omitted:
            parts.append(f"{self.omitted} more accounts are not drawn")
        return "; ".join(parts) + "."


def burn_down(
    dataset: str, *, over: Literal["charges", "dates"] | None = None
) -> Figure:
    """Draw the remaining budget of a dataset's gates: one falling line for each.

    An odometer's line is its remaining way from the idle reading to the halt. The
    dotted lines are the policy's alerts, crosses mark refusals. Only settled and
    reserved charges are drawn: no private value, and no released one.

    Args:
        dataset: Name of the dataset, in the current project.
        over: What runs from left to right. Default: dates if the charges span more
            than two days, else charges.

    Returns:
        A matplotlib figure of 8 by 4.2 inches.

    Raises:
        ConfigurationError: If matplotlib is missing or nothing was charged yet.
        UnknownDataset: If no policy governs the dataset.
    """
    ledger, policies = current_project().ledger, current_project().policies
    alerts = policies.policy_for(dataset).alerts
    line = budget_line(outlooks(ledger, dataset))
    data = BurnDown.read(ledger, dataset, alerts=alerts, line=line)
    if data is None:
        raise nothing_charged(dataset)
    return draw_burn_down(data, over=over)


def nothing_charged(dataset: str) -> ConfigurationError:
    """Return the error for a dataset without a charge."""
    msg = f"nothing was charged to dataset {dataset!r} yet. Run a flow with DP steps."
    return ConfigurationError(msg)


def draw_burn_down(
    data: BurnDown, *, over: Literal["charges", "dates"] | None = None
) -> Figure:
    """Draw what was read."""
    times = [_moment(point) for point in data.points]
    days = (max(times) - min(times)).total_seconds() / 86_400
    dates = over == "dates" or (over is None and days > _DATES_FROM)
    moves = sorted({(p.at, p.seq) for p in data.points if p.kind != "refuse"})

    def place(point: Usage) -> Any:
        return _moment(point) if dates else bisect_right(moves, (point.at, point.seq))

    places = [place(point) for point in data.points]
    start, end = min(places) if dates else 0, max(places)
    title = f"{style.label(data.dataset)}: {data.budget}"
    figure, axes = style.new_figure(title, "remaining budget, %")
    for number, (name, points) in enumerate(data.lines):
        moved = [p for p in points if p.kind != "refuse"]
        xs = [start, *map(place, moved), end]
        ys = [_WHOLE, *map(_height, moved)]
        ys.append(ys[-1])
        look = {**style.look(number), "label": style.label(name)}
        axes.step(xs, ys, where="post", linewidth=1.6 if number else 2.2, **look)
    if ahead := _ahead(data.line, start, end):
        last = data.lines[0][1][-1]
        look = {"linestyle": (0, (2, 2)), "color": style.look(0)["color"]}
        xy = zip((place(last), _height(last)), *ahead, strict=True)
        axes.plot(*xy, label="forecast", **look)
    if refused := [p for p in data.points if p.kind == "refuse"]:
        mark = {"marker": "x", "linestyle": "", "color": style.REFUSED}
        xs, ys = [*map(place, refused)], [*map(_height, refused)]
        axes.plot(xs, ys, markersize=8, label=f"{data.refused} refused", **mark)
    if len(axes.lines) > 1:
        style.legend(axes)
    if dates:
        figure.autofmt_xdate()
        axes.set_xlabel("date (UTC)")
        axes.margins(x=0.02)
    else:
        _charge_ticks(axes, data, place, ahead[-1][0] if ahead else end)
    axes.set_ylim(0, 106)
    for share in (_WHOLE * float(alert) for alert in data.alerts):
        axes.axhline(_WHOLE - share, color=style.TEXT, linewidth=0.9, linestyle=":")
        look = {"xycoords": ("axes fraction", "data"), "va": "bottom", "fontsize": 8}
        axes.annotate(f"alert at {share:g} % used", (0.01, _WHOLE - share), **look)
    figure.set_label(data.sentence())
    return figure


def _ahead(line: BudgetLine | None, start: Any, end: Any) -> list[tuple[Any, float]]:
    """Return the points of a forecast; without a clock's days, over charges only."""
    if line is None:
        return []
    points: list[tuple[Any, float]]
    if not isinstance(end, datetime):
        points = [(end + grown, used) for _, used, grown in line.points]
    else:
        days = line.points if line.clock else ()
        dated = [(datetime.combine(day, time(), UTC), used) for day, used, _ in days]
        points = [point for point in dated if point[0] >= end]
    limit = end + _HORIZON * (end - start)
    cut = [p for number, p in enumerate(points) if number == 0 or p[0] <= limit]
    return [(at, max(0.0, _WHOLE * (1 - used))) for at, used in cut]


def _charge_ticks(axes: Any, data: BurnDown, position: Any, end: Any) -> None:
    """Name some charges by their release keys, or number them."""
    names: dict[str, int] = {}
    for point in sorted(data.points, key=position):
        if point.release_key and point.kind != "refuse":
            # The reserve and the settle of a charge have one name.
            key = style.label(point.release_key.rsplit("/", 1)[-1], 18)
            names.setdefault(key, position(point))
    if names:
        every = -(-len(names) // _MOST_LABELS)
        look = {"rotation": 40, "ha": "right", "rotation_mode": "anchor", "fontsize": 9}
        axes.set_xticks([*names.values()][::every], [*names][::every], **look)
    else:
        axes.locator_params(axis="x", nbins=_MOST_LABELS, integer=True)
    axes.set_xlabel("entries of the journal, oldest first")
    axes.set_xlim(0, max(end, 1) * 1.02)


def _moment(point: Usage) -> datetime:
    return datetime.fromisoformat(point.at).astimezone(UTC)


def _height(point: Usage) -> float:
    return max(0.0, _WHOLE * (1 - point.used_fraction))


def _left(point: Usage) -> str:
    """Write the remaining share, rounded down."""
    return f"{math.floor(10 * _height(point)) / 10:g} %"


def _number(text: str | None) -> str:
    return style.number(Fraction(text or 0))


def _title(view: AccountView, *, same: bool) -> str:
    """Return an account's title, with its epsilon where they differ."""
    if view.halt_at is not None:
        return f"{account_title(view)}, halts at {_number(view.halt_at)}"
    return account_title(view) + ("" if same else f", epsilon {_number(view.epsilon)}")
