"""What each run of a flow charged: the journal of a dataset, by run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from dpflow.accounting.costs.base import Cost, Outcome, cost_from_description
from dpflow.accounting.rules.tally import Tally
from dpflow.ledger.decision.gates import Gate
from dpflow.ledger.entry import Entry
from dpflow.ledger.journal import KINDS
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.model import Keys, Reach, State
from dpflow.ledger.rows import Term, name_of_term
from dpflow.ledger.storage.transaction import Reading
from dpflow.ledger.views.accounts import standing_gates
from dpflow.ledger.views.charge_entries import drawn_from, openings
from dpflow.ledger.views.unusual import RECENT


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStep:
    """One step of a run.

    Attributes:
        reservation: Id of its charge.
        description: What was reserved, as the journal keeps it.
        reported: How it came out, if it told: sub-steps that ran, or a cell.
        datasets: What it read.
        partitions: Which parts of a divided dataset it read.
        key: Its release key for people, or "".
        failed: Whether its body ended by an exception.
        ended: Whether the charge is settled or forfeited.
    """

    reservation: str
    name: str
    description: Mapping[str, Any]
    reported: Outcome | None
    key: str
    failed: bool
    datasets: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    ended: bool = False

    @property
    def cost(self) -> Cost:
        """The step's worst case.

        Raises:
            InvalidCost: If the mechanism is one that this process does not know.
        """
        return cost_from_description(self.description)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRun:
    """One run of a flow; a charge outside of any run counts as one.

    Attributes:
        flow: None outside of any flow that was named.
        run: Id of the flow run, or None.
        at: When its first charge was reserved; a label.
        steps: The steps that were charged, in order.
        complete: Whether all its steps settled, and none failed or was refused.
        preflights: Reservations that held the run, or its rest, before its steps.
        lent: Charges of runs within it that drew from its preflights.
        deployment: Id of the deployment that it is a run of, or None.
    """

    flow: str | None
    run: str | None
    at: str
    steps: tuple[RunStep, ...]
    complete: bool
    preflights: tuple[str, ...] = ()
    lent: tuple[str, ...] = ()
    deployment: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetRuns:
    """The newest term of a dataset, its accounts as they stand, and its runs.

    Attributes:
        runs: Oldest first.
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
    ledger: Ledger, dataset: str, *, most: int | None = RECENT
) -> DatasetRuns | None:
    """Read the runs of a dataset's newest term; None if it has no term yet.

    Args:
        ledger: The ledger to read.
        dataset: The dataset.
        most: Read so many entries of its journal, the newest; None: all.
    """
    with ledger.storage.read() as reading:
        state = reading.load(Keys(books=(dataset,)))
        term = state.newest(dataset)
        if term is None:
            return None
        last = state.book(dataset).number
        first = openings(reading, dataset)[term.number].number
        start = first if most is None else max(last - most, first)
        # What was first seen in the older half may have begun before it.
        sure = start + (last - start) // 2 if start > first else 0
        facts = _facts(_of_term(reading, term, start), sure)
        refused = _refused(reading, facts)
    return DatasetRuns(
        dataset=dataset,
        term=term,
        runs=tuple(each.run(refused) for each in facts if each.steps),
        older=start > first,
    )


def _of_term(reading: Reading, term: Term, start: int) -> Iterator[Entry]:
    """Yield the entries after a number that move accounts of a term, oldest first."""
    number = str(term.number)
    for entry in reading.after(term.book, start):
        if any(name_of_term(account) == number for account in entry.postings):
            yield entry


def _refused(reading: Reading, facts: Iterable[_RunFacts]) -> set[str]:
    """Return those runs that met a refusal, on whatever dataset."""
    names = tuple({each.id for each in facts if each.id is not None})
    state = reading.load(Keys(runs=names, reach=Reach.ENTRIES))
    return {name for name in names if state.run(name).refused}


