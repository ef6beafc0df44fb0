"""The whole ledger, computed again from its journals.

Each dataset is read in one snapshot, page by page, in flat memory, while steps run.
Every hash and every sum is computed again; the rows of accounts, charges, releases and
terms are compared with the entries that made them. Grants, prices and settlements are
not decided again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import add
from typing import Any, NamedTuple

from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import DpflowError, LedgerError
from dpflow.interrupts import suppress, without_interrupts
from dpflow.ledger.account_ids import split
from dpflow.ledger.audit.terms import check_terms
from dpflow.ledger.canonical import canonical, digest
from dpflow.ledger.decisions.gates import is_admitted
from dpflow.ledger.decisions.windows import window_total
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.requests import UNKNOWN
from dpflow.ledger.tables.errors import UNREADABLE
from dpflow.ledger.tables.loaded import Rows
from dpflow.ledger.tables.rows import (
    Account,
    Charge,
    DamagedRow,
    Dataset,
    Entry,
    Term,
    first_hash,
    read_term,
)
from dpflow.ledger.tables.transaction import Transaction

Progress = Callable[[int, int], None]
#: Rows that are read together.
PAGE = 500
#: State of a charge that a kind of entry ends.
ENDED = ("settled", "void", "forfeited")
_STATES = {"settle": "settled", "void": "void", "forfeit": "forfeited", None: "open"}


class Finding(NamedTuple):
    """A disagreement, with the bad entry where there is one."""

    problem: str
    dataset: str = ""
    entry: int | None = None

    def __str__(self) -> str:
        """Return the place and the problem."""
        place = f"dataset {self.dataset!r}" if self.dataset else ""
        place += "" if self.entry is None else f", entry {self.entry}"
        return f"{place}: {self.problem}" if place else self.problem


@dataclass(slots=True, kw_only=True)
class Verification:
    """Counts and findings of a verification.

    Attributes:
        values: Whether the values of releases were compared with their digests.
        witness: What the comparison with the witness says.
        heads: Number and hash of the newest entry of each journal.
    """

    accounts: int = 0
    entries: int = 0
    postings: int = 0
    reservations: int = 0
    releases: int = 0
    values: bool = False
    witness: str = "waived"
    bad: list[Finding] = field(default_factory=list)
    heads: dict[str, tuple[int, str]] = field(default_factory=dict)

    @property
    def fine(self) -> bool:
        """Whether nothing is bad."""
        return not self.bad

    def add(self, problem: str, dataset: str = "", entry: int | None = None) -> None:
        """Add a finding, once."""
        finding = Finding(problem, dataset, entry)
        if finding not in self.bad:
            self.bad.append(finding)


@dataclass(slots=True)
class Sum:
    """What the entries of a journal come to on an account."""

    settled: list[int]
    held: list[int]
    version: int = 0


@dataclass(slots=True)
class Journal:
    """What the entries of a dataset's journal come to.

    Attributes:
        row: The dataset's row as the entries have it.
        sums: Sums by account.
        terms: Newest body of each term, and the body that opened it.
        overdrawn: Accounts that a charge by hand or a repair raised above their gates.
        by_hand: Accounts that a charge by hand or a repair raised.
        alerted: Newest alert by account.
        people: First and newest charge of each store.
        evidence: Digest and term of each evidence, with its entry.
        access: Bodies of each term that a change of access gave it.
        sources: Sources of its terms, each with the newest population.
    """

    row: Dataset
    sums: dict[str, Sum] = field(default_factory=dict)
    terms: dict[int, Term] = field(default_factory=dict)
    opened: dict[int, Term] = field(default_factory=dict)
    overdrawn: set[str] = field(default_factory=set)
    by_hand: set[str] = field(default_factory=set)
    alerted: dict[str, str] = field(default_factory=dict)
    people: dict[str, tuple[str, str]] = field(default_factory=dict)
    evidence: dict[str, int] = field(default_factory=dict)
    opening: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    access: dict[int, list[Term]] = field(default_factory=dict)
    sources: dict[str, str | None] = field(default_factory=dict)

    def add(self, entry: Entry, result: Verification) -> None:
        """Add the next entry, whose hash was checked."""
        body = json.loads(entry.body)
        postings = json.loads(entry.postings)
        for name, (settled, held) in postings.items():
            self._post(entry, name, settled, held, result)
        result.postings += len(postings)
        self.overdrawn |= {*body.get("overdrawn", ())}
        self.alerted |= body.get("alerts", {})
        if entry.kind in ("adjust", "repair"):
            self.by_hand |= postings.keys()
        row = self.row._replace(number=entry.number, hash=entry.hash)
        if entry.kind in ("open", "tighten", "access"):
            row = self._pin(entry, body, row)
        elif entry.kind in ("freeze", "unfreeze"):
            row = row._replace(frozen=body["frozen"])
        elif entry.kind == "repair":
            row = row._replace(repaired_at=entry.number, epoch=body["epoch"])
        elif entry.kind == "pay":
            first, _ = self.people.get(body["people"], (str(entry.charge), ""))
            self.people[body["people"]] = first, str(entry.charge)
        if body.get("evidence"):
            for name in postings:
                self.evidence[f"{split(name)[1]} {body['evidence']}"] = entry.number
        for name, newest in body.get("people_lost", {}).items():
            first, _ = self.people.get(name, (UNKNOWN, ""))
            self.people[name] = first, newest
        self.row = row

    def _post(
        self,
        entry: Entry,
        name: str,
        settled: list[int],
        held: list[int],
        result: Verification,
    ) -> None:
        """Add a posting, and check a grant against a gate that was lowered."""
        if split(name)[0] != entry.dataset:
            result.add(f"it posts to {name!r}", entry.dataset, entry.number)
        total = self.sums.get(name)
        if total is None:
            zero = [0] * len(settled)
            total = self.sums[name] = Sum(zero, list(zero))
        total.settled = [*map(add, total.settled, settled)]
        total.held = [*map(add, total.held, held)]
        total.version += 1
        if min(*total.settled, *total.held) < 0:
            what = f"account {name!r} would hold less than nothing"
            result.add(what, entry.dataset, entry.number)
        term = self.terms.get(split(name)[1])
        tightened = term is not None and term.entry > 1
        if entry.kind == "reserve" and tightened and name not in self.by_hand:
            used = (*map(add, total.settled, total.held),)
            if not is_admitted(term, name, used):
                what = f"a step was granted on account {name!r} above its gate"
                result.add(what, entry.dataset, entry.number)

    def _pin(self, entry: Entry, body: Mapping[str, Any], row: Dataset) -> Dataset:
        """Note a term."""
        facts = body["term"]
        number = facts["number"]
        revision = 1 if entry.kind == "open" else self.terms[number].entry + 1
        term = Term(entry.dataset, number, revision, facts)
        self.terms[number] = term
        pinned = facts["pinned"]
        if pinned.get("source") is not None:
            self.sources[pinned["source"]] = pinned.get("population")
        if entry.kind == "access":
            self.access.setdefault(number, []).append(term)
        if entry.kind == "open":
            self.opened[number] = term
            self.opening[number] = body
        return row._replace(term=number, revision=revision)


def verify(ledger: Ledger, *, progress: Progress | None = None) -> Verification:
    """Compute everything again, and compare it with the rows and the witness.

    Args:
        ledger: The ledger.
        progress: Called with the entries that were read since, and with all.
    """
    result = Verification()
    with ledger.reading() as transaction:
        transaction.begin(lock=False)
        names = [name for (name,) in transaction.ask("read_named_datasets")]
        rows = transaction.ask("read_datasets", names=names)
        total = sum(row[6] for row in rows)
    result.values = ledger.digests.is_readable()
    for name in names:
        try:
            before = result.entries
            verify_dataset(ledger, name, result)
            if progress is not None:
                progress(result.entries - before, total)
        except without_interrupts(*UNREADABLE, DpflowError) as error:
            result.add(f"it cannot be read: {error!s:.200}", name)
    witness = ledger.watch.witness
    if witness is not None:
        problem = ledger.watch.problem()
        result.witness = "agrees" if problem is None else "contradicts"
        with suppress(LedgerError):
            if not witness.exists():
                # `dpflow ledger trust` begins one, after a verification.
                result.witness, problem = "missing", None
        if problem is not None:
            result.add(problem)
    return result


def verify_dataset(ledger: Ledger, name: str, result: Verification) -> None:
    """Verify one dataset in one snapshot."""
    with ledger.database.snapshot() as transaction:
        try:
            transaction.begin([name], lock=False)
        except DamagedRow as error:
            result.add(str(error), name)
            transaction.datasets = {}
        journal = read_journal(transaction, ledger.id, name, result)
        row = transaction.datasets.get(name)
        if row is None:
            result.add("its row was removed", name)
        elif row != journal.row:
            result.add("its row is not what its journal comes to", name)
        held = check_charges(transaction, name, result)
        rows = check_accounts(transaction, journal, held, result)
        check_tables(transaction, journal, result)
        check_releases(transaction, name, result)
        if result.values:
            check_values(transaction, ledger, name, result)
        check_gates(rows, journal, result)
        check_terms(rows, journal.opening, lambda what: result.add(what, name))
        result.heads[name] = journal.row.number, journal.row.hash


def pages(
    transaction: Transaction, statement: str, dataset: str, first: Any, key: int
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a statement, page by page.

    Args:
        transaction: The snapshot.
        statement: Name of the statement.
        dataset: Name of the dataset.
        first: Before the first key.
        key: Position of the key among the columns.
    """
    after = first
    while True:
        page = transaction.ask(statement, dataset=dataset, after=after, limit=PAGE)
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1][key]


