"""What each run of a flow charged: the journal of a dataset, by run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dpflow.accounting.costs.base import Cost, Outcome, cost_from_description
from dpflow.accounting.rules.tally import Tally
from dpflow.ledger.decision.gates import Gate
from dpflow.ledger.journal import KINDS
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.rows import Term, is_within
from dpflow.ledger.storage.tables import Reading
from dpflow.ledger.views.accounts import gates_by_name, governing, newest_wholes
from dpflow.ledger.views.charges import (
    JournalCharge,
    charges,
    drawn_from,
    read_charges,
    window,
)
from dpflow.ledger.views.spending import RECENT


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
        last: When its newest entry was written; a label.
        steps: The steps that were charged, in order.
        whole: Whether all of it was read, and nothing of it failed as a whole, was
            lost or is open but its steps.
        complete: Whether it is whole, all its steps settled, and none failed or was
            refused.
        preflights: Reservations that held the run, or its rest, before its steps.
        lent: Charges of runs within it that drew from its preflights.
        deployment: Id of the deployment that it is a run of, or None.
    """

    flow: str | None
    run: str | None
    at: str
    last: str
    steps: tuple[RunStep, ...]
    whole: bool
    complete: bool = False
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
    ledger: Ledger, dataset: str, *, most: int = RECENT
) -> DatasetRuns | None:
    """Read the runs of a dataset's newest term; None if it has no term yet.

    Args:
        ledger: The ledger to read.
        dataset: The dataset.
        most: Read so many entries of its term, the newest.
    """
    with ledger.storage.read() as reading:
        term = governing(reading, dataset)
        if term is None:
            return None
        runs, older = _runs(reading, term.whole, most)
        refused = _refused(reading, runs)
    found = (
        replace(run, complete=run.whole and run.run not in refused and _done(run))
        for run in runs
        if run.steps
    )
    return DatasetRuns(dataset=dataset, term=term, runs=tuple(found), older=older)


def _done(run: FlowRun) -> bool:
    return all(step.ended and not step.failed for step in run.steps)


def _runs(
    reading: Reading, whole: str, most: int = RECENT
) -> tuple[list[FlowRun], bool]:
    """Return the runs in the newest entries of a term, and whether there are older.

    Args:
        reading: The ledger.
        whole: Id of the account of the term's whole dataset.
        most: Read so many entries, the newest.
    """
    start, older = window(reading, whole, most)
    # What was first seen in the older half may have begun before it.
    sure = start + (reading.head()[0] - start) // 2 if older else 0
    parts: dict[str, list[JournalCharge]] = {}
    for charge in sorted(charges(reading, whole, start), key=_number):
        made = charge.made
        if made.number > start and not KINDS[charge.last.kind].by_hand:
            name = made.body.get("flow_run") or made.charge
            parts.setdefault(str(name), []).append(charge)
    lent: dict[str, list[str]] = {}
    for own in parts.values():
        for charge in own:
            around = drawn_from(charge.made.body)
            if around and around not in {each.made.charge for each in own}:
                lent.setdefault(around, []).append(str(charge.made.charge))
    runs = [_run(own, lent, whole=_number(own[0]) > sure) for own in parts.values()]
    return runs, older


def _number(charge: JournalCharge) -> int:
    return charge.made.number


def _run(
    own: list[JournalCharge], lent: Mapping[str, list[str]], *, whole: bool
) -> FlowRun:
    first = own[0].made
    held = [each for each in own if each.made.body.get("covers") is not None]
    preflights = tuple(str(each.made.charge) for each in held)
    lost = any(each.last.kind == "forfeit" for each in own)
    sealed = all(
        each.last.kind == "seal" and each.last.body.get("outcome") != "failed"
        for each in held
    )
    return FlowRun(
        flow=first.body.get("flow"),
        run=first.body.get("flow_run"),
        at=first.at,
        last=max(entry.at for each in own for entry in (each.made, each.last)),
        steps=tuple(_step(e) for e in own if e not in held and e.last.kind != "void"),
        whole=whole and sealed and not lost,
        preflights=preflights,
        lent=tuple(name for each in preflights for name in lent.get(each, ())),
        deployment=first.body.get("deployment"),
    )


def _step(charge: JournalCharge) -> RunStep:
    body, end = charge.made.body, charge.ended.body if charge.ended else {}
    return RunStep(
        reservation=str(charge.made.charge),
        name=str(body.get("step") or "-"),
        description=body.get("cost") or {},
        reported=end.get("reported"),
        key=str(body.get("release_key") or ""),
        failed=end.get("outcome") == "failed",
        datasets=tuple(body.get("datasets") or ()),
        partitions=tuple(body.get("partitions") or ()),
        ended=charge.ended is not None,
    )


def _refused(reading: Reading, runs: Iterable[FlowRun]) -> set[str]:
    """Return those runs that met a refusal, on whatever dataset."""
    names = {run.run for run in runs if run.run is not None}
    state = reading.load(lambda _: [f"run/{name}" for name in names])
    return {name for name in names if state.run(name).refusals}


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
    runs: dict[str, list[FlowRun]] = {}
    with ledger.storage.read() as reading:
        for term in reading.names("term/"):
            for run in _runs(reading, term.removeprefix("term/"))[0]:
                if run.flow == flow and run.run not in (None, but):
                    runs.setdefault(str(run.run), []).append(run)
        refused = _refused(reading, [each[0] for each in runs.values()])
    ran = [parts for name, parts in runs.items() if name not in refused]
    for parts in sorted(ran, key=lambda each: max(p.last for p in each), reverse=True):
        steps = {step.reservation: step for part in parts for step in part.steps}
        done = [step for step in steps.values() if step.ended and not step.failed]
        failed = {step.name for step in steps.values() if step.failed}
        if (
            all(part.whole for part in parts)
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
    names = [*(step.reservation for step in run.steps), *run.preflights]
    with ledger.storage.read() as reading:
        state = read_charges(reading, [*names, *run.lent])
    # What other runs drew of its preflights is theirs when it ends.
    entries = [state.made[name] for name in (*names, *run.lent)]
    entries += [state.ends[name] for name in names if name in state.ends]
    totals: dict[str, Tally] = {}
    peaks: dict[str, list[Tally]] = {}
    held: dict[tuple[str, str], Tally] = {}

    def add(account: str, more: Tally, less: Tally) -> None:
        total = totals[account] = totals.get(account, more.times(0)) + more - less
        peak = peaks.setdefault(account, [])
        if not any(total.fits_within(each) for each in peak):
            peak[:] = [*(each for each in peak if not each.fits_within(total)), total]

    for entry in sorted(entries, key=lambda each: each.number):
        charge, kind = entry.charge or "", KINDS[entry.kind]
        for account, posted in entry.amounts.items():
            amount = Tally(posted)
            more = less = amount.times(0)
            around = drawn_from(entry.body), account
            if kind.ends:
                less = held.pop((charge, account), less)
                more = amount if kind.settles else more
            elif around in held:
                held[around], less = held[around] - amount, amount
            if not kind.ends and charge in names:
                held[charge, account] = more = amount
            add(account, more, less)
    for each in filter(None, map(state.charge, names)):
        # Raised by hand, after its end whenever that was.
        for account, added in each.added.items():
            add(account, Tally(added), Tally(added).times(0))
    with ledger.storage.read() as reading:
        wholes = newest_wholes(reading, dataset)
        own = [name for name in totals if any(is_within(name, each) for each in wholes)]
        gates = gates_by_name(reading, own)
    return {
        name: RunCharge(gate=gate, spent=totals[name], peaks=tuple(peaks[name]))
        for name, gate in gates.items()
    }
