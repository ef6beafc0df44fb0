"""What is left of a dataset's budget, charge by charge or day by day."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

from dpflow.exceptions import ConfigurationError
from dpflow.forecast import BudgetLine, budget_line, outlooks
from dpflow.guard.project import current_project
from dpflow.ledger import Ledger
from dpflow.ledger.records import AccountView, Usage
from dpflow.ledger.views import accounts, refusals, usage
from dpflow.ledger.views.words import account_title, percent_text
from dpflow.show.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_LINES, _MOST_POINTS, _MOST_LABELS, _MOST_MARKS = 6, 600, 12, 40
#: Charges over a longer time are drawn over dates, in days.
_DATES_FROM = 2.0
_WHOLE = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnDown:
    """What the figure shows of a dataset.

    Attributes:
        budget: Its budget and theorem, for the title.
        lines: Title and points of each gate: accounts that have a budget, and
            odometers that halt.
        omitted: Further accounts that are not drawn.
        refused: How many steps its gates refused, in the newest term.
        alerts: Shares of the budget at which the policy alerts.
        forecast: When which share is used, if somebody foresees it.
        line: The same as the ledger's runs foretell it.
    """

    dataset: str
    budget: str
    lines: tuple[tuple[str, tuple[Usage, ...]], ...]
    omitted: int = 0
    refused: int = 0
    alerts: tuple[Fraction, ...] = ()
    forecast: DatedShares = ()
    line: BudgetLine | None = None

    @classmethod
    def read(
        cls,
        ledger: Ledger,
        dataset: str,
        *,
        alerts: Iterable[Any] = (),
        forecast: DatedShares = (),
        line: BudgetLine | None = None,
    ) -> BurnDown | None:
        """Read a dataset's newest term; None if no step has asked for anything."""
        views = accounts(ledger, dataset)
        newest = max((view.term for view in views), default=0)
        ours = [v for v in views if v.term == newest and v.used_fraction is not None]
        points = usage(ledger, dataset, most=_MOST_POINTS)
        used = [
            (view, points[view.id])
            for view in sorted(ours, key=_order)
            if view.id in points
        ]
        if not used:
            return None
        # A divided dataset has an account that only opens and freezes it.
        busy = [each for each in used if any(p.used_fraction for p in each[1])]
        used = busy or used
        # Of a divided dataset, the parts that were charged last say most.
        used.sort(key=_last, reverse=True)
        used.sort(key=lambda each: _order(each[0])[0])
        shown = sorted(used[:_MOST_LINES], key=lambda each: _order(each[0]))
        return cls(
            dataset=dataset,
            budget=_budget(shown[0][0]),
            lines=tuple((_title(view, shown), tuple(pts)) for view, pts in shown),
            omitted=len(used) - len(shown),
            refused=sum(
                each.term == newest for each in refusals(ledger, dataset=dataset)
            ),
            alerts=tuple(Fraction(alert) for alert in alerts),
            forecast=tuple(forecast),
            # It goes on from the first account's newest point only.
            line=line if line is not None and line.account == shown[0][0].id else None,
        )

    @property
    def points(self) -> list[Usage]:
        """All points of all lines."""
        return [point for _, points in self.lines for point in points]

    @property
    def days(self) -> float:
        """How long it took from the first point to the last, in days."""
        times = [_moment(point.at) for point in self.points]
        return (max(times) - min(times)).total_seconds() / 86_400

    def sentence(self) -> str:
        """Say what the figure shows."""
        points = self.points
        asked = (p for p in points if p.kind != "refuse" and p.covers is None)
        charges = {p.reservation or p.seq for p in asked}
        first, last = (f(p.at for p in points)[:10] for f in (min, max))
        when = f"on {first}" if first == last else f"from {first} to {last}"
        done = f"{len(charges)} charges {when}"
        parts = [
            f"Burn-down of {self.dataset} ({self.budget}): {done}",
            *(f"{name}: {_left(pts[-1])} left" for name, pts in self.lines),
        ]
        parts.append(f"{self.refused} refusal{'' if self.refused == 1 else 's'}")
        if self.alerts:
            marks = ", ".join(f"{_WHOLE * float(a):g} %" for a in self.alerts)
            parts.append(f"alerts at {marks} used")
        if self.forecast:
            day, share = self.forecast[-1]
            text = f"forecast: {percent_text(share)} used on {day.isoformat()[:10]}"
            parts.append(text)
        elif self.line is not None:
            parts.append(foretold(self.line))
        if self.omitted:
            parts.append(f"{self.omitted} more accounts are not drawn")
        return "; ".join(parts) + "."