def read_journal(
    transaction: Transaction, ledger: str, name: str, result: Verification
) -> Journal:
    """Read a journal, with its chain of hashes; go on after a finding."""
    journal = Journal(Dataset(name, hash=first_hash(ledger, name)))
    for columns in pages(transaction, "read_journal_page", name, 0, 1):
        entry = Entry(*columns)
        if entry.number != journal.row.number + 1:
            result.add(f"entry {journal.row.number + 1} is missing", name)
        if entry.chained(journal.row.hash).hash != entry.hash:
            what = "its content, or an entry before it, is not what was hashed"
            result.add(what, name, entry.number)
        try:
            journal.add(entry, result)
        except without_interrupts(*UNREADABLE) as error:
            what = f"it is no entry of its kind ({type(error).__name__})"
            result.add(what, name, entry.number)
            journal.row = journal.row._replace(number=entry.number, hash=entry.hash)
        result.entries += 1
    return journal


def check_charges(
    transaction: Transaction, name: str, result: Verification
) -> dict[str, list[int]]:
    """Compare charges with their entries; return what open ones hold, by account."""
    held = dict[str, list[int]]()
    for row in pages(transaction, "read_charge_page", name, 0, 0):
        number, kind, charge_made, body, writer, *where = row[:8]
        end, end_kind, charge_ended, *columns = row[8:]
        result.reservations += 1
        try:
            charge = Charge.from_columns(tuple(columns))
        except without_interrupts(*UNREADABLE) as error:
            result.add(f"the charge that it made: {error}", name, number)
            continue
        if (kind, charge_made) != ("reserve", charge.id):
            problem = f"no reserve of charge {charge.id}"
        elif json.loads(body)["request"] != digest(columns[8]):
            problem = f"the request of charge {charge.id} is not what was hashed"
        elif columns[4:7] != where or charge.login not in (None, writer):
            problem = f"charge {charge.id} names another step, flow, run or login"
        else:
            problem = find_wrong_end(charge, end, end_kind, charge_ended)
        if problem:
            result.add(problem, name, number)
        for account, share in charge.amounts.items() if charge.state == "open" else ():
            if split(account)[0] == name:
                before = held.get(account, [0] * len(share.amount))
                held[account] = [*map(add, before, share.amount)]
    for number, kind in transaction.ask("read_loose_entries", dataset=name):
        result.add(f"no charge has this {kind}", name, number)
    return held


