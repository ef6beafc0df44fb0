"""Charges of a dataset, and the charges of each run of a flow."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from dpflow.accounting.costs.base import Cost, cost_from_description
from dpflow.accounting.rules.tally import Tally
from dpflow.ledger.account_ids import Amounts
from dpflow.ledger.decisions.decision import negative
from dpflow.ledger.decisions.gates import Gate
from dpflow.ledger.tables.loaded import sum_amounts
from dpflow.ledger.tables.rows import Charge, Entry, Term
from dpflow.ledger.views.accounts import standing_gates
from dpflow.ledger.views.reading import (
    Reading,
    Source,
    describe_charge,
    open_reading,
    read_postings,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCharge:
    """What a run did to one account.

    Attributes:
        gate: That of the account, as it stands.
        spent: All that it posted, and what it still holds.
        peaks: The sums of what it had posted and held, each of which was admitted on
            the way; none is below another.
    """

    gate: Gate
    spent: Tally
    peaks: tuple[Tally, ...]


#: Number of entries of a dataset's newest term that are read for its newest runs.
RECENT = 10_000
#: So many complete runs of a flow are read with what they cost.
LAST_RUNS = 5
#: Number of charges that are read together.
_PAGE = 1000


class Detail(NamedTuple):
    """What a charge cost, as the journal of one of its datasets has it.

    Attributes:
        at: The time when it was made, a label.
        end_number: Number of the entry that ended it; None while it is open.
        body: Facts of its request and of its end.
        posted: What its end settled, by account of the dataset and its population.
    """

    charge: Charge
    at: str
    writer: str
    end_number: int | None
    body: dict[str, Any]
    posted: Mapping[str, Amounts]

    @classmethod
    def from_columns(cls, columns: tuple[Any, ...]) -> Detail:
        """Read the columns of `read_charge_lines`."""
        (at, writer, number, text), postings = columns[1:5], columns[5:7]
        charge = Charge.from_columns(tuple(columns[7:]))
        body = describe_charge(charge)
        if number is not None:
            # The writer of its end may have no commit.
            body.pop("code", None)
            body |= json.loads(text)
        posted = dict[str, Amounts]()
        for changes in map(read_postings, filter(None, postings)):
            posted |= {name: settled for name, (settled, _) in changes.items()}
        return cls(charge, at, writer, number, body, posted)


def read_details(
    reading: Reading, dataset: str, numbers: Iterable[int]
) -> dict[int, Detail]:
    """Return what charges cost, by the numbers of the entries that made them."""
    details, wanted = dict[int, Detail](), iter(numbers)
    # Postings of the population come with them.
    *_, above = [dataset, *(term.book for term in reading.newest_of(dataset))]
    where = {"dataset": dataset, "population": above}
    while page := [*islice(wanted, _PAGE)]:
        for columns in reading.ask("read_charge_lines", **where, numbers=page):
            details[columns[0]] = Detail.from_columns(columns)
    return details


def read_charges(reading: Reading, dataset: str) -> list[Detail]:
    """Return all charges of a dataset, oldest first."""
    failed = '%"outcome":"failed"%'
    where = {"dataset": dataset, "after": 0, "failed": failed}
    numbers = [columns[0] for columns in reading.ask("read_run_charges", **where)]
    details = read_details(reading, dataset, numbers)
    return [details[number] for number in numbers]


@dataclass(slots=True)
class JournalCharge:
    """A charge of a run, as the journal of one of its datasets has it.

    Attributes:
        number: Number of the entry that made it.
        key: Its release key for people.
        end: Kind of the entry that ended it; None while it is open.
        ended_at: The time of that entry or, while it is open, of the first; a label.
        failed: True if the step failed.
        detail: What it cost; None until its run is read.
    """

    number: int
    id: str
    flow: str | None
    run: str | None
    key: str | None
    end: str | None
    ended_at: str
    failed: bool
    detail: Detail | None = None

    @property
    def at(self) -> str:
        """The time when it was made or, of an older run, when it ended; a label."""
        return str(self.detail.at if self.detail else self.ended_at)

    @property
    def read(self) -> Detail:
        """What it cost."""
        assert self.detail is not None
        return self.detail

    @property
    def body(self) -> dict[str, Any]:
        """Facts of its request and of its end."""
        return self.read.body

    @property
    def cost(self) -> Cost:
        """The step's worst case.

        Raises:
            InvalidCost: If the mechanism is one that this process does not know.
        """
        return cost_from_description(self.body.get("cost") or {})


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
        deployment: str | None = self.charges[0].body.get("deployment")
        return deployment

    @property
    def keys(self) -> list[str]:
        """The release keys of its steps."""
        return [step.key for step in self.steps if step.key]

    @property
    def steps(self) -> list[JournalCharge]:
        """The steps that were charged, in order."""
        return [charge for charge in self.charges if charge.end != "void"]

    @property
    def complete(self) -> bool:
        """Whether all of it was read, nothing was refused, and all ended well."""
        fine = all(step.end == "settle" and not step.failed for step in self.steps)
        return self.begun and fine and not self.refused


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

    def examples(self, flow: str | None) -> list[FlowRun]:
        """Return the last completed runs of a flow, or its last one, newest first."""
        own = self.of_flow(flow)
        completed = [run for run in own if run.complete][-LAST_RUNS:]
        return completed[::-1] or own[-1:]


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
        key = "runs", dataset, most
        if key not in reading.remembered:
            reading.remembered[key] = _read_runs(reading, dataset, term, most)
        runs: DatasetRuns = reading.remembered[key]
        return runs


def _read_runs(reading: Reading, dataset: str, term: Term, most: int) -> DatasetRuns:
    head, opened = reading.rows.book(dataset).number, reading.find_openings(dataset)[-1]
    start = max(opened, head - most)
    older = start > opened
    # What was first seen in the older half may have begun before it.
    sure = start + (head - start) // 2 if older else 0
    by_run = defaultdict[str, list[JournalCharge]](list)
    where = {"dataset": dataset, "after": start, "failed": '%"outcome":"failed"%'}
    for columns in reading.ask("read_run_charges", **where):
        charge = JournalCharge(*columns)
        by_run[charge.run or charge.id].append(charge)
    raised = defaultdict[str, list[Entry]](list)
    for newest_term in reading.newest_of(dataset):
        for entry in reading.decisions(newest_term.book):
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
    result = DatasetRuns(dataset=dataset, term=term, runs=charged, older=older)
    newest = {run.flow: run for run in charged}
    examples = [run for flow in newest for run in result.examples(flow)]
    load_details(reading, dataset, [*newest.values(), *examples])
    return result


def load_details(reading: Reading, dataset: str, runs: Iterable[FlowRun]) -> None:
    """Read what the charges of runs cost, those that were not read yet."""
    charges = {c.number: c for run in runs for c in run.charges if c.detail is None}
    details = read_details(reading, dataset, charges)
    for number, charge in charges.items():
        charge.detail = details[number]


def run_charges(source: Source, dataset: str, run: FlowRun) -> dict[str, RunCharge]:
    """Read what a run did to each account of a dataset's newest term, by its id.

    Those of its population are among them.
    """
    with open_reading(source) as reading:
        load_details(reading, dataset, [run])
        gates = standing_gates(reading, dataset)
    names = {name for step in run.steps for name in step.read.charge.amounts}
    return {
        name: _charge_of(gate, run) for name, gate in gates.items() if name in names
    }


def _charge_of(gate: Gate, run: FlowRun) -> RunCharge:
    """Return what a run did to an account."""
    total = gate.rule.zero()
    peaks = [total]
    for change in _changes_of(gate.id, run):
        total = Tally(sum_amounts(total.amounts, change))
        if not any(total.fits_within(peak) for peak in peaks):
            # None is below another.
            peaks = [*(p for p in peaks if not p.fits_within(total)), total]
    return RunCharge(gate=gate, spent=total, peaks=tuple(peaks))


def _changes_of(name: str, run: FlowRun) -> list[Amounts]:
    """Return by how much entries of a run changed what an account has used."""
    changes = list[tuple[int, Amounts]]()
    for step in run.steps:
        detail = step.read
        held = detail.charge.amounts.get(name)
        if held is not None:
            changes.append((step.number, held.amount))
        if held is not None and detail.end_number is not None:
            change = sum_amounts(detail.posted[name], negative(held.amount))
            changes.append((detail.end_number, change))
    # What an operator added was admitted by no gate.
    raised = (read_postings(entry.postings).get(name) for entry in run.raised)
    added = [posting[0] for posting in raised if posting is not None]
    return [*(change for _, change in sorted(changes)), *added]
