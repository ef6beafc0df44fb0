"""Charges of a dataset, and the charges of each run of a flow."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from dpflow.accounting.costs.base import Cost, cost_from_description
from dpflow.accounting.rules.tally import Tally
from dpflow.ledger.decision.gates import Gate
from dpflow.ledger.entry import Amounts
from dpflow.ledger.views.runs import RECENT, RunCharge
from dpflow.plain.tables.rows import Charge, Entry, Term
from dpflow.plain.views.accounts import standing_gates
from dpflow.plain.views.reading import (
    ENDLESS,
    Reading,
    Source,
    describe_charge,
    open_reading,
    read_postings,
)
from dpflow.policy.population import population_of


class End(NamedTuple):
    """The entry that ended a charge, in the journal of one of its datasets.

    Attributes:
        text: Body of the entry.
        above: Postings to the population of the dataset.
    """

    number: int
    kind: str
    at: str
    writer: str
    text: str
    postings: str
    above: str | None


class JournalCharge:
    """A charge, as the journal of one of its datasets has it.

    Its request is read when somebody asks for it.

    Args:
        columns: Columns of `read_charge_lines`.

    Attributes:
        number: Number of the entry that made it.
        at: The time of that entry, a label.
        ended: The entry that ended it; None while it is open.
    """

    def __init__(self, columns: tuple[Any, ...]) -> None:
        self.number: int = columns[0]
        self.at: str = columns[1]
        self.writer: str = columns[2]
        self.ended = None if columns[3] is None else End(*columns[3:10])
        self.id: str = columns[10]
        self.step: str = columns[14]
        self.flow: str | None = columns[15]
        self.run: str | None = columns[16]
        self._columns = columns[10:]

    @cached_property
    def charge(self) -> Charge:
        """The row of the charge."""
        return Charge.from_columns(self._columns)

    @cached_property
    def body(self) -> dict[str, Any]:
        """Facts of its request and of its end."""
        body = describe_charge(self.charge)
        if self.ended is not None:
            # The writer of its end may have no commit.
            body.pop("code", None)
            body |= json.loads(self.ended.text)
        return body

    @property
    def cost(self) -> Cost:
        """The step's worst case.

        Raises:
            InvalidCost: If the mechanism is one that this process does not know.
        """
        return cost_from_description(self.charge.request.get("cost") or {})

    @property
    def held(self) -> dict[str, Amounts]:
        """What it held, by account."""
        return {name: held.amount for name, held in self.charge.amounts.items()}

    @property
    def posted(self) -> dict[str, Amounts]:
        """What its end settled, by account of the dataset and its population."""
        texts = () if self.ended is None else (self.ended.postings, self.ended.above)
        changes = (read_postings(text) for text in texts if text is not None)
        return {name: done for each in changes for name, (done, _) in each.items()}

    @property
    def amounts(self) -> dict[str, Amounts]:
        """Charged amount by account: posted or still held."""
        return self.held if self.ended is None else self.posted

    @property
    def is_fine(self) -> bool:
        """True if it settled, and the step did not fail."""
        end = self.ended
        if end is None or end.kind != "settle":
            return False
        return bool(json.loads(end.text).get("outcome") != "failed")


def read_charges(
    reading: Reading, dataset: str, after: int = 0, before: int = ENDLESS
) -> Iterator[JournalCharge]:
    """Yield the charges that entries of a dataset between two numbers made."""
    term = reading.newest(dataset)
    population = None if term is None else population_of(term.facts["pinned"])
    where = {"dataset": dataset, "after": after, "before": before}
    lines = reading.ask("read_charge_lines", **where, population=population or "")
    return (JournalCharge(tuple(columns)) for columns in lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRun:
    """One run of a flow; a charge outside of any run counts as one.

    Attributes:
        charges: Charges of its steps, in order.
        raised: Entries by which an operator raised them.
        begun: Whether its first entry was read.
        refused: Whether it met a refusal, on whatever dataset.
    """

    charges: tuple[JournalCharge, ...]
    raised: tuple[Entry, ...]
    begun: bool
    refused: bool

    @property
    def flow(self) -> str | None:
        """Its flow; None outside of any flow that was named."""
        return self.charges[0].flow

    @property
    def run(self) -> str | None:
        """Id of the flow run, or None."""
        return self.charges[0].run

    @property
    def at(self) -> str:
        """The time of its first reservation; a label."""
        return self.charges[0].at

    @property
    def deployment(self) -> str | None:
        """Id of the deployment that it is a run of, or None."""
        deployment: str | None = self.charges[0].charge.request.get("deployment")
        return deployment

    @property
    def keys(self) -> list[str]:
        """The release keys of its steps."""
        keys = (step.charge.request.get("key_text") for step in self.steps)
        return [key for key in keys if key]

    @property
    def steps(self) -> list[JournalCharge]:
        """The steps that were charged, in order."""
        return [c for c in self.charges if c.ended is None or c.ended.kind != "void"]

    @property
    def complete(self) -> bool:
        """Whether all of it was read, nothing was refused, and all ended well."""
        ends = all(step.is_fine for step in self.steps)
        return self.begun and ends and not self.refused


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetRuns:
    """The newest term of a dataset, its accounts as they stand, and its runs.

    Attributes:
        runs: Those that charged a step, oldest first.
        older: Whether the journal has older entries, which were not read.
    """

    dataset: str
    term: Term
    runs: tuple[FlowRun, ...]
    older: bool

    def of_flow(self, flow: str | None) -> list[FlowRun]:
        """Return the runs of one flow, oldest first."""
        return [run for run in self.runs if run.flow == flow]


def dataset_runs(
    source: Source, dataset: str, *, most: int = RECENT
) -> DatasetRuns | None:
    """Read the runs of a dataset's newest term; None if it has no term yet.

    Args:
        source: The ledger to read.
        dataset: The dataset.
        most: Number of entries of its term that are read, the newest.
    """
    with open_reading(source) as reading:
        term = reading.newest(dataset)
        if term is None:
            return None
        if (dataset, most) not in reading.runs:
            reading.runs[dataset, most] = _read_runs(reading, dataset, term, most)
        runs: DatasetRuns = reading.runs[dataset, most]
        return runs


def _read_runs(reading: Reading, dataset: str, term: Term, most: int) -> DatasetRuns:
    head, opened = reading.rows.book(dataset).number, reading.find_openings(dataset)[-1]
    start = max(opened, head - most)
    older = start > opened
    # What was first seen in the older half may have begun before it.
    sure = start + (head - start) // 2 if older else 0
    by_run = defaultdict[str, list[JournalCharge]](list)
    for charge in read_charges(reading, dataset, start):
        by_run[charge.run or charge.id].append(charge)
    raised = defaultdict[str, list[Entry]](list)
    for name in (each.book for each in reading.newest_of(dataset)):
        for entry in reading.decisions(name):
            if entry.kind == "adjust" and entry.charge is not None:
                raised[entry.charge].append(entry)
    runs = [
        FlowRun(
            charges=tuple(own),
            raised=tuple(
                entry for charge in own for entry in raised.get(charge.id, ())
            ),
            begun=own[0].number > sure,
            refused=name in reading.refused_runs,
        )
        for name, own in by_run.items()
    ]
    charged = tuple(run for run in runs if run.steps)
    return DatasetRuns(dataset=dataset, term=term, runs=charged, older=older)


def run_charges(source: Source, dataset: str, run: FlowRun) -> dict[str, RunCharge]:
    """Read what a run did to each account of a dataset's newest term, by its id.

    Those of its population are among them.
    """
    names = {name for step in run.steps for name in step.charge.amounts}
    gates = standing_gates(source, dataset)
    return {
        name: _charge_of(gate, run) for name, gate in gates.items() if name in names
    }


def _charge_of(gate: Gate, run: FlowRun) -> RunCharge:
    """Return what a run did to an account."""
    total = gate.rule.zero()
    peaks = [total]
    for change in _changes_of(gate.id, run.steps, run.raised):
        total = Tally(tuple(a + b for a, b in zip(total.amounts, change, strict=True)))
        if not any(total.fits_within(peak) for peak in peaks):
            # None is below another.
            peaks = [*(p for p in peaks if not p.fits_within(total)), total]
    return RunCharge(gate=gate, spent=total, peaks=tuple(peaks))


def _changes_of(
    name: str, steps: Iterable[JournalCharge], raised: Iterable[Entry]
) -> Iterator[tuple[int, ...]]:
    """Yield by how much entries of a run changed what an account has used."""
    changes = list[tuple[int, tuple[int, ...]]]()
    for step in steps:
        held = step.held.get(name)
        if held is None:
            continue
        changes.append((step.number, held))
        if step.ended is not None:
            posted = step.posted[name]
            change = tuple(a - b for a, b in zip(posted, held, strict=True))
            changes.append((step.ended.number, change))
    yield from (change for _, change in sorted(changes))
    # What an operator added was admitted by no gate.
    for entry in raised:
        posting = read_postings(entry.postings).get(name)
        if posting is not None:
            yield posting[0]