def find_wrong_end(
    charge: Charge, number: int | None, kind: str | None, ended: str | None
) -> str:
    """Return what is wrong with the end of a charge; "" if nothing is.

    Args:
        charge: The charge.
        number: Number of the entry that ended it.
        kind: Kind of that entry.
        ended: The charge that the entry names.
    """
    if (number is None) != (kind is None) or ended not in (None, charge.id):
        return f"charge {charge.id} was not ended by entry {number}"
    if _STATES.get(kind) != charge.state:
        return f"charge {charge.id} is {charge.state}, and its end a {kind}"
    return ""


def check_accounts(
    transaction: Transaction,
    journal: Journal,
    held: Mapping[str, list[int]],
    result: Verification,
) -> Rows:
    """Compare accounts with the sums of postings; return them as rows."""
    name = journal.row.name
    rows = Rows(datasets={name: journal.row})
    rows.known_terms = {(name, n): term for n, term in journal.opened.items()}
    between = {"first": f"{name}#", "last": f"{name}$"}
    for columns in transaction.run([("read_accounts_between", between)])[0]:
        result.accounts += 1
        try:
            row = Account.from_columns(tuple(columns))
        except without_interrupts(*UNREADABLE) as error:
            result.add(str(error), name)
            journal.sums.pop(columns[0], None)
            continue
        rows.account_rows[row.id] = row
        total = journal.sums.pop(row.id, None)
        none = [0] * len(row.held)
        if total is None:
            result.add(f"no entry posts to account {row.id!r}", name)
            continue
        amounts = ([*row.settled], [*row.held], row.version)
        if amounts != (total.settled, total.held, total.version):
            result.add(f"account {row.id!r} is not the sum of its postings", name)
        if held.get(row.id, none) != [*row.held]:
            result.add(f"account {row.id!r} holds not what open charges hold", name)
        if bool(row.overdrawn) != (row.id in journal.overdrawn):
            result.add(f"the overdraft of account {row.id!r} is not its entries'", name)
        if row.alerted != journal.alerted.get(row.id):
            result.add(f"the alert of account {row.id!r} is not its entries'", name)
    for account in journal.sums:
        result.add(f"account {account!r} was removed", name)
    return rows


