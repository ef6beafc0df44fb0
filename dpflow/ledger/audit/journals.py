"""Journals of a ledger, computed again: what the entries of each come to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import add
from typing import Any, NamedTuple

from dpflow.interrupts import without_interrupts
from dpflow.ledger.account_ids import Amounts, split
from dpflow.ledger.decisions.gates import is_admitted
from dpflow.ledger.decisions.pinned_rules import gate_in
from dpflow.ledger.requests import UNKNOWN
from dpflow.ledger.tables.errors import UNREADABLE
from dpflow.ledger.tables.loaded import sum_amounts
from dpflow.ledger.tables.rows import Account, Dataset, Entry, Term, first_hash
from dpflow.ledger.tables.transaction import Transaction
from dpflow.ledger.views.reading import pages, read_postings

#: Rows, or parts of them, by key.
Rows = Mapping[Any, Any]


class Finding(NamedTuple):
    """A disagreement, with the bad entry where there is one."""

    problem: str
    dataset: str = ""
    entry: int | None = None

    def __str__(self) -> str:
        """Return the place and the problem."""
        position = f"dataset {self.dataset!r}" if self.dataset else ""
        position += "" if self.entry is None else f", entry {self.entry}"
        return f"{position}: {self.problem}" if position else self.problem


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
class Journal:
    """What the entries of a dataset's journal come to.

    Attributes:
        row: The dataset's row as the entries have it.
        result: Takes the findings.
        accounts: Accounts by id, without marks.
        terms: Newest body of each term, and the body that opened it.
        by_hand: Accounts that a charge by hand or a repair raised.
        added: What corrections added to each account, by charge.
        people: First and newest charge of each store.
        evidence: Digest and term of each evidence, with its entry.
        access: Bodies of each term that a change of access gave it.
        runs: Number of refusals of each flow run, and the odometers that halted it.
        sources: Sources of its terms, each with the newest population.
        rewritten: Number of the newest upgrade that rewrote requests, and the digest
            over those of before.
    """

    row: Dataset
    result: Verification
    accounts: dict[str, Account] = field(default_factory=dict)
    terms: dict[int, Term] = field(default_factory=dict)
    opened: dict[int, Term] = field(default_factory=dict)
    by_hand: set[str] = field(default_factory=set)
    added: dict[str, dict[str, Amounts]] = field(default_factory=dict)
    people: dict[str, tuple[str, str]] = field(default_factory=dict)
    evidence: dict[str, int] = field(default_factory=dict)
    opening: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    access: dict[int, list[Term]] = field(default_factory=dict)
    runs: dict[str, tuple[int, set[str]]] = field(default_factory=dict)
    sources: dict[str, str | None] = field(default_factory=dict)
    rewritten: tuple[int, str] = (0, "")

    def report(self, problem: str, entry: int | None = None) -> None:
        """Add a finding of the dataset."""
        self.result.add(problem, self.row.name, entry)

    def compare(self, what: str, rows: Rows, stated: Rows) -> None:
        """Compare rows with what the entries come to, by key."""
        for key in sorted(rows.keys() | stated.keys()):
            if key not in rows:
                self.report(f"{what} {key!r} was removed")
            elif key not in stated:
                self.report(f"no entry made {what} {key!r}")
            elif rows[key] != stated[key]:
                row, other = rows[key], stated[key]
                names = getattr(row, "_fields", ())
                wrong = [n for n in names if getattr(row, n) != getattr(other, n)]
                problem = f"{what} {key!r} is not what its entries come to"
                self.report(": ".join([problem, *wrong]))

    def add(self, entry: Entry) -> None:
        """Add the next entry, whose hash was checked."""
        body = json.loads(entry.body)
        postings = read_postings(entry.postings)
        for name, (settled, held) in postings.items():
            self._post(entry, name, settled, held)
        self.result.postings += len(postings)
        # An entry may name accounts of other datasets, too.
        overdrawn, alerts = body.get("overdrawn", ()), body.get("alerts", {})
        for name in (*overdrawn, *alerts):
            if (account := self.accounts.get(name)) is not None:
                self.accounts[name] = account._replace(
                    alerted=alerts.get(name, account.alerted),
                    overdrawn=int(name in overdrawn or account.overdrawn),
                )
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
        elif entry.kind == "refuse":
            self._note_refusal(entry, body)
        self.row = row
        self._note(entry, body, postings)

    def _note(
        self, entry: Entry, body: Mapping[str, Any], postings: Mapping[str, Any]
    ) -> None:
        """Note corrections, evidence, lost stores of people and rewritten requests."""
        if entry.kind == "adjust" and entry.charge is not None:
            added = self.added.setdefault(entry.charge, {})
            for name, (settled, _) in postings.items():
                added[name] = sum_amounts(settled, added.get(name))
        if "requests" in body:
            self.rewritten = entry.number, body["requests"]
        if body.get("evidence"):
            for name in postings:
                self.evidence[f"{split(name)[1]} {body['evidence']}"] = entry.number
        for name, newest in body.get("people_lost", {}).items():
            first, _ = self.people.get(name, (UNKNOWN, ""))
            self.people[name] = first, newest

    def _note_refusal(self, entry: Entry, body: Mapping[str, Any]) -> None:
        """Note the runs that were refused; a halt is of the flow's own run."""
        is_first = "refused_in" not in body
        halts = {h for h in body.get("halts", ()) if split(h)[0] == entry.dataset}
        for run in body.get("runs", ()) if is_first else filter(None, [entry.run]):
            refusals, halted = self.runs.get(run, (0, set()))
            own = halts if run == entry.run else set()
            self.runs[run] = refusals + is_first, halted | own

    def _post(self, entry: Entry, name: str, settled: Amounts, held: Amounts) -> None:
        """Add a posting, and check a grant against a gate that was lowered."""
        if split(name)[0] != entry.dataset:
            self.report(f"it posts to {name!r}", entry.number)
        zero = (0,) * len(settled)
        before = self.accounts.get(name) or Account(name, zero, zero)
        _, old_settled, old_held, version, alerted, overdrawn = before
        sums = (*map(add, old_settled, settled),), (*map(add, old_held, held),)
        row = Account(name, *sums, version + 1, alerted, overdrawn)
        self.accounts[name] = row
        if min(*row.settled, *row.held) < 0:
            self.report(f"account {name!r} would hold less than nothing", entry.number)
        term = self.terms.get(split(name)[1])
        tightened = term is not None and term.entry > 1
        if entry.kind == "reserve" and tightened and name not in self.by_hand:
            used = (*map(add, row.settled, row.held),)
            if not is_admitted(term, name, used):
                what = f"a step was granted on account {name!r} above its gate"
                self.report(what, entry.number)

    def _pin(self, entry: Entry, body: Mapping[str, Any], row: Dataset) -> Dataset:
        """Note a term."""
        fields = body["term"]
        number = fields["number"]
        revision = 1 if entry.kind == "open" else self.terms[number].entry + 1
        term = Term(entry.dataset, number, revision, fields)
        self.terms[number] = term
        pinned = fields["pinned"]
        if pinned.get("source") is not None:
            self.sources[pinned["source"]] = pinned.get("population")
        if entry.kind == "access":
            self.access.setdefault(number, []).append(term)
        if entry.kind == "open":
            self.opened[number] = term
            self.opening[number] = body
        else:
            self.opened[number] = with_gates(self.opened[number], fields["gates"])
        return row._replace(term=number, revision=revision)


