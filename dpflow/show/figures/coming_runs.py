"""The runs to come: a line of days for each flow, and out of what each run is paid."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from itertools import groupby
from typing import TYPE_CHECKING

from dpflow.forecast.calendar import DatasetCalendar, Paid
from dpflow.show.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Runs of all flows together.
_MOST_RUNS = 60
#: Told apart by form, too: filled, hollow, a cross.
_MARKS: dict[Paid, tuple[str, str, str]] = {
    "kept": ("o", style.COLOURS[2], style.COLOURS[2]),
    "from the rest": ("o", style.COLOURS[0], "white"),
    "refused": ("x", style.REFUSED, style.REFUSED),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ComingRuns:
    """What the figure shows of a dataset.

    Attributes:
        runs: Day, flow and out of what it is paid, in the order of days.
        ends: When the rest ends, if a day is known.
        ended_by: The flow that is refused on that day.
    """

    dataset: str
    runs: tuple[tuple[date, str, Paid], ...]
    ends: date | None
    ended_by: str

    @classmethod
    def read(cls, calendar: DatasetCalendar) -> ComingRuns | None:
        """Take what is drawn of a calendar; None if nothing is kept or no day known."""
        runs = calendar.coming(_MOST_RUNS)
        if not any(run.kept for run in runs):
            return None
        first = calendar.rest_ends
        ends = first.outlook.exhausted_on if first and first.outlook else None
        return cls(
            dataset=calendar.dataset,
            runs=tuple((run.day, run.flow, run.paid) for run in runs),
            ends=ends if ends and ends <= runs[-1].day else None,
            ended_by=first.flow if first else "",
        )

    def sentence(self) -> str:
        """Say what the figure shows."""
        first, last = self.runs[0][0], self.runs[-1][0]
        said = sorted((flow, paid) for _, flow, paid in self.runs)
        parts = [
            f"{flow} {len(list(group))} {paid}" for (flow, paid), group in groupby(said)
        ]
        when = f"on {first}" if first == last else f"from {first} to {last}"
        ends = (
            f"; the rest ends on {self.ends}, when {self.ended_by} is refused"
            if self.ends
            else ""
        )
        return f"Runs to come on {self.dataset} {when}: {', '.join(parts)}{ends}."


def draw_coming_runs(data: ComingRuns) -> Figure:
    """Draw what was read: 8 inches wide, as high as the flows need."""
    flows = sorted({flow for _, flow, _ in data.runs}, reverse=True)
    figure = style.new_figure((style.SIZE[0], 1.7 + 0.35 * len(flows)))
    axes = style.new_axes(
        figure,
        title=f"{style.label(data.dataset)}: the runs to come",
        x="day on which it is due",
        y="",
    )
    handles = []
    for paid, (mark, edge, face) in _MARKS.items():
        days = [(day, flows.index(flow)) for day, flow, own in data.runs if own == paid]
        if days:
            x, y = zip(*days, strict=True)
            colours = {"color": edge, "markerfacecolor": face}
            handles += axes.plot(x, y, mark, markersize=5, label=paid, **colours)
    if data.ends is not None:
        line = {"color": style.REFUSED, "linestyle": "--", "linewidth": 1.2}
        handles.append(axes.axvline(data.ends, label="the rest ends", **line))
    axes.set_yticks(range(len(flows)), [style.label(flow, 28) for flow in flows])
    axes.set_ylim(-0.6, len(flows) - 0.4)
    axes.tick_params(axis="x", labelrotation=30)
    style.legend(axes, handles, [str(handle.get_label()) for handle in handles])
    return style.describe(figure, data.sentence())