@dataclass(slots=True)
class _RunFacts:
    """What the journal of a whole dataset says of a run.

    Attributes:
        whole: Whether all of it was read, and none of it was lost.
        last: When its newest entry was written; a label.
    """

    flow: str | None
    id: str | None
    at: str
    whole: bool
    last: str = ""
    deployment: str | None = None
    steps: dict[str, RunStep] = field(default_factory=dict)
    #: Whether each of its preflights was sealed.
    preflights: dict[str, bool] = field(default_factory=dict)
    lent: list[str] = field(default_factory=list)

    def run(self, refused: set[str]) -> FlowRun:
        """Return the run."""
        steps = tuple(self.steps.values())
        return FlowRun(
            flow=self.flow,
            run=self.id,
            at=self.at,
            steps=steps,
            preflights=tuple(self.preflights),
            lent=tuple(self.lent),
            deployment=self.deployment,
            complete=(
                self.whole
                and all(self.preflights.values())
                and self.id not in refused
                and all(step.ended and not step.failed for step in steps)
            ),
        )

    def begin(self, charge: str, body: Mapping[str, Any]) -> None:
        """Add a step, or a preflight: its draws are charged as the steps that drew."""
        if body.get("covers") is not None:
            self.preflights[charge] = False
            return
        self.steps[charge] = RunStep(
            reservation=charge,
            name=str(body.get("step") or "-"),
            description=body.get("cost") or {},
            reported=None,
            key=str(body.get("release_key") or ""),
            failed=False,
            datasets=tuple(body.get("datasets") or ()),
            partitions=tuple(body.get("partitions") or ()),
        )

    def end(self, charge: str, kind: str, body: Mapping[str, Any]) -> None:
        """Note how a step or a preflight ended."""
        step = self.steps.get(charge)
        # Nobody knows what became of it.
        self.whole = self.whole and kind != "forfeit"
        if kind == "seal":
            self.preflights[charge] = True
            self.whole = self.whole and body.get("outcome") != "failed"
        elif step is not None and kind == "void":
            del self.steps[charge]
        elif step is not None:
            self.steps[charge] = replace(
                step,
                ended=True,
                reported=body.get("reported"),
                failed=body.get("outcome") == "failed",
            )


def _facts(entries: Iterable[Entry], sure: int) -> list[_RunFacts]:
    """Collect the runs; every charge of a dataset stands in its book."""
    found: dict[str, _RunFacts] = {}
    begun: dict[str, _RunFacts] = {}
    for entry in entries:
        charge, body = entry.charge, entry.body
        if charge is not None and entry.kind == "reserve":
            facts = found.setdefault(
                body.get("flow_run") or charge,
                _RunFacts(
                    flow=body.get("flow"),
                    id=body.get("flow_run"),
                    at=entry.at,
                    whole=entry.number > sure,
                    deployment=body.get("deployment"),
                ),
            )
            facts.begin(charge, body)
            facts.last = max(facts.last, entry.at)
            begun[charge] = facts
            around = begun.get(drawn_from(body) or "")
            if around is not None and around is not facts:
                around.lent.append(charge)
        elif charge in begun and KINDS[entry.kind].ends:
            facts = begun[charge]
            facts.end(charge, entry.kind, body)
            facts.last = max(facts.last, entry.at)
    return list(found.values())


# The last run of a flow


