"""Charges of a dataset, and the charges of each run of a flow."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from dpflow.accounting.costs.base import Cost, cost_from_description
from dpflow.accounting.rules.tally import Tally
from dpflow.ledger.account_ids import Amounts
from dpflow.ledger.decisions.decision import negative
from dpflow.ledger.decisions.gates import Gate
from dpflow.ledger.tables.loaded import sum_amounts
from dpflow.ledger.tables.rows import Charge, Held, Term
from dpflow.ledger.views.accounts import standing_gates
from dpflow.ledger.views.reading import (
    Reading,
    Source,
    add_end,
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


@dataclass(slots=True)
class JournalCharge:
    """A charge of a run, as the journal of one of its datasets has it.

    Attributes:
        number: Number of the entry that made it.
        key: Its release key for people.
        at: The time when it was made or, until it is read, when it ended; a label.
        failed: True if the step failed.
        amounts: What it holds, by account; empty until it is read.
        end_number: Number of the entry that ended it; None while it is open.
        body: Facts of its request and of its end.
        posted: What its end settled, by account of the dataset and its population.
    """

    number: int
    id: str
    flow: str | None
    run: str | None
    key: str | None
    state: str
    at: str
    failed: bool
    amounts: Mapping[str, Held] = field(default_factory=dict)
    end_number: int | None = None
    body: dict[str, Any] = field(default_factory=dict)
    posted: dict[str, Amounts] = field(default_factory=dict)

    def add_cost(self, columns: tuple[Any, ...]) -> None:
        """Add what the charge cost, from the columns of `read_charge_lines`."""
        (self.at, _, self.end_number, text), postings = columns[:4], columns[4:6]
        charge = Charge.from_columns(columns[6:])
        request, self.amounts = describe_charge(charge), charge.amounts
        self.body = request if text is None else add_end(request, json.loads(text))
        for changes in map(read_postings, filter(None, postings)):
            self.posted |= {name: settled for name, (settled, _) in changes.items()}

    @property
    def cost(self) -> Cost:
        """The step's worst case.

        Raises:
            InvalidCost: If the mechanism is one that this process does not know.
        """
        return cost_from_description(self.body.get("cost") or {})


def read_charges(reading: Reading, dataset: str, after: int = 0) -> list[JournalCharge]:
    """Return the charges that later entries made, oldest first, without their costs."""
    where = {"dataset": dataset, "after": after, "failed": '%"outcome":"failed"%'}
    return [JournalCharge(*row) for row in reading.ask("read_run_charges", **where)]


def add_costs(
    reading: Reading, dataset: str, charges: Sequence[JournalCharge]
) -> Sequence[JournalCharge]:
    """Return charges of a dataset, with what they cost."""
    unread = {charge.number: charge for charge in charges if not charge.body}
    # Postings of the population come with them.
    *_, above = [dataset, *(term.book for term in reading.newest_of(dataset))]
    where, numbers = {"dataset": dataset, "population": above}, iter(unread)
    while page := [*islice(numbers, _PAGE)]:
        for number, *columns in reading.ask("read_charge_lines", **where, numbers=page):
            unread[number].add_cost(tuple(columns))
    return charges


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRun:
    """One run of a flow; a charge outside of any run counts as one.

    Attributes:
        charges: Charges of its steps, in order.
        is_whole: Whether its first entry was read, and it met no refusal anywhere.
    """

    charges: tuple[JournalCharge, ...]
    is_whole: bool

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
        return [charge for charge in self.charges if charge.state != "void"]

    @property
    def complete(self) -> bool:
        """Whether all of it was read, nothing was refused, and all ended well."""
        fine = all(step.state == "settled" and not step.failed for step in self.steps)
        return self.is_whole and fine


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
        term, key = reading.newest(dataset), ("runs", dataset, most)
        if term is not None and key not in reading.remembered:
            reading.remembered[key] = _read_runs(reading, dataset, term, most)
        runs: DatasetRuns | None = reading.remembered.get(key)
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
    runs = [
        FlowRun(
            charges=tuple(own),
            is_whole=own[0].number > sure and name not in reading.refused_runs,
        )
        for name, own in by_run.items()
    ]
    charged = tuple(run for run in runs if run.steps)
    result = DatasetRuns(dataset=dataset, term=term, runs=charged, older=older)
    newest = {run.flow: run for run in charged}
    examples = [run for flow in newest for run in result.examples(flow)]
    read = [*newest.values(), *examples]
    add_costs(reading, dataset, [charge for run in read for charge in run.charges])
    return result


def run_charges(source: Source, dataset: str, run: FlowRun) -> dict[str, RunCharge]:
    """Read what a run did to each account of a dataset's newest term, by its id.

    Those of its population are among them.
    """
    with open_reading(source) as reading:
        add_costs(reading, dataset, run.charges)
        gates = standing_gates(reading, dataset)
    names = {name for step in run.steps for name in step.amounts}
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
    changes, added = list[tuple[int, Amounts]](), list[Amounts]()
    for charge in run.charges:
        if (held := charge.amounts.get(name)) is None:
            continue
        if charge.state != "void":
            changes.append((charge.number, held.amount))
            if charge.end_number is not None:
                change = sum_amounts(charge.posted[name], negative(held.amount))
                changes.append((charge.end_number, change))
        # What an operator added was admitted by no gate.
        added += filter(None, [held.added])
    return [*(change for _, change in sorted(changes)), *added]