def check_tables(
    transaction: Transaction, journal: Journal, result: Verification
) -> None:
    """Compare terms, stores of people and evidence with their entries."""
    name = journal.row.name
    terms = map(read_term, transaction.ask("read_terms", datasets=[name]))
    found = {term.number: term for term in terms}
    if canonical(found) != canonical(journal.terms):
        result.add("its terms are not those of its entries", name)
    between = {"first": f"{name}#", "last": f"{name}$"}
    stores = transaction.run([("read_people_of", between)])[0]
    if {row[0]: (row[1], row[2]) for row in stores} != journal.people:
        result.add("the stores of its people are not those of its entries", name)
    sources = transaction.ask("read_all_sources")
    own = {source: population for source, of, population in sources if of == name}
    unclaimed = journal.sources.keys() - {source for source, *_ in sources}
    if not own.items() <= journal.sources.items() or unclaimed:
        result.add("its sources are not those of its terms", name)
    rows = transaction.ask("read_evidence_of", dataset=name)
    # Terms share the parts of windows, which have no number.
    mine = {k: n for k, n in journal.evidence.items() if not k.startswith("0 ")}
    if {f"{row[1]} {row[2]}": row[3] for row in rows} != mine:
        result.add("its evidence is not that of its entries", name)


def check_releases(transaction: Transaction, name: str, result: Verification) -> None:
    """Compare releases with the ends of their charges."""
    for row in pages(transaction, "read_release_page", name, "", 0):
        _, key_text, charge, state, kept, charge_state, body, withdrawn = row
        result.releases += 1
        ended = {} if body is None else json.loads(body)
        completed = charge_state == "settled" and ended.get("outcome") == "completed"
        right = {
            "claimed": charge_state == "open" and kept is None,
            "settled": completed and ended.get("digest") == kept,
            "withdrawn": completed and withdrawn is not None,
            "free": charge_state in ENDED and not completed and kept is None,
        }
        if not right.get(state):
            what = f"release {key_text!r} is {state}, and its charge {charge} is not"
            result.add(what, name)
    for (charge,) in transaction.ask("read_lost_releases", dataset=name):
        result.add(f"the release of charge {charge} was removed", name)


def check_values(
    transaction: Transaction, ledger: Ledger, name: str, result: Verification
) -> None:
    """Compare stored values with their digests."""
    for row in pages(transaction, "read_values", name, "", 0):
        key, charge, kept, value = row
        if ledger.digests.of_value(charge, value) != kept:
            result.add(f"the value of release {key} is not the settled one", name)


def check_gates(rows: Rows, journal: Journal, result: Verification) -> None:
    """Find accounts above the gate of their term's first revision.

    The account of a share may be at the largest gate that a change of access gave it.
    """
    name, state = journal.row.name, rows
    windows: Callable[[Any, str], Tally | None] = window_total
    for account in rows.account_rows.values():
        # A charge by hand may halt an odometer, which is no overdraft.
        halted = split(account.id)[2] == "odometer" and account.id in journal.by_hand
        if account.overdrawn or halted:
            continue
        term = rows.term(name, split(account.id)[1])
        if term is None and account.id in journal.by_hand:
            # A repair writes the accounts of a lost term without a gate.
            continue
        total = windows(state, account.id)
        used = (*map(add, account.settled, account.held),)
        amounts = used if total is None else total.amounts
        is_share = split(account.id)[2] == "flow" and term is not None
        later = journal.access.get(term.number, []) if term and is_share else []
        if not any(is_admitted(t, account.id, amounts) for t in (term, *later)) and (
            total is None or not has_overdrawn_part(rows, account)
        ):
            result.add(f"account {account.id!r} is above its gate", name)


def has_overdrawn_part(rows: Rows, account: Account) -> bool:
    """Return True if a part that shares windows with an account is overdrawn."""
    return any(
        other.overdrawn and split(other.id)[4] and not split(other.id)[1]
        for other in rows.accounts(split(account.id)[0])
    )