def last_costs(ledger: Ledger, flow: str, *, but: str) -> list[RunStep]:
    """Return the steps of a flow's last completed run; none if there was no such run.

    A run is completed if it met no refusal, every charge was settled, and a step that
    failed was run again to its end. A release that it replayed cost nothing.

    Args:
        ledger: The ledger to read.
        flow: Name of the flow, as policies name it.
        but: Id of a run to pass over: the one that asks.
    """
    runs: dict[str, list[_RunFacts]] = {}
    with ledger.storage.read() as reading:
        for book in reading.books():
            entries = list(islice(reading.newest(book), RECENT))[::-1]
            cut = bool(entries) and entries[0].number > 1
            # What was first seen in the older half may have begun before it.
            sure = entries[len(entries) // 2].number if cut else 0
            for run in _facts(entries, sure):
                if run.flow == flow and run.id not in (None, but):
                    runs.setdefault(str(run.id), []).append(run)
        refused = _refused(reading, [each[0] for each in runs.values()])
    ran = [parts for name, parts in runs.items() if name not in refused]
    for parts in sorted(ran, key=lambda each: max(p.last for p in each), reverse=True):
        steps = {name: step for part in parts for name, step in part.steps.items()}
        done = [step for step in steps.values() if step.ended and not step.failed]
        failed = {step.name for step in steps.values() if step.failed}
        if (
            all(part.whole and all(part.preflights.values()) for part in parts)
            and all(step.ended for step in steps.values())
            and failed <= {step.name for step in done}
            and done
        ):
            return done
    return []


# What one run did


def run_charges(ledger: Ledger, dataset: str, run: FlowRun) -> dict[str, RunCharge]:
    """Read what a run did to each account of a dataset's newest term, by its id.

    Those of its population are among them.
    """
    names = (*(step.reservation for step in run.steps), *run.preflights)
    with ledger.storage.read() as reading:
        state = reading.load(Keys(charges=(*names, *run.lent), reach=Reach.ENTRIES))
    entries = [*_entries(state, names, ends=True)]
    # What other runs drew of its preflights is theirs when it ends.
    entries += _entries(state, run.lent, ends=False)
    traces: dict[str, _Trace] = {}
    for entry in sorted(entries, key=lambda each: each[:2]):
        for account, posting in entry.postings.items():
            zero = Tally((0,) * len(posting.amount))
            trace = traces.setdefault(account, _Trace(zero))
            trace.add(entry, Tally(posting.amount), own=entry.charge in names)
    for charge in filter(None, map(state.charge, names)):
        # Raised by hand, after its end whenever that was.
        for account, amount in charge.added.items():
            traces[account].post(Tally(amount))
    gates = standing_gates(ledger, dataset, traces.keys())
    return {
        name: RunCharge(gate=gates[name], spent=trace.total, peaks=tuple(trace.peaks))
        for name, trace in traces.items()
        if name in gates
    }


def _entries(state: State, charges: Iterable[str], *, ends: bool) -> Iterator[Entry]:
    """Yield the entries that began charges and, if so said, ended them."""
    for name in charges:
        charge = state.charge(name)
        if charge is None:
            continue
        for book in charge.places:
            yield state.made(charge, book)
            ended = state.ended(charge, book) if ends else None
            if ended is not None:
                yield ended


@dataclass(slots=True)
class _Trace:
    """What one run did to one account, entry by entry."""

    posted: Tally
    held: dict[str, Tally] = field(default_factory=dict)
    peaks: list[Tally] = field(default_factory=list)

    @property
    def total(self) -> Tally:
        """All that is posted and held."""
        return sum(self.held.values(), self.posted)

    def add(self, entry: Entry, amount: Tally, *, own: bool) -> None:
        """Follow one entry, or what another run draws of this one's preflight."""
        charge = str(entry.charge)
        if entry.kind == "reserve":
            drawn = drawn_from(entry.body) or ""
            if drawn in self.held:
                self.held[drawn] = self.held[drawn] - amount
            if own:
                self.held[charge] = amount
        else:
            self.held.pop(charge, None)
            if KINDS[entry.kind].settles:
                self.posted = self.posted + amount
        self._note(self.total)

    def post(self, amount: Tally) -> None:
        """Add what was charged by hand."""
        self.posted = self.posted + amount
        self._note(self.total)

    def _note(self, total: Tally) -> None:
        if not any(total.fits_within(peak) for peak in self.peaks):
            kept = [peak for peak in self.peaks if not peak.fits_within(total)]
            self.peaks = [*kept, total]
