"""The tables that `admitted.py` prints, and its verdicts."""

from __future__ import annotations

import datetime as dt
import platform
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from workloads import BUDGETS, WORKLOADS

import dpflow

#: `auto` against a fixed sequence: this share, where that number of steps fits.
SHARE, MANY = 0.94, 200

#: The baseline of a sequence; the other rows of its table assume more, or less.
_CEILING = "optimum"

#: Made of several filters, hence no single one.
_COMBINED = "auto"
_MARKS = {"adaptive": "", "gaussian": "", "order": "\\*", "fixed": "†", "sequence": "†"}
_VALID = ("adaptive", "gaussian", "order")

_LEGEND = """\
No mark: a filter. Its guarantee holds if the analyst chooses costs adaptively; loss
distributions and ComposeGaussian do so for Gaussians only. \\*: the library takes the
best of many Renyi orders afterwards, which is not a filter
(derivations/rdp.md#some-order). One of its orders, fixed in advance, reaches the same
number and is a filter, so the number counts as valid. †: valid only if the sequence of
steps is fixed in advance. -: the library has no such step.

`rdp, order tuned` is the best order for the workload, which a policy may name. Rho of
the zCDP filters, slack and splits of delta of the peers are the best for each workload.

`fixed sequence optimum` takes the range of an exponential mechanism in the worst
position at each step. The analyst may choose the position by earlier outputs, so no
sound rule admits more. `EM not adaptive` fixes the positions in advance; where it
admits more, an adaptive analyst loses more privacy (Dong, Durfee, Rogers 2020). The
last row takes the mechanism as any (0.1, 0)-DP step.

Peers run in environments of their own, from `benchmarks/peers/interpreters.py`.
dp-accounting's PLDAccountant composes a randomized response once whatever its count is
(0.6.0), so its distributions are composed directly."""

_FURTHER = """\
The defaults of `auto` were chosen on the workloads above. The workloads of this table
took no part in that choice. `near` says whether `auto` admits 0.94 of the best single
filter, with its order tuned, or one step fewer."""

Cell = tuple[str, str]