def burn_down(
    dataset: str,
    *,
    over: Literal["charges", "dates"] | None = None,
    forecast: DatedShares | None = None,
) -> Figure:
    """Draw what is left of a dataset's gates: one falling line for each.

    An odometer's line is what is left of its way from where it idles to its halt. The
    dotted lines are the policy's alerts, crosses mark refusals. Only settled and
    reserved charges are drawn: no private value, and no released one.

    Args:
        dataset: Name of the dataset, in the current project.
        over: What runs from left to right. Default: dates if there is a forecast or
            the charges span more than two days, else charges.
        forecast: When which share of the budget will be used: dates and fractions.
            Default: what the runs so far foretell (`dpflow.forecast.outlooks`).

    Returns:
        A matplotlib figure of 8 by 4.2 inches.

    Raises:
        ConfigurationError: If matplotlib is missing or nothing was charged yet.
        UnknownDataset: If no policy governs the dataset.
    """
    style.new_figure()
    project = current_project()
    alerts = project.policies.policy_for(dataset).alerts
    line = budget_line(outlooks(project.ledger, dataset)) if forecast is None else None
    data = BurnDown.read(
        project.ledger, dataset, alerts=alerts, forecast=forecast or (), line=line
    )
    if data is None:
        msg = (
            f"nothing was charged to dataset {dataset!r} yet, so there is no burn-down"
        )
        raise ConfigurationError(msg)
    return draw_burn_down(data, over=over)


def draw_burn_down(
    data: BurnDown, *, over: Literal["charges", "dates"] | None = None
) -> Figure:
    """Draw what was read."""
    dates = bool(data.forecast) or data.days > _DATES_FROM
    over = over or ("dates" if dates else "charges")
    figure = style.new_figure()
    title = f"{style.label(data.dataset)}: {data.budget}"
    axes = style.new_axes(figure, title=title, x="", y="budget left, %")
    place = _by_date if over == "dates" else _by_charge(data)
    handles, labels = [], []
    end = max(place(point) for point in data.points)
    for number, (name, points) in enumerate(data.lines):
        handles.append(_line(axes, number, points, place, end))
        labels.append(style.label(name))
    ahead = _ahead(data, [place(point) for point in data.points], over)
    if ahead:
        handles.append(_forecast(axes, data, place, ahead))
        labels.append("forecast")
    crosses = list(_refusals(data, place))
    if crosses:
        mark = {"marker": "x", "linestyle": "", "color": style.REFUSED}
        handles += axes.plot(*zip(*crosses, strict=True), markersize=8, **mark)
        labels.append(f"{data.refused} refused")
    if over == "dates":
        _date_ticks(axes)
    else:
        end = ahead[-1][0] if ahead else end
        _charge_ticks(axes, data, place, end)
    axes.set_ylim(0, 106)
    _alerts(axes, data.alerts)
    if len(handles) > 1:
        style.legend(axes, handles, labels)
    return style.describe(figure, data.sentence())


