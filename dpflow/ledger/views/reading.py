"""One snapshot of a ledger, which all parts of an answer read.

Each function of the views takes an open ledger or a reading. A command opens one
reading and passes it on, so that its numbers are of one moment.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from heapq import merge
from typing import Any

from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import LedgerCorrupt
from dpflow.interrupts import contextmanager, without_interrupts
from dpflow.ledger.account_ids import Amounts, split
from dpflow.ledger.decisions.gates import Gate, gate_at
from dpflow.ledger.decisions.pinned_rules import OF_SHARES
from dpflow.ledger.decisions.reserve import without_empty
from dpflow.ledger.decisions.suggestions import in_windows, with_parts_near
from dpflow.ledger.digests import Digests
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.tables.errors import refuse_damaged
from dpflow.ledger.tables.loaded import Rows, sum_amounts
from dpflow.ledger.tables.loading import load_terms, read_accounts, read_claim
from dpflow.ledger.tables.rows import Charge, DamagedRow, Dataset, Entry, Posting, Term
from dpflow.ledger.tables.transaction import Transaction
from dpflow.policy.population import population_of

#: Rows that are read together.
PAGE = 500
#: Above every number of an entry, and above every name.
ENDLESS, LAST_NAME = 2**62, "\U0010ffff"
Body = Mapping[str, Any]
#: Amounts by account that no step settles: those that ended processes hold, and those
#: that an operator closed.
Forfeits = tuple[Mapping[str, Amounts], Mapping[str, Amounts]]
#: Changes of settled and held by account.
Changes = Mapping[str, Posting]
#: Postings of fewer characters are remembered.
_SHORT = 1000
#: Fields of a request that a reader finds under other names.
_COLUMNS = ("alerts", "key_text")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenReservation:
    """A charge that no process has settled.

    Attributes:
        body: Facts of the reservation, such as its step, flow, cost and accounts.
        alive: True if the process that reserved it still runs.
        writer: Writer of its first entry.
    """

    reservation: str
    body: Mapping[str, Any]
    alive: bool
    at: str
    writer: str = field(default="", repr=False)
    charge: Any = field(default=None, repr=False, compare=False)

    @property
    def fate(self) -> str:
        """What is to come of it, in a word."""
        return "running" if self.alive else "forfeited"


class Reading:
    """One snapshot of a ledger.

    What was read once is remembered.

    Args:
        ledger: The ledger.
        transaction: A snapshot of its database.

    Attributes:
        rows: Datasets, their terms, and the accounts that were read.
        digests: Digests with the secret of the ledger.
    """

    def __init__(
        self, ledger: Ledger, transaction: Transaction, heads: Any = None
    ) -> None:
        self._heads = heads
        self.ledger, self.id, self.address = ledger, ledger.id, ledger.address
        self.transaction = transaction
        (answer,) = transaction.begin([], [("read_every_dataset", {})], lock=False)
        datasets = (Dataset.from_columns(tuple(columns)) for columns in answer)
        transaction.datasets = {row.name: row for row in datasets if row.term}
        self.rows = Rows(datasets=transaction.datasets, known_terms=dict(ledger.terms))
        load_terms(transaction, self.rows.known_terms, self.datasets)
        #: Datasets whose accounts `load` read.
        self._loaded = set[str]()
        self._gates: dict[str, dict[str, Gate]] = {}
        self._decisions: dict[str, list[Entry]] = {}
        #: Answers of views that several others ask for.
        self.remembered: dict[tuple[Any, ...], Any] = {}
        self.digests = Digests(self)  # type: ignore[arg-type]

    @property
    def problem(self) -> str | None:
        """What the witness says against this snapshot, if it was opened `watched`."""
        assert self._heads is not None
        return self.ledger.watch.problem(self.transaction, self._heads)

    def snapshot(self) -> AbstractContextManager[Transaction]:
        """Return the open snapshot: a second one would be of another moment."""
        return nullcontext(self.transaction)

    def ask(self, name: str, /, **parameters: Any) -> list[Any]:
        """Run one statement and return its rows."""
        return self.transaction.ask(name, **parameters)

    # Datasets and terms

    @property
    def datasets(self) -> list[str]:
        """Names of all datasets and populations that have a term, sorted."""
        return [*self.rows.datasets]

    def names(self, dataset: str | None) -> list[str]:
        """Return the name of one dataset, or all names."""
        return self.datasets if dataset is None else [dataset]

    def newest(self, dataset: str) -> Term | None:
        """Return the term that governs a dataset; None if nothing was applied yet."""
        return self.rows.newest(dataset)

    def newest_of(self, dataset: str) -> list[Term]:
        """Return the newest terms of a dataset and of its population."""
        term = self.newest(dataset)
        above = None if term is None else population_of(term.fields["pinned"])
        terms = (term, None if above is None else self.newest(above))
        return [term for term in terms if term is not None]

    def find_range(self, dataset: str | None) -> dict[str, str]:
        """Return the range of one dataset's name, or of all names."""
        return {"first": dataset or "", "last": dataset or LAST_NAME}

    def find_openings(self, dataset: str) -> list[int]:
        """Return the numbers of the entries that opened the terms, oldest first."""
        return [e.number for e in self.decisions(dataset) if e.kind == "open"]

    # Accounts

    def load(self, dataset: str | None) -> None:
        """Read the accounts of the newest terms of one dataset, or of all."""
        wanted = {*self.names(dataset)}
        if not wanted <= self._loaded:
            self._add_accounts("read_current_accounts", **self.find_range(dataset))
            self._loaded |= wanted

    @property
    def account_ids(self) -> list[str]:
        """Ids of all accounts of all terms."""
        self._add_accounts("read_accounts_between", **self.find_range(None))
        return sorted(self.rows.account_rows)

    def _add_accounts(self, statement: str, **parameters: Any) -> None:
        accounts = read_accounts(self.ask(statement, **parameters))
        self.rows.account_rows.update(accounts)

    def gates(self, ids: Iterable[str]) -> dict[str, Gate]:
        """Return the gates of accounts; none of an account whose term is lost."""
        wanted = [*ids]
        missing = [name for name in wanted if name not in self.rows.account_rows]
        if missing:
            self._add_accounts("read_accounts", ids=missing)
        gates = ((name, gate_at(self.rows, name)) for name in wanted)
        return {name: gate for name, gate in gates if gate is not None}

    def find_gates(self, charge: str) -> Iterator[tuple[Gate, Tally]]:
        """Yield the gates that a charge met, each with what was used before it."""
        row, _ = read_claim(self.ask("read_charge", id=charge))
        assert row is not None
        units = row.request.get("units", {})
        for name, gate in self.gates(row.amounts).items():
            used = row.amounts[name].used
            sized = gate._replace(size=int(units.get(name, 1)))
            yield sized, gate.rule.zero() if used is None else Tally(used)

    def term_gates(self, account: str) -> dict[str, Gate]:
        """Return the gates of a term: that of the whole, and of charged accounts.

        A share that a change of access ended has none.

        Raises:
            LedgerCorrupt: If another account has no gate in the term.
        """
        if account in self._gates:
            return self._gates[account]
        dataset, number = split(account)[:2]
        self.load(dataset)
        if number != self.rows.book(dataset).term:
            between = {"first": f"{account}/", "last": f"{account}0"}
            self._add_accounts("read_accounts_between", **between)
        ids, read = [account], self.rows.account_rows
        # Parts of windows belong to all terms.
        for prefix in (f"{account}/", f"{dataset}#/"):
            ids += sorted(name for name in read if name.startswith(prefix))
        gates = self.gates(ids)
        for lost in sorted({*ids} - gates.keys()):
            if split(lost)[2] in OF_SHARES:
                continue
            msg = f"account {lost!r} has no gate in its term"
            raise LedgerCorrupt(msg, ledger=self.address)
        near = [
            (with_parts_near(self.rows, gate), gate.rule.zero())
            for gate in gates.values()
        ]
        self._gates[account] = {gate.id: gate for gate, _ in in_windows(near)}
        return self._gates[account]

    def newest_gates(self, dataset: str) -> dict[str, Gate]:
        """Return the gates of a dataset's newest term."""
        term = self.newest(dataset)
        return {} if term is None else self.term_gates(term.root)

    # Charges and entries

    @cached_property
    def open_charges(self) -> list[OpenReservation]:
        """Charges that no process ended, oldest first."""
        alive = cache(self.ledger.owners.alive)
        reservations = dict[str, OpenReservation]()
        for at, _, _, writer, *columns in self.ask("read_open_reservations"):
            charge = Charge.from_columns(columns)
            reservation = OpenReservation(
                reservation=charge.id,
                body=describe_charge(charge),
                alive=alive(charge.owner),
                at=at,
                writer=writer,
                charge=charge,
            )
            reservations.setdefault(charge.id, reservation)
        return [*reservations.values()]

    @cached_property
    def forfeits(self) -> Forfeits:
        """Forfeits of all accounts."""
        held, closed = dict[str, Amounts](), dict[str, Amounts]()
        for waiting in self.open_charges:
            for name, amount in waiting.charge.amounts.items():
                if not waiting.alive:
                    held[name] = sum_amounts(amount.amount, held.get(name))
        for entry in self.decisions(None):
            if entry.kind == "forfeit":
                for name, (settled, _) in read_postings(entry.postings).items():
                    closed[name] = sum_amounts(settled, closed.get(name))
        return held, closed

    def refusals(self, dataset: str, limit: int = ENDLESS) -> list[Entry]:
        """Return the newest refusals of a dataset, newest first."""
        where = {"dataset": dataset, "after": ENDLESS, "limit": limit}
        return [Entry(*columns) for columns in self.ask("read_refusals", **where)]

    @cached_property
    def refused_runs(self) -> set[str]:
        """Ids of the flow runs that met a refusal."""
        return {name for (name,) in self.ask("read_refused_runs")}

    def decisions(self, dataset: str | None) -> list[Entry]:
        """Return what people decided, charged or closed by hand, oldest first.

        Entries of one dataset are in order; those of several follow by dataset.
        """
        wanted = self.names(dataset)
        if not all(name in self._decisions for name in wanted):
            self._decisions.update((name, []) for name in wanted)
            for columns in self.ask("read_decisions", **self.find_range(dataset)):
                self._decisions[columns[0]].append(Entry(*columns))
        return [entry for name in wanted for entry in self._decisions[name]]

    def requests(self, ids: Iterable[str | None]) -> dict[str, dict[str, Any]]:
        """Return what the requests of charges said, by charge."""
        names = [*dict.fromkeys(filter(None, ids))]
        if not names:
            return {}
        rows = self.ask("read_charges", ids=names)
        charges = (Charge.from_columns(tuple(columns)) for columns in rows)
        return {charge.id: describe_charge(charge) for charge in charges}


