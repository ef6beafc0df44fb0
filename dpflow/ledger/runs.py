"""What each run of a flow charged: the journal of a dataset, by run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpflow.accounting.costs import Cost, cost_from_description
from dpflow.accounting.tally import Tally
from dpflow.accounting.theorem import Outcome
from dpflow.ledger.account import Account, account_from_row
from dpflow.ledger.database import Row, Session
from dpflow.ledger.kernel import Ledger
from dpflow.ledger.terms import Term, newest_term
from dpflow.policy_population import PREFIX

#: So many entries of each account are read, the newest.
_RECENT = 5000
_POSTED = ("settle", "forfeit", "amend")
#: What ends a reservation without a charge of its own: the draws of a preflight are
#: charged as the steps that drew.
_RETURNED = ("void", "seal")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStep:
    """One step of a run.

    Attributes:
        description: What was reserved, as the journal keeps it.
        reported: How it came out, if it told: sub-steps that ran, or a cell.
        key: Its release key for people, or "".
        failed: Whether its body ended by an exception.
    """

    name: str
    description: Mapping[str, Any]
    reported: Outcome | None
    key: str
    failed: bool

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
        charges: What it did to each account of the dataset and its population.
        complete: Whether all its steps settled, and none failed or was refused.
    """

    flow: str | None
    run: str | None
    at: str
    steps: tuple[RunStep, ...]
    charges: Mapping[str, RunCharge]
    complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetRuns:
    """The newest term of a dataset, its accounts as they stand, and its runs.

    Attributes:
        accounts: By id, those of its population included.
        runs: Oldest first.
    """

    dataset: str
    term: Term
    accounts: Mapping[str, Account]
    runs: tuple[FlowRun, ...]

    def of_flow(self, flow: str | None) -> list[FlowRun]:
        """Return the runs of one flow, oldest first."""
        return [run for run in self.runs if run.flow == flow]


def dataset_runs(ledger: Ledger, dataset: str) -> DatasetRuns | None:
    """Read the runs of a dataset's newest term; None if it has no term yet."""
    with ledger.database.read() as session:
        term = newest_term(session, dataset)
        if term is None:
            return None
        own = _accounts(session, dataset, term.number)
        population = term.pinned.get("population")
        others: dict[str, Account] = {}
        if population is not None:
            place = f"{PREFIX}{population}"
            above = newest_term(session, place)
            if above is not None:
                others = _accounts(session, place, above.number)
        accounts = own | others
        journals = {name: _recent(session, a) for name, a in accounts.items()}
    facts = _facts(journals[term.account])
    traces = {
        name: _traces(rows, accounts[name].rule.zero())
        for name, rows in journals.items()
    }
    refused = {
        _key(row) for rows in journals.values() for row in rows if _is(row, "refuse")
    }
    runs = tuple(_run(key, each, traces, refused) for key, each in facts.items())
    return DatasetRuns(dataset=dataset, term=term, accounts=accounts, runs=runs)


def _accounts(session: Session, dataset: str, term: int) -> dict[str, Account]:
    rows = session.rows("list_accounts", dataset=dataset)
    return {row["id"]: account_from_row(row) for row in rows if row["term"] == term}


def _recent(session: Session, account: Account) -> Sequence[Row]:
    above = max(account.seq - _RECENT, 0)
    return session.rows("journal_after", account=account.id, above=above, limit=_RECENT)


def _is(row: Row, *kinds: str) -> bool:
    return row["kind"] in kinds


def _key(row: Row) -> str:
    """Return what the charges of one run have in common."""
    return row["run"] or row["reservation"] or ""


@dataclass(slots=True)
class _Facts:
    """What the journal of the whole dataset says of a run."""

    flow: str | None
    run: str | None
    at: str
    steps: dict[str, RunStep] = field(default_factory=dict)
    whole: bool = True


def _facts(rows: Sequence[Row]) -> dict[str, _Facts]:
    """Collect the runs; every charge of a dataset posts to its own account."""
    found: dict[str, _Facts] = {}
    for row in rows:
        if not _is(row, "reserve", *_RETURNED, *_POSTED) or not row["reservation"]:
            continue
        key, reservation = _key(row), row["reservation"]
        body = json.loads(row["body"])
        if _is(row, "reserve"):
            facts = found.setdefault(
                key, _Facts(body.get("flow"), row["run"], row["at"])
            )
            facts.steps[reservation] = _step(body)
        elif key not in found or reservation not in found[key].steps:
            # It began before what was read.
            if key in found:
                found[key].whole = False
        elif _is(row, *_RETURNED):
            del found[key].steps[reservation]
        elif _is(row, "settle"):
            found[key].steps[reservation] = _step(body)
    return {key: facts for key, facts in found.items() if facts.steps}


def _step(body: Mapping[str, Any]) -> RunStep:
    return RunStep(
        name=str(body.get("step") or "-"),
        description=body.get("cost") or {},
        reported=body.get("reported"),
        key=str(body.get("release_key") or ""),
        failed=body.get("outcome") == "failed",
    )


@dataclass(slots=True)
class _Trace:
    """What one run did to one account, entry by entry."""

    posted: Tally
    held: dict[str, Tally] = field(default_factory=dict)
    peaks: list[Tally] = field(default_factory=list)

    @property
    def total(self) -> Tally:
        return sum(self.held.values(), self.posted)

    def add(self, row: Row) -> None:
        amount, reservation = Tally.from_text(row["amount"]), row["reservation"]
        if _is(row, "reserve"):
            self.held[reservation] = amount
        elif _is(row, "draw"):
            if reservation in self.held:
                self.held[reservation] = self.held[reservation] - amount
        else:
            self.held.pop(reservation, None)
            if not _is(row, *_RETURNED):
                self.posted = self.posted + amount
        self._note(self.total)

    def _note(self, total: Tally) -> None:
        if not any(total.fits_within(peak) for peak in self.peaks):
            kept = [peak for peak in self.peaks if not peak.fits_within(total)]
            self.peaks = [*kept, total]


def _traces(rows: Sequence[Row], zero: Tally) -> dict[str, _Trace]:
    found: dict[str, _Trace] = {}
    for row in rows:
        if _is(row, "reserve", "draw", *_RETURNED, *_POSTED) and row["reservation"]:
            found.setdefault(_key(row), _Trace(zero)).add(row)
    return found


def _run(
    key: str,
    facts: _Facts,
    traces: Mapping[str, Mapping[str, _Trace]],
    refused: set[str],
) -> FlowRun:
    own = {name: runs[key] for name, runs in traces.items() if key in runs}
    steps = tuple(facts.steps.values())
    return FlowRun(
        flow=facts.flow,
        run=facts.run,
        at=facts.at,
        steps=steps,
        charges=dict(_charges(own)),
        complete=(
            facts.whole
            and key not in refused
            and not any(trace.held for trace in own.values())
            and not any(step.failed for step in steps)
        ),
    )


def _charges(traces: Mapping[str, _Trace]) -> Iterator[tuple[str, RunCharge]]:
    for name, each in traces.items():
        yield name, RunCharge(spent=each.total, peaks=tuple(each.peaks))
