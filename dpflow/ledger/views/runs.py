"""Charges as the journal has them, and the charges of each run of a flow.

The end of a charge names it, and the entry that reserved it says which step, flow and
cost it was; people read both as one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dpflow.accounting.costs.base import Cost, cost_from_description
from dpflow.accounting.rules.tally import Tally
from dpflow.ledger.decision.gates import Gate
from dpflow.ledger.entry import Amounts, Entry
from dpflow.ledger.journal import KINDS
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.rows import Term, account_key, split
from dpflow.ledger.storage.tables import ENDLESS, Reading
from dpflow.ledger.views.accounts import (
    gates_by_name,
    governing,
    newest_gates,
    newest_terms_of,
)


@dataclass(slots=True)
class JournalCharge:
    """A charge, or an amount that a person charged.

    Attributes:
        made: The entry that reserved it; of an amount, the entry itself.
        ended: The entry that ended it; None while it is open.
        amounts: Charged amount by account: posted or still held.
    """

    made: Entry
    ended: Entry | None
    amounts: dict[str, Amounts]

    @property
    def id(self) -> str:
        """Id of the reservation."""
        return str(self.made.charge)

    @property
    def cost(self) -> Cost:
        """The step's worst case.

        Raises:
            InvalidCost: If the mechanism is one that this process does not know.
        """
        return cost_from_description(self.made.body.get("cost") or {})

    @property
    def last(self) -> Entry:
        """Its newest entry."""
        return self.ended or self.made

    @property
    def body(self) -> dict[str, Any]:
        """Facts of both entries."""
        return joined(self.last, self.made)


def charges(reading: Reading, whole: str, after: int = 0) -> Iterator[JournalCharge]:
    """Yield the charges that entries about a term began, moved or ended.

    Each comes at its end, and the open ones come last.

    Args:
        reading: The ledger.
        whole: Id of the account that the term's whole dataset or population has.
        after: Number of the entry after which to begin.
    """
    begun: dict[str, JournalCharge] = {}
    for entry in reading.naming_after([account_key(whole)], after):
        kind, name = KINDS[entry.kind], entry.charge or ""
        if entry.kind == "reserve":
            begun[name] = JournalCharge(entry, None, {**entry.amounts})
        else:
            before = begun.pop(name, None) if kind.ends else begun.get(name)
            made = {name: before.made} if before else beginnings(reading, [name])
            posted = {**entry.amounts} if kind.settles else {}
            yield JournalCharge(made.get(name, entry), entry, posted)
    yield from begun.values()


def root_keys(reading: Reading, book: str) -> list[str]:
    """Return the keys of the accounts that a book's whole has in each of its terms."""
    return [f"account/{key[5:]}" for key in reading.names(f"term/{book}#")]


def newest_numbers(reading: Reading, account: str, most: int) -> list[int]:
    """Return the numbers of the newest entries that name an account, newest first."""
    where = {"key": account_key(account), "end": ENDLESS, "limit": most}
    return [number for (number,) in reading.ask("numbers_down", **where)]


def beginnings(reading: Reading, names: Iterable[str | None]) -> dict[str, Entry]:
    """Return the entries that reserved charges, by charge."""
    keys = [f"charge/{name}" for name in dict.fromkeys(names) if name]
    return reading.load(lambda _: keys).made if keys else {}


def bodies(reading: Reading, entries: Sequence[Entry]) -> Iterator[dict[str, Any]]:
    """Yield the facts of each entry and of the beginning of its charge."""
    made = beginnings(reading, (each.charge for each in entries))
    return (joined(each, made.get(each.charge or "")) for each in entries)


def joined(entry: Entry, made: Entry | None) -> dict[str, Any]:
    """Return the facts of an entry and of the one that began its charge."""
    if made is None or entry.kind in ("reserve", "refuse"):
        return dict(entry.body)
    # The writer of its end may have no commit.
    return {k: v for k, v in made.body.items() if k != "code"} | dict(entry.body)


# Runs of flows