Source = Ledger | Reading


def pages(
    source: Reading | Transaction,
    statement: str,
    dataset: str,
    first: Any,
    *,
    key: int = 0,
    size: int = PAGE,
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a statement, page by page.

    Args:
        source: The snapshot.
        statement: Name of the statement.
        dataset: Name of the dataset.
        first: Before the first key, in the order of the statement.
        key: Position of the key among the columns.
        size: Number of rows that are read together.
    """
    after = first
    while True:
        page = source.ask(statement, dataset=dataset, after=after, limit=size)
        yield from page
        if len(page) < size:
            return
        after = page[-1][key]


@contextmanager
def open_reading(source: Source, *, watched: bool = False) -> Iterator[Reading]:
    """Open a reading of a ledger; a reading that is open is used as it is.

    An error of dpflow itself passes: it says nothing about the ledger.

    Args:
        source: The ledger, or an open reading.
        watched: Whether the reading is compared with the witness, which is read first:
            steps go on, and what it gets meanwhile is not in the snapshot.

    Raises:
        LedgerCorrupt: If a row is damaged.
    """
    if isinstance(source, Reading):
        yield source
        return
    heads = source.watch.read_heads() if watched else None
    try:
        with source.database.snapshot() as transaction:
            yield Reading(source, transaction, heads)
    except without_interrupts(DamagedRow) as error:
        raise refuse_damaged(str(error), source.address) from error


# Entries as people read them


def read_postings(text: str) -> Changes:
    """Return the changes of settled and held by account; do not change it."""
    # Most charges post the same amounts.
    return _read_short(text) if len(text) < _SHORT else _read_changes(text)


def _read_changes(text: str) -> Changes:
    return {
        name: (tuple(settled), tuple(held))
        for name, (settled, held) in json.loads(text).items()
    }


_read_short = lru_cache(maxsize=4096)(_read_changes)


def merge_newest(journals: Iterable[Iterable[Entry]]) -> Iterator[Entry]:
    """Yield entries of several datasets, newest first.

    The clock may jump: entries of one dataset stay in the order of its journal.

    Args:
        journals: Those of each dataset, newest first.
    """
    return merge(*journals, key=lambda entry: (entry.at, entry.dataset), reverse=True)


def describe_charge(charge: Charge) -> dict[str, Any]:
    """Return the facts of a charge: what its request said, step, flow and run."""
    request = {k: v for k, v in charge.request.items() if k not in _COLUMNS}
    return {
        **request,
        "step": charge.step,
        "flow": charge.flow,
        "flow_run": charge.run,
        "release_key": charge.request.get("key_text"),
        **without_empty(key=charge.release_key),
    }


def describe_entry(entry: Entry, request: Body | None = None) -> dict[str, Any]:
    """Return the facts of an entry and of the request of its charge.

    Args:
        entry: The entry.
        request: Facts of the charge that it begins, ends or is about.
    """
    body: dict[str, Any] = json.loads(entry.body)
    if entry.kind == "reserve":
        return dict(request or body)
    if request is not None:
        return add_end(request, body)
    if entry.kind == "refuse":
        body["release_key"] = body.pop("key_text", "") or None
        body = {"flow": entry.flow, "flow_run": entry.run, **body}
    return body | without_empty(step=entry.step, flow=entry.flow)


def add_end(request: Body, body: Body) -> dict[str, Any]:
    """Return the facts of a request and of a later entry of its charge."""
    # The writer of its end may have no commit.
    return {k: v for k, v in request.items() if k != "code"} | {**body}
