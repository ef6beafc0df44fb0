"""What each run of a flow charged: the journal of a dataset, by run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dpflow.accounting.costs import Cost, cost_from_description
from dpflow.accounting.tally import Tally
from dpflow.accounting.theorem import Outcome
from dpflow.ledger.account import Account, account_from_row
from dpflow.ledger.database import Row, Session
from dpflow.ledger.kernel import Ledger
from dpflow.ledger.pages import entries
from dpflow.ledger.terms import Term, newest_term
from dpflow.policy_population import PREFIX

#: So many entries of a dataset's journal tell what its next runs will cost.
RECENT = 20_000
_ENDS = ("settle", "forfeit", "void")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStep:
    """One step of a run.

    Attributes:
        reservation: Id of its charge.
        description: What was reserved, as the journal keeps it.
        reported: How it came out, if it told: sub-steps that ran, or a cell.
        key: Its release key for people, or "".
        failed: Whether its body ended by an exception.
        ended: Whether the charge is settled or forfeited.
        amended: Whether an operator charged more for it.
    """

    reservation: str
    name: str
    description: Mapping[str, Any]
    reported: Outcome | None
    key: str
    failed: bool
    ended: bool = False
    amended: bool = False

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
        spent: All that it posted, and what it still holds.
        peaks: The sums of what it had posted and held, each of which was admitted on
            the way; none is below another.
    """

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
        deployment: Id of the deployment that it is a run of, or None.
    """

    flow: str | None
    run: str | None
    at: str
    steps: tuple[RunStep, ...]
    complete: bool
    preflights: tuple[str, ...] = ()
    deployment: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetRuns:
    """The newest term of a dataset, its accounts as they stand, and its runs.

    Attributes:
        accounts: By id, those of its population included.
        runs: Oldest first.
        older: Whether the journal has older entries, which were not read.
    """

    dataset: str
    term: Term
    accounts: Mapping[str, Account]
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
    with ledger.database.read() as session:
        term = newest_term(session, dataset)
        if term is None:
            return None
        accounts = _accounts(session, dataset, term.number)
        population = term.pinned.get("population")
        if population is not None:
            place = f"{PREFIX}{population}"
            above = newest_term(session, place)
            if above is not None:
                accounts |= _accounts(session, place, above.number)
        refused = {row["run"] for row in session.rows("refused_runs")}
    last = accounts[term.account].seq
    start = 0 if most is None else max(last - most, 0)
    # What was first seen in the older half may have begun before it.
    sure = start + (last - start) // 2 if start else 0
    facts = _facts(entries(ledger.database, term.account, last, above=start), sure)
    return DatasetRuns(
        dataset=dataset,
        term=term,
        accounts=accounts,
        runs=tuple(each.run(refused) for each in facts if each.steps),
        older=start > 0,
    )


def run_charges(ledger: Ledger, run: FlowRun) -> dict[str, RunCharge]:
    """Read what a run did to each account, by its id."""
    with ledger.database.read() as session:
        rows = [row for step in run.steps for row in _postings(session, step)]
        for name in run.preflights:
            rows += session.rows("postings", reservation=name)
    traces: dict[str, _Trace] = {}
    for row in sorted(rows, key=lambda row: (row["account"], row["seq"])):
        amount = Tally.from_text(row["amount"])
        if row["account"] not in traces:
            traces[row["account"]] = _Trace(amount - amount)
        traces[row["account"]].add(row, amount)
    return {
        name: RunCharge(spent=trace.total, peaks=tuple(trace.peaks))
        for name, trace in traces.items()
    }


def _accounts(session: Session, dataset: str, term: int) -> dict[str, Account]:
    rows = session.rows("list_accounts", dataset=dataset)
    return {row["id"]: account_from_row(row) for row in rows if row["term"] == term}


def _is(row: Row, *kinds: str) -> bool:
    return row["kind"] in kinds


@dataclass(slots=True)
class _Facts:
    """What the journal of the whole dataset says of a run."""

    flow: str | None
    id: str | None
    at: str
    whole: bool
    deployment: str | None = None
    steps: dict[str, RunStep] = field(default_factory=dict)
    #: Whether each of its preflights was sealed.
    preflights: dict[str, bool] = field(default_factory=dict)

    def run(self, refused: set[str]) -> FlowRun:
        steps = tuple(self.steps.values())
        return FlowRun(
            flow=self.flow,
            run=self.id,
            at=self.at,
            steps=steps,
            preflights=tuple(self.preflights),
            deployment=self.deployment,
            complete=(
                self.whole
                and all(self.preflights.values())
                and self.id not in refused
                and all(step.ended and not step.failed for step in steps)
            ),
        )


def _facts(rows: Iterable[Row], sure: int) -> Iterable[_Facts]:
    """Collect the runs; every charge of a dataset posts to its own account."""
    found: dict[str, _Facts] = {}
    begun: dict[str, _Facts] = {}
    for row in rows:
        reservation = row["reservation"]
        if not _is(row, "reserve", "amend", "seal", *_ENDS) or not reservation:
            continue
        key = row["run"] or reservation
        if _is(row, "reserve"):
            body = json.loads(row["body"])
            if key not in found:
                whole = row["seq"] > sure
                found[key] = _Facts(
                    flow=body.get("flow"),
                    id=row["run"],
                    at=row["at"],
                    whole=whole,
                    deployment=body.get("deployment"),
                )
            if body.get("covers") is None:
                found[key].steps[reservation] = _step(reservation, body)
            else:
                # A preflight: its draws are charged as the steps that drew.
                found[key].preflights[reservation] = False
            begun[reservation] = found[key]
        elif reservation in begun or key in found:
            # What an operator ends or amends does not name the run.
            _end(begun.get(reservation) or found[key], row)
    return found.values()


def _end(facts: _Facts, row: Row) -> None:
    reservation = row["reservation"]
    step = facts.steps.get(reservation)
    if _is(row, "seal"):
        facts.preflights[reservation] = True
        if json.loads(row["body"]).get("outcome") == "failed":
            facts.whole = False
    elif step is None:
        # It began before what was read.
        facts.whole = False
    elif _is(row, "void"):
        del facts.steps[reservation]
    elif _is(row, "amend"):
        facts.steps[reservation] = replace(step, amended=True)
    elif _is(row, "settle"):
        body = json.loads(row["body"])
        facts.steps[reservation] = _step(reservation, body, ended=True)
    else:
        facts.steps[reservation] = replace(step, ended=True)


def _step(reservation: str, body: Mapping[str, Any], *, ended: bool = False) -> RunStep:
    return RunStep(
        reservation=reservation,
        name=str(body.get("step") or "-"),
        description=body.get("cost") or {},
        reported=body.get("reported"),
        key=str(body.get("release_key") or ""),
        failed=body.get("outcome") == "failed",
        ended=ended,
    )


def _postings(session: Session, step: RunStep) -> list[Row]:
    """Return what a charge did to each account, in any order."""
    rows = session.rows("postings", reservation=step.reservation)
    if step.amended:
        for account in {row["account"] for row in rows}:
            where = {"account": account, "reservation": step.reservation}
            # They come after its end, whenever that was.
            rows += [
                {**row, **where, "kind": "amend", "seq": float("inf")}
                for row in session.rows("amendments_of_reservation", **where)
            ]
    return rows


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

    def add(self, row: Row, amount: Tally) -> None:
        """Follow one entry."""
        reservation = row["reservation"]
        if _is(row, "reserve"):
            self.held[reservation] = amount
        elif _is(row, "draw"):
            if reservation in self.held:
                self.held[reservation] = self.held[reservation] - amount
        else:
            self.held.pop(reservation, None)
            if not _is(row, "void", "seal"):
                self.posted = self.posted + amount
        self._note(self.total)

    def _note(self, total: Tally) -> None:
        if not any(total.fits_within(peak) for peak in self.peaks):
            kept = [peak for peak in self.peaks if not peak.fits_within(total)]
            self.peaks = [*kept, total]
