"""Who spent a dataset's budget: bars by week, stacked by flow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING

from dpflow.exceptions import ConfigurationError
from dpflow.guard.project import current_project
from dpflow.ledger import Ledger
from dpflow.ledger.views import accounts
from dpflow.ledger.views.spending import spending
from dpflow.ledger.views.words import percent_text
from dpflow.show.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_FLOWS, _MOST_WEEKS, _MOST_LABELS = 6, 104, 14
_OTHERS, _WITHOUT = "other flows", "no flow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """What the figure shows of a dataset.

    Attributes:
        weeks: ISO weeks in which anything was charged, and all between, oldest first.
        flows: Name of each flow and, for each week, the share of the budget that its
            charges would use alone; the largest flow first.
        divided: Whether parts have budgets of their own, and shares are of one part's.
    """

    dataset: str
    weeks: tuple[str, ...]
    flows: tuple[tuple[str, tuple[float, ...]], ...]
    divided: bool

    @classmethod
    def read(cls, ledger: Ledger, dataset: str) -> Composition | None:
        """Read a dataset's newest term; None if nothing was charged in it."""
        found = spending(ledger, dataset, ("week", "flow"))
        # Of a divided dataset with a cap on the whole, each charge posts to both.
        whole = {
            view.id
            for view in accounts(ledger, dataset)
            if view.kind == "dataset" and view.used_fraction
        }
        found = [each for each in found if each.account in whole] or found
        if not found:
            return None
        flows: dict[str, dict[str, float]] = {}
        for each in found:
            week, flow = each.group
            shares = flows.setdefault(_WITHOUT if flow == "-" else flow, {})
            shares[week] = shares.get(week, 0.0) + each.used_fraction
        weeks = _all_weeks({each.group[0] for each in found})[-_MOST_WEEKS:]
        return cls(
            dataset=dataset,
            weeks=tuple(weeks),
            flows=tuple(
                (name, tuple(shares.get(week, 0.0) for week in weeks))
                for name, shares in _largest(flows).items()
            ),
            divided=len({each.account for each in found}) > 1,
        )

    @property
    def tells(self) -> bool:
        """Whether there is more than one bar of one colour."""
        return len(self.weeks) > 1 or len(self.flows) > 1

    def sentence(self) -> str:
        """Say what the figure shows."""
        first, last = self.weeks[0], self.weeks[-1]
        when = f"in {first}" if first == last else f"from {first} to {last}"
        parts = [f"{name} {percent_text(sum(shares))}" for name, shares in self.flows]
        return (
            f"Spending of {self.dataset} by week and flow {when}, as shares of "
            f"{'the budget of a part' if self.divided else 'the budget'}: "
            f"{', '.join(parts)}."
        )


def composition(dataset: str) -> Figure:
    """Draw which flow spent how much of a dataset's budget, week by week.

    A bar's part is the share of the budget that these charges would use alone. Shares
    add up for theorems of one sum; for others their total is more than what is used.

    Args:
        dataset: Name of the dataset, in the current project.

    Returns:
        A matplotlib figure of 8 by 4.2 inches.

    Raises:
        ConfigurationError: If matplotlib is missing or nothing was charged yet.
        UnknownDataset: If no policy governs the dataset.
    """
    style.new_figure()
    project = current_project()
    project.policies.policy_for(dataset)
    data = Composition.read(project.ledger, dataset)
    if data is None:
        msg = f"nothing was charged to dataset {dataset!r} yet, so nobody spent it"
        raise ConfigurationError(msg)
    return draw_composition(data)


def draw_composition(data: Composition) -> Figure:
    """Draw what was read."""
    figure = style.new_figure()
    of = "a part's budget" if data.divided else "the budget"
    axes = style.new_axes(
        figure,
        title=f"{style.label(data.dataset)}: who spent {of}",
        x="ISO week in which it was charged (UTC)",
        y=f"share of {of}, %",
    )
    floor = [0.0] * len(data.weeks)
    handles = []
    for number, (_, shares) in enumerate(data.flows):
        heights = [100 * share for share in shares]
        bars = axes.bar(
            range(len(data.weeks)),
            heights,
            bottom=floor,
            width=0.8,
            color=style.colour(number),
            edgecolor="white",
            linewidth=0.5,
            hatch=style.HATCHES[number % len(style.HATCHES)],
        )
        handles.append(bars[0])
        floor = [low + height for low, height in zip(floor, heights, strict=True)]
    shown = style.thinned(len(data.weeks), _MOST_LABELS)
    axes.set_xticks(
        list(shown),
        [data.weeks[number] for number in shown],
        rotation=40,
        ha="right",
        rotation_mode="anchor",
        fontsize=9,
    )
    # One bar alone would be as wide as the page.
    spare = max(0.0, (8 - len(data.weeks)) / 2)
    axes.set_xlim(-0.6 - spare, len(data.weeks) - 0.4 + spare)
    style.legend(axes, handles, [style.label(name, 28) for name, _ in data.flows])
    return style.describe(figure, data.sentence())


def _largest(flows: Mapping[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Sort flows by what they spent; the smallest of many become one."""
    names = sorted(flows, key=lambda name: (-sum(flows[name].values()), name))
    few = len(names) <= _MOST_FLOWS
    kept = {name: flows[name] for name in (names if few else names[: _MOST_FLOWS - 1])}
    if few:
        return kept
    others: dict[str, float] = {}
    for name in names[_MOST_FLOWS - 1 :]:
        for week, share in flows[name].items():
            others[week] = others.get(week, 0.0) + share
    return {**kept, _OTHERS: others}


def _all_weeks(weeks: set[str]) -> list[str]:
    """Return the weeks from the first to the last, with those in which nothing was."""
    days = sorted(_monday(week) for week in weeks)
    count = (days[-1] - days[0]).days // 7 + 1
    return [_week(days[0] + timedelta(weeks=number)) for number in range(count)]


def _monday(week: str) -> date:
    year, _, number = week.partition("-W")
    return date.fromisocalendar(int(year), int(number), 1)


def _week(day: date) -> str:
    year, number, _ = day.isocalendar()
    return f"{year}-W{number:02}"