@dataclass
class Row:
    """A rule's counts.

    Args:
        peer: Whose it is.
        rule: What it is called.
        own: Whether it is dpflow's.
        valid: What its numbers mean where `validity` does not say.
        version: The library's version.
        counts: Steps, by workload and epsilon.
        validity: What the number means, by workload and epsilon.
    """

    peer: str
    rule: str
    own: bool = False
    valid: str = "adaptive"
    version: str = ""
    counts: dict[Cell, int] = field(default_factory=dict)
    validity: dict[Cell, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Heading of the row."""
        return f"{self.peer} {self.rule}"

    def meaning(self, cell: Cell) -> str:
        """Return what a number of the row means."""
        return self.validity.get(cell, self.valid)

    def shown(self, cell: Cell) -> str:
        """Return the entry of a table."""
        if cell not in self.counts:
            return "-"
        return f"{self.counts[cell]}{_MARKS[self.meaning(cell)]}"


@dataclass(frozen=True)
class Further:
    """What `auto` admits of a workload that no default was chosen for."""

    meaning: str
    epsilon: str
    delta: str
    union: int
    best: int
    name: str

    @property
    def entries(self) -> list[str]:
        """The row of the table."""
        near = _is_near(self.union, self.best)
        ratio = f"{self.union / self.best:.3f}" if self.best else "-"
        count = f"{self.union} of {self.best} (dpflow {self.name}): {ratio}"
        budget = f"{self.epsilon}, {self.delta}"
        return [self.meaning, budget, count, "yes" if near else "no"]


@dataclass(frozen=True)
class Verdict:
    """One comparison of a workload at a budget."""

    cell: Cell
    text: str
    missed: bool


def _cells() -> Iterator[Cell]:
    for epsilon, _ in BUDGETS:
        for workload in WORKLOADS:
            yield workload.name, epsilon


def _best(rows: list[Row], cell: Cell) -> tuple[int, str] | None:
    found = [(row.counts[cell], row.name) for row in rows if cell in row.counts]
    return max(found, key=lambda pair: pair[0]) if found else None


def best_against_peers(own: list[Row], peers: list[Row]) -> list[Verdict]:
    """Say where the best single filter is below the best valid peer."""
    verdicts = []
    singles = [row for row in own if row.rule != _COMBINED]
    for cell in _cells():
        valid = [row for row in peers if row.meaning(cell) in _VALID]
        mine, theirs = _best(singles, cell), _best(valid, cell)
        if mine is None or theirs is None:
            continue
        missed = mine[0] < theirs[0]
        text = f"{mine[0]} ({mine[1]}) against {theirs[0]} ({theirs[1]})"
        verdicts.append(Verdict(cell, text, missed))
    return verdicts


def auto_against_optimum(own: list[Row], optimum: list[Row]) -> list[Verdict]:
    """Say where `auto` is below its share of what a fixed sequence could have.

    Where so many steps fit that one more or fewer is nothing. Sampled Gaussians have
    what the others leave.
    """
    verdicts = []
    sampled = {w.name for w in WORKLOADS if "sampled" in w.kinds}
    combined = next((row for row in own if row.rule == _COMBINED), None)
    for cell in _cells() if combined is not None else ():
        best = _best(optimum, cell)
        if best is None or best[0] < MANY or cell[0] in sampled or combined is None:
            continue
        count = combined.counts.get(cell, 0)
        text = f"{count} of {best[0]}: {count / best[0]:.3f}"
        verdicts.append(Verdict(cell, text, count < SHARE * best[0]))
    return verdicts


def _is_near(count: int, best: int) -> bool:
    return count >= SHARE * best or count >= best - 1


def none_overstated(rows: list[Row], optimum: list[Row]) -> list[Verdict]:
    """Say where a rule admits more than any sound rule can."""
    verdicts = []
    ceiling = next((row for row in optimum if row.rule == _CEILING), None)
    for cell in _cells() if ceiling is not None else ():
        most = _best(rows, cell)
        if most is None or ceiling is None or cell not in ceiling.counts:
            continue
        text = f"at most {most[0]} ({most[1]}) of {ceiling.counts[cell]}"
        verdicts.append(Verdict(cell, text, most[0] > ceiling.counts[cell]))
    return verdicts


def sequence_against_optimum(sequences: list[Row], optimum: list[Row]) -> list[Verdict]:
    """Say where the sequence, by loss distributions, differs from the optimum."""
    verdicts = []
    for cell in _cells():
        best = {row.rule: row.counts[cell] for row in optimum if cell in row.counts}
        mine = _best(sequences[:1], cell)
        if mine is None or _CEILING not in best:
            continue
        text = f"{mine[0]} ({mine[1]}) of "
        text += " and of ".join(f"{n} ({rule})" for rule, n in best.items())
        verdicts.append(Verdict(cell, text, mine[0] != best[_CEILING]))
    return verdicts


def _goal(title: str, verdicts: list[Verdict]) -> list[str]:
    missed = [f"{' at '.join(v.cell)}: {v.text}" for v in verdicts if v.missed]
    reached = f"{len(verdicts) - len(missed)} of {len(verdicts)}"
    return [title, reached, "; ".join(missed)]


def report(
    *,
    own: list[Row],
    sequences: list[Row],
    peers: list[Row],
    optimum: list[Row],
    further: list[Further],
    notices: list[str],
) -> tuple[dict[str, Any], bool]:
    """Return the page of all tables, and whether a goal was missed."""
    today = dt.datetime.now(tz=dt.UTC)
    used = {row.peer: row.version for row in peers if row.version}
    versions = [f"dpflow {dpflow.__version__}", f"Python {platform.python_version()}"]
    versions += [f"{name} {number}" for name, number in sorted(used.items())]
    versions += [f"{name} {version(name)}" for name in ("numpy", "scipy")]
    verdicts = {
        "The best single filter is never below the best valid peer": (
            best_against_peers(own, peers)
        ),
        f"`auto` admits {SHARE} of an optimum of {MANY} steps or more, except SGD": (
            auto_against_optimum(own, optimum)
        ),
        "`sequence` equals the optimum of a fixed sequence": (
            sequence_against_optimum(sequences, optimum)
        ),
        "No filter admits more than the optimum": (
            none_overstated([*own, *sequences], optimum)
        ),
    }
    about = [
        f"Written by `benchmarks/admitted.py` on {today:%Y-%m-%d}.",
        f"Versions: {', '.join(versions)}.",
        _LEGEND,
    ]
    sections = [
        {
            "text": about,
            "columns": ["workload", "meaning"],
            "rows": [[workload.name, workload.meaning] for workload in WORKLOADS],
        }
    ]
    names = [workload.name for workload in WORKLOADS]
    for epsilon, delta in BUDGETS:
        rows = [
            [row.name, *(row.shown((name, epsilon)) for name in names)]
            for row in [*own, *sequences, *peers, *optimum]
        ]
        title = f"Epsilon {epsilon}, delta {delta}"
        sections.append({"title": title, "columns": ["filter", *names], "rows": rows})
    sections += [
        {
            "title": "Goals",
            "columns": ["goal", "reached", "missed"],
            "rows": [_goal(*item) for item in verdicts.items()],
        },
        {
            "title": "`auto` on further workloads",
            "text": [_FURTHER],
            "columns": ["workload", "budget", "auto", "near"],
            "rows": [row.entries for row in further],
        },
        {"title": "Notices", "columns": ["notice"], "rows": [[n] for n in notices]},
    ]
    missed = any(v.missed for found in verdicts.values() for v in found)
    return {"title": "Adaptive steps admitted", "sections": sections}, missed