def with_gates(term: Term, revised: Mapping[str, Any]) -> Term:
    """Return a term with the gates of a revision that it was opened without.

    `others` rises where a share is reserved no longer; it never falls below what was
    used.
    """
    gates = dict(term.fields["gates"])
    for position, gate in revised.items():
        kind, _, name = position.partition("/")
        if kind == "others" or gate_in(gates, kind, name) is None:
            gates[position] = gate
    return term._replace(fields={**term.fields, "gates": gates})


def read_journal(
    transaction: Transaction, ledger: str, name: str, result: Verification
) -> Journal:
    """Read a journal, with its chain of hashes; go on after a finding."""
    journal = Journal(Dataset(name, hash=first_hash(ledger, name)), result)
    for columns in pages(transaction, "read_journal_page", name, 0, key=1):
        entry = Entry(*columns)
        if entry.number != journal.row.number + 1:
            journal.report(f"entry {journal.row.number + 1} is missing")
        if entry.with_hash(journal.row.hash).hash != entry.hash:
            what = "its content, or an entry before it, is not what was hashed"
            journal.report(what, entry.number)
        try:
            journal.add(entry)
        except without_interrupts(*UNREADABLE) as error:
            what = f"it is no entry of its kind ({type(error).__name__})"
            journal.report(what, entry.number)
            journal.row = journal.row._replace(number=entry.number, hash=entry.hash)
        result.entries += 1
    return journal
