"""A status as gauges, for a system that watches: numbers and names, never data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dpflow.config import settings
from dpflow.rounding import number_from_text
from dpflow.show.sheets import telling
from dpflow.show.status import Status

Labels = Mapping[str, str]

_ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_GAUGES = {
    "dpflow_budget_left_fraction": "Remaining share of an account's budget.",
    "dpflow_runs_left": "Further runs that all gates admit.",
    "dpflow_budget_forfeited_fraction": "Share of a budget lost to unknown outcomes.",
    "dpflow_refusals": "Refused steps of the term, among the ledger's newest 1,000.",
    "dpflow_stopped": "1 if no whole run fits, or the dataset is frozen or overdrawn.",
    "dpflow_disk_low": "1 if less than ten times the needed disk space is free.",
    "dpflow_witness_problem": "1 if the witness is out of reach or lacks charges.",
}


def prometheus(record: Status) -> str:
    """Write the gauges of a status in Prometheus's text format; no data is in it."""
    lines: list[str] = []
    for name, text, values in gauges(record):
        lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
        lines += [f"{name}{_text(labels)} {value:g}" for labels, value in values]
    return "\n".join(lines) + "\n"


def gauges(record: Status) -> Iterator[tuple[str, str, list[tuple[Labels, float]]]]:
    """Yield each gauge: its name, its meaning, and its values by labels."""
    left, runs, forfeited, refused, stopped, disk, witness = values = [
        list[tuple[Labels, float]]() for _ in _GAUGES
    ]
    project = {"project": settings().label(record.ledger)}
    disk.append((project, float(record.disk_is_low)))
    witness.append((project, float(record.witness_has_problem)))
    for status in record.datasets:
        dataset = {**project, "dataset": status.standing.dataset}
        stopped.append((dataset, float(status.overview.state.stopped)))
        refused.append((dataset, status.refused))
        for outlook in status.outlooks:
            if outlook.runs_left is not None:
                flow = {**dataset, "flow": outlook.flow or ""}
                runs.append((flow, outlook.runs_left))
        for view in telling(status.standing.accounts):
            label = {**project, "dataset": view.dataset, "account": view.kind}
            label |= {"name": view.name, "part": view.gate.partition}
            label["term"] = str(view.term)
            if view.used_fraction is not None:
                left.append((label, max(1 - view.used_fraction, 0.0)))
            if view.budget:
                forfeited.append((label, _share(view.forfeited, view.budget)))
    for (name, text), own in zip(_GAUGES.items(), values, strict=True):
        yield name, text, own


def _share(part: Mapping[str, str], budget: Mapping[str, str]) -> float:
    shares = [
        number_from_text(part[key]) / number_from_text(text)
        for key, text in budget.items()
        if key in part and number_from_text(text)
    ]
    return float(max(shares, default=0))


def _text(labels: Labels) -> str:
    inside = [f'{name}="{text.translate(_ESCAPED)}"' for name, text in labels.items()]
    return f"{{{','.join(inside)}}}"