def _line(axes: Any, number: int, points: Sequence[Usage], place: Any, end: Any) -> Any:
    """Draw one account, from its whole budget to the end of the figure."""
    moves = [point for point in points if point.kind != "refuse"]
    start = min(place(point) for point in points) if isinstance(end, datetime) else 0
    xs = [start, *(place(point) for point in moves), end]
    ys = [_WHOLE, *(_height(point) for point in moves)]
    ys.append(ys[-1])
    paint = style.colour(number)
    (line,) = axes.step(
        xs,
        ys,
        where="post",
        color=paint,
        linewidth=2.2 if number == 0 else 1.6,
        linestyle=style.dash(number),
    )
    if number == 0:
        axes.fill_between(xs, ys, step="post", color=paint, alpha=0.12, linewidth=0)
    return line


def _ahead(data: BurnDown, places: Sequence[Any], over: str) -> list[tuple[Any, float]]:
    """Return where the points of a forecast are, and how much is used there."""
    if over == "charges":
        return [] if data.line is None else over_charges(data.line, max(places))
    return over_dates(data.forecast, data.line, min(places), max(places))


def _forecast(
    axes: Any, data: BurnDown, place: Any, ahead: Sequence[tuple[Any, float]]
) -> Any:
    """Draw a forecast on from the newest point of the first account."""
    last = data.lines[0][1][-1]
    xs = [place(last), *(when for when, _ in ahead)]
    ys = [_height(last), *(max(0.0, _WHOLE * (1 - share)) for _, share in ahead)]
    marker = "." if len(ahead) <= _MOST_MARKS else ""
    look = {"color": style.colour(0), "linestyle": (0, (2, 2)), "marker": marker}
    (line,) = axes.plot(xs, ys, linewidth=1.4, markersize=4, **look)
    return line


def _refusals(data: BurnDown, place: Any) -> Iterator[tuple[Any, float]]:
    for point in data.points:
        if point.kind == "refuse":
            yield place(point), _height(point)


def _alerts(axes: Any, alerts: Sequence[Fraction]) -> None:
    for alert in alerts:
        share = _WHOLE * float(alert)
        axes.axhline(_WHOLE - share, color=style.TEXT, linewidth=0.9, linestyle=":")
        axes.annotate(
            f"alert at {share:g} % used",
            (0.005, _WHOLE - share),
            xycoords=("axes fraction", "data"),
            xytext=(2, 2),
            textcoords="offset points",
            fontsize=8,
            color=style.TEXT,
        )


def _by_date(point: Usage) -> datetime:
    return _moment(point.at)


def _by_charge(data: BurnDown) -> Any:
    """Number the entries of all accounts; what one transaction posts is one entry."""
    known: dict[tuple[object, str], int] = {}
    moves = (point for point in data.points if point.kind != "refuse")
    for point in sorted(moves, key=lambda point: (point.at, point.seq)):
        known.setdefault(_entry(point), len(known) + 1)

    def place(point: Usage) -> int:
        if point.kind != "refuse":
            return known[_entry(point)]
        before = [p for p in data.points if p.kind != "refuse" and _before(p, point)]
        return max((known[_entry(p)] for p in before), default=0)

    return place


def _before(first: Usage, second: Usage) -> bool:
    return (first.at, first.seq) < (second.at, second.seq)


def _entry(point: Usage) -> tuple[object, str]:
    return point.reservation or (point.at, point.seq), point.kind


def _charge_ticks(axes: Any, data: BurnDown, place: Any, end: Any) -> None:
    """Name some charges by their release keys, or number them."""
    names: dict[str, int] = {}
    moves = [point for point in data.points if point.kind != "refuse"]
    for point in sorted(moves, key=place):
        if point.release_key:
            # The reserve and the settle of a charge have one name.
            key = style.label(point.release_key.rsplit("/", 1)[-1], 18)
            names.setdefault(key, place(point))
    if names:
        # A forecast leaves them so much less room.
        room = max(2, math.floor(_MOST_LABELS * max(names.values()) / max(end, 1)))
        shown = [[*names.items()][n] for n in style.thinned(len(names), room)]
        axes.set_xticks(
            [number for _, number in shown],
            [name for name, _ in shown],
            rotation=40,
            ha="right",
            rotation_mode="anchor",
            fontsize=9,
        )
    else:
        axes.locator_params(axis="x", nbins=_MOST_LABELS, integer=True)
    axes.set_xlabel("entries of the journal, oldest first")
    axes.set_xlim(0, max(end, 1) * 1.02)