#: Number of entries of a dataset's newest term that are read for its newest runs.
RECENT = 20_000


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
        return self.charges[0].made.body.get("flow")

    @property
    def run(self) -> str | None:
        """Id of the flow run, or None."""
        return self.charges[0].made.body.get("flow_run")

    @property
    def at(self) -> str:
        """The time of its first reservation; a label."""
        return self.charges[0].made.at

    @property
    def deployment(self) -> str | None:
        """Id of the deployment that it is a run of, or None."""
        return self.charges[0].made.body.get("deployment")

    @property
    def keys(self) -> list[str]:
        """The release keys of its steps."""
        keys = (step.made.body.get("release_key") for step in self.steps)
        return [key for key in keys if key]

    @property
    def steps(self) -> list[JournalCharge]:
        """The steps that were charged, in order."""
        return [c for c in self.charges if c.last.kind != "void"]

    @property
    def complete(self) -> bool:
        """Whether all of it was read, nothing was refused, and all ended well."""
        fine = all(
            step.last.kind == "settle" and step.last.body.get("outcome") != "failed"
            for step in self.steps
        )
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


def dataset_runs(
    ledger: Ledger, dataset: str, *, most: int = RECENT
) -> DatasetRuns | None:
    """Read the runs of a dataset's newest term; None if it has no term yet.

    Args:
        ledger: The ledger to read.
        dataset: The dataset.
        most: Number of entries of its term that are read, the newest.
    """
    with ledger.storage.read() as reading:
        term = governing(reading, dataset)
        if term is None:
            return None
        numbers = newest_numbers(reading, term.whole, most + 1)
        older, head = len(numbers) > most, reading.head()[0]
        start = (numbers[most] if older else numbers[-1] - 1) if numbers else head
        # What was first seen in the older half may have begun before it.
        sure = start + (head - start) // 2 if older else 0
        by_run = defaultdict[str, list[JournalCharge]](list)
        raised = defaultdict[str, list[Entry]](list)
        for charge in sorted(charges(reading, term.whole, start), key=_number):
            if KINDS[charge.last.kind].by_hand:
                raised[charge.id].append(charge.last)
            elif _number(charge) > start:
                name = charge.made.body.get("flow_run") or charge.id
                by_run[name].append(charge)
        state = reading.load(lambda _: [f"run/{name}" for name in by_run])
        runs = [
            FlowRun(
                charges=tuple(own),
                raised=tuple(entry for charge in own for entry in raised[charge.id]),
                begun=_number(own[0]) > sure,
                refused=state.run(name).refusals > 0,
            )
            for name, own in by_run.items()
        ]
    charged = tuple(run for run in runs if run.steps)
    return DatasetRuns(dataset=dataset, term=term, runs=charged, older=older)


def _number(charge: JournalCharge) -> int:
    return charge.made.number


def run_charges(ledger: Ledger, dataset: str, run: FlowRun) -> dict[str, RunCharge]:
    """Read what a run did to each account of a dataset's newest term, by its id.

    Those of its population are among them.
    """
    own = run.steps
    entries = [entry for c in own for entry in (c.made, c.ended) if entry is not None]
    entries = sorted(entries, key=lambda entry: entry.number)
    with ledger.storage.read() as reading:
        terms = newest_terms_of(reading, dataset)
        # Terms share the parts of windows.
        places = {(term.book, n) for term in terms for n in (0, term.number)}
        names = {name for charge in own for name in charge.made.amounts}
        within = [name for name in names if split(name)[:2] in places]
        gates = gates_by_name(reading, within)
        if any(gate.window for gate in gates.values()):
            whole = newest_gates(reading, dataset)
            gates |= {name: whole[name] for name in gates if name in whole}
    # What an operator added was admitted by no gate.
    return {k: _charge_of(gate, [*entries, *run.raised]) for k, gate in gates.items()}


def _charge_of(gate: Gate, entries: Iterable[Entry]) -> RunCharge:
    """Return what entries did to an account."""
    total = gate.rule.zero()
    peaks, held = [total], dict[str, Tally]()
    for entry in (entry for entry in entries if gate.id in entry.amounts):
        amount, kind = Tally(entry.amounts[gate.id]), KINDS[entry.kind]
        if kind.holds:
            held[str(entry.charge)] = amount
        if kind.ends:
            total = total - held.pop(str(entry.charge))
        if kind.holds or kind.settles:
            total = total + amount
        if not any(total.fits_within(peak) for peak in peaks):
            # None is below another.
            peaks = [*(p for p in peaks if not p.fits_within(total)), total]
    return RunCharge(gate=gate, spent=total, peaks=tuple(peaks))
