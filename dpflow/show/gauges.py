"""A status as gauges, for a system that watches: numbers and names, never data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dpflow.rounding import number_from_text
from dpflow.show.status import DatasetStatus, Status

Labels = Mapping[str, str]

_GAUGES = {
    "dpflow_budget_left_fraction": "Share of an account's budget that is left.",
    "dpflow_runs_left": "Further runs that all gates admit.",
    "dpflow_budget_forfeited_fraction": "Share of a budget lost to unknown outcomes.",
    "dpflow_refusals": "Refused steps of the term, of the ledger's newest thousand.",
    "dpflow_stopped": "1 if no step of the dataset runs that somebody waits for.",
}


def prometheus(found: Status) -> str:
    """Write the gauges of a status in Prometheus's text format; no data is in it."""
    lines: list[str] = []
    for name, text, values in gauges(found):
        lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
        lines += [f"{name}{_text(labels)} {value:g}" for labels, value in values]
    return "\n".join(lines) + "\n"


def gauges(found: Status) -> Iterator[tuple[str, str, list[tuple[Labels, float]]]]:
    """Yield each gauge: its name, what it means, and its values by labels."""
    for name, text in _GAUGES.items():
        yield name, text, list(_values(name, found))


def _values(name: str, found: Status) -> Iterator[tuple[Labels, float]]:
    for each in found.datasets:
        dataset = each.standing.dataset
        if name == "dpflow_stopped":
            yield {"dataset": dataset}, float(each.overview.state.stopped)
        elif name == "dpflow_refusals":
            yield {"dataset": dataset}, each.refused
        elif name == "dpflow_runs_left":
            for outlook in each.outlooks:
                if outlook.runs_left is not None:
                    yield (
                        {"dataset": dataset, "flow": outlook.flow or ""},
                        outlook.runs_left,
                    )
        else:
            yield from _account_values(name, each)


def _account_values(name: str, known: DatasetStatus) -> Iterator[tuple[Labels, float]]:
    for view in known.standing.accounts:
        label = {
            "dataset": view.dataset,
            "account": view.kind,
            "name": view.name,
            "term": str(view.term),
        }
        if name == "dpflow_budget_left_fraction" and view.used_fraction is not None:
            yield label, max(1 - view.used_fraction, 0.0)
        elif name == "dpflow_budget_forfeited_fraction" and view.budget:
            yield label, _share(view.forfeited, view.budget)


def _share(part: Mapping[str, str], whole: Mapping[str, str]) -> float:
    shares = [
        number_from_text(part[key]) / number_from_text(text)
        for key, text in whole.items()
        if key in part and number_from_text(text)
    ]
    return float(max(shares, default=0))


def _text(labels: Labels) -> str:
    def quoted(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    inside = ",".join(f'{name}="{quoted(text)}"' for name, text in labels.items())
    return f"{{{inside}}}"