def _date_ticks(axes: Any) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter  # noqa: PLC0415

    locator: Any = AutoDateLocator(minticks=3, maxticks=8)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    formatter: Any = ConciseDateFormatter(locator)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(formatter)
    axes.set_xlabel("date (UTC)")
    axes.margins(x=0.02)


def _moment(at: str) -> datetime:
    return datetime.fromisoformat(at).astimezone(UTC)


def _height(point: Usage) -> float:
    return max(0.0, _WHOLE * (1 - point.used_fraction))


def _left(point: Usage) -> str:
    """Write what is left, rounded down."""
    return f"{math.floor(1000 * max(0.0, 1 - point.used_fraction)) / 10:g} %"


def _order(view: AccountView) -> tuple[int, str]:
    kinds = ("population", "dataset", "flow", "partition", "odometer")
    return kinds.index(view.kind) if view.kind in kinds else len(kinds), view.name


def _last(each: tuple[AccountView, list[Usage]]) -> str:
    return each[1][-1].at


def _title(view: AccountView, shown: Sequence[tuple[AccountView, object]]) -> str:
    """Return an account's title, with its epsilon where there are several."""
    title = account_title(view)
    if view.halt_at is not None:
        return f"{title}, halts at {style.number(Fraction(view.halt_at))}"
    if len({each.epsilon for each, _ in shown if each.epsilon is not None}) == 1:
        return title
    return f"{title}, epsilon {style.number(Fraction(view.epsilon or 0))}"


def _budget(view: AccountView) -> str:
    """Write the budget and theorem of the first account, for a title."""
    epsilon, delta = (Fraction(text) for text in (view.epsilon or "0", view.delta))
    budget = f"epsilon {style.number(epsilon)} at delta {style.number(delta)}"
    return f"{budget}, {view.theorem} filter"


#: One point of a forecast: when, and the share of the budget that is used then.
DatedShares = Sequence[tuple[date | datetime, float]]
#: A forecast takes at most so many times the room that the journal does.
_HORIZON = 2.0


def over_charges(line: BudgetLine, newest: int) -> list[tuple[Any, float]]:
    """Go on from the newest entry, whatever calendar the line's days have."""
    points = [(newest + grown, used) for _, used, grown in line.points]
    return _within(points, newest * (1 + _HORIZON))


def over_dates(
    given: DatedShares, line: BudgetLine | None, start: datetime, newest: datetime
) -> list[tuple[Any, float]]:
    """Go on from the newest charge; days that are not the clock's are left out.

    Args:
        given: A forecast that somebody made, which is drawn as it is.
        line: What the ledger's runs foretell.
        start: When the oldest charge was.
        newest: When the newest was.
    """
    if given:
        return [(_at(day), share) for day, share in given]
    if line is None or not line.clock:
        return []
    coming = [(_at(day), used) for day, used, _ in line.points]
    points = [(when, used) for when, used in coming if when >= newest]
    return _within(points, newest + _HORIZON * (newest - start))


def foretold(line: BudgetLine) -> str:
    """Say where a line ends, in the calendar of its days."""
    day, share, _ = line.points[-1]
    calendar = "" if line.clock else ", as release keys count"
    return f"forecast: {percent_text(share)} used on {day}{calendar}"


def _within(points: Sequence[tuple[Any, float]], end: Any) -> list[tuple[Any, float]]:
    """Cut a line off where a picture ends; its first point always stays."""
    return [each for number, each in enumerate(points) if not number or each[0] <= end]


def _at(day: date | datetime) -> datetime:
    if isinstance(day, datetime):
        return day if day.tzinfo else day.replace(tzinfo=UTC)
    return datetime.combine(day, time(), UTC)
