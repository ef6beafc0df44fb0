"""The whole ledger, computed again from its journals.

Each dataset is read in one snapshot, page by page, in flat memory, while steps run.
Every hash and every sum is computed again; the rows of accounts, charges, releases and
terms are compared with the entries that made them. Grants, prices and settlements are
not decided again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from hashlib import sha256
from math import inf
from operator import add

from dpflow.exceptions import DpflowError, LedgerCorrupt, LedgerError
from dpflow.interrupts import contextmanager, suppress, without_interrupts
from dpflow.ledger.account_ids import split
from dpflow.ledger.audit.journals import Journal, Verification, read_journal
from dpflow.ledger.audit.terms import check_terms, find_terms
from dpflow.ledger.canonical import digest
from dpflow.ledger.decisions.gates import is_admitted
from dpflow.ledger.decisions.pinned_rules import gate_in
from dpflow.ledger.decisions.windows import window_total
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.tables.errors import UNREADABLE
from dpflow.ledger.tables.loaded import Rows
from dpflow.ledger.tables.rows import (
    Account,
    Charge,
    DamagedRow,
    Term,
    read_row,
)
from dpflow.ledger.tables.transaction import Transaction
from dpflow.ledger.views.reading import pages, read_postings

Progress = Callable[[int, int], None]
#: State of a charge that a kind of entry ends.
ENDED = ("settled", "void", "forfeited")
_STATES = {"settle": "settled", "void": "void", "forfeit": "forfeited", None: "open"}


def verify(
    ledger: Ledger,
    within: Transaction | None = None,
    *,
    progress: Progress | None = None,
) -> Verification:
    """Compute everything again, and compare it with the rows and the witness.

    Args:
        ledger: The ledger.
        within: A transaction that reads it, if there is one; else each dataset has a
            snapshot of its own.
        progress: Called with the entries that were read since, and with all.
    """
    result = Verification()
    with open_snapshot(ledger, within) as transaction:
        names = [name for (name,) in transaction.ask("read_named_datasets")]
        rows = transaction.ask("read_datasets", names=names)
        total = sum(row[6] for row in rows)
    result.values = ledger.digests.is_readable()
    for name in names:
        try:
            before = result.entries
            with open_snapshot(ledger, within) as transaction:
                verify_dataset(transaction, ledger, name, result)
            if progress is not None:
                progress(result.entries - before, total)
        except without_interrupts(*UNREADABLE, DpflowError) as error:
            result.add(f"it cannot be read: {error!s:.200}", name)
    witness = ledger.watch.witness
    if witness is not None:
        problem = ledger.watch.problem(within)
        result.witness = "agrees" if problem is None else "contradicts"
        with suppress(LedgerError):
            if not witness.exists():
                # `dpflow ledger trust` begins one, after a verification.
                result.witness, problem = "missing", None
        if problem is not None:
            result.add(problem)
    return result


def check_whole(
    ledger: Ledger, advice: str, within: Transaction | None = None, *, label: str = ""
) -> Verification:
    """Refuse a ledger that is damaged; the comparison with the witness is apart.

    Args:
        ledger: The ledger.
        advice: What was not done, and what to do.
        within: As for `verify`.
        label: The ledger that a copy is of.

    Raises:
        LedgerCorrupt: If something is not what its journals come to.
    """
    result, label = verify(ledger, within), label or ledger.address
    for bad in result.bad:
        if bad.dataset:
            msg = f"the ledger {label} is damaged: {bad}. {advice}"
            raise LedgerCorrupt(msg, ledger=label)
    return result


@contextmanager
def open_snapshot(
    ledger: Ledger, within: Transaction | None = None, *, is_of_copy: bool = False
) -> Iterator[Transaction]:
    """Give a snapshot of a ledger to a block, or the transaction that reads it."""
    with ledger.reading() if within is None else nullcontext(within) as transaction:
        transaction.is_of_copy |= is_of_copy
        transaction.begin(lock=False)
        yield transaction


def verify_dataset(
    transaction: Transaction, ledger: Ledger, name: str, result: Verification
) -> None:
    """Verify one dataset in one snapshot."""
    try:
        transaction.begin([name], lock=False)
    except DamagedRow as error:
        result.add(str(error), name)
        transaction.datasets = {}
    journal = read_journal(transaction, ledger.id, name, result)
    result.compare("dataset", name, transaction.datasets, {name: journal.row})
    held = check_charges(transaction, journal, result)
    rows = check_accounts(transaction, journal, held, result)
    check_tables(transaction, journal, result)
    check_releases(transaction, name, result)
    if result.values:
        check_values(transaction, ledger, name, result)
    check_gates(rows, journal, result)
    check_terms(rows, journal.opening, lambda what: result.add(what, name))
    result.heads[name] = journal.row.number, journal.row.hash


def check_charges(
    transaction: Transaction, journal: Journal, result: Verification
) -> dict[str, list[int]]:
    """Compare charges with their entries; return what open ones hold, by account."""
    held, name = dict[str, list[int]](), journal.row.name
    for row in pages(transaction, "read_charge_page", name, 0):
        number, kind, charge_made, body, writer, *where = row[:8]
        end, end_kind, charge_ended, *columns, postings, step, flow = row[8:]
        result.reservations += 1
        try:
            charge = Charge.from_columns(tuple(columns))
        except without_interrupts(*UNREADABLE) as error:
            result.add(f"the charge that it made: {error}", name, number)
            continue
        is_rewritten = number < journal.rewritten[0]
        hashed = None if body is None or is_rewritten else json.loads(body)["request"]
        if (kind, charge_made) != ("reserve", charge.id):
            problem = f"no reserve of charge {charge.id}"
        elif hashed not in (None, digest(columns[8])):
            problem = f"the request of charge {charge.id} is not what was hashed"
        elif (
            columns[4:7] != where
            or [step, flow] != where[:2]
            or charge.login not in (None, writer)
        ):
            problem = f"charge {charge.id} names another step, flow, run or login"
        elif not has_its_amounts(charge, postings, journal):
            problem = f"the amounts of charge {charge.id} are not those of its entries"
        else:
            problem = find_wrong_end(charge, end, end_kind, charge_ended)
        if problem:
            result.add(problem, name, number)
        if charge.state == "open":
            add_held(held, charge, name)
    for number, kind in transaction.ask("read_loose_entries", dataset=name):
        result.add(f"no charge has this {kind}", name, number)
    return held


def add_held(held: dict[str, list[int]], charge: Charge, dataset: str) -> None:
    """Add what an open charge holds on the accounts of a dataset."""
    for account, share in charge.amounts.items():
        if split(account)[0] == dataset:
            before = held.get(account, [0] * len(share.amount))
            held[account] = [*map(add, before, share.amount)]


def has_its_amounts(charge: Charge, postings: str, journal: Journal) -> bool:
    """Return True if a charge holds what it reserved in a dataset, and corrections."""
    added, name = journal.added.get(charge.id, {}), journal.row.name
    own = {k: v for k, v in charge.amounts.items() if split(k)[0] == name}
    stated = {k: (v, added.get(k)) for k, (_, v) in read_postings(postings).items()}
    return {k: (v.amount, v.added) for k, v in own.items()} == stated


def hash_requests(transaction: Transaction, dataset: str, before: float = inf) -> str:
    """Return the digest over the charges of a dataset and their requests.

    Args:
        transaction: A transaction.
        dataset: Name of the dataset.
        before: Only charges that an earlier entry of the journal made.
    """
    hashed = sha256()
    for row in pages(transaction, "read_charge_page", dataset, 0):
        if row[0] < before:
            hashed.update(f"{row[11]} {digest(row[19])}\n".encode())
    return hashed.hexdigest()


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
    held: dict[str, list[int]],
    result: Verification,
) -> Rows:
    """Compare accounts with the sums of postings; return them as rows."""
    name = journal.row.name
    rows = Rows(datasets={name: journal.row})
    rows.known_terms = {(name, n): term for n, term in journal.opened.items()}
    between = {"first": f"{name}#", "last": f"{name}$"}
    for columns in transaction.ask("read_accounts_between", **between):
        result.accounts += 1
        try:
            rows.account_rows[columns[0]] = read_row(Account, columns)
        except without_interrupts(*UNREADABLE) as error:
            result.add(str(error), name)
            journal.accounts.pop(columns[0], None)
            held.pop(columns[0], None)
    result.compare("account", name, rows.account_rows, journal.accounts)
    holding = {row.id: row.held for row in rows.account_rows.values() if any(row.held)}
    by_charges = {account: (*sums,) for account, sums in held.items() if any(sums)}
    result.compare("the amount held on", name, holding, by_charges)
    return rows


def check_tables(
    transaction: Transaction, journal: Journal, result: Verification
) -> None:
    """Compare terms, stores of people, runs and evidence with their entries."""
    name, (upgraded_at, requests) = journal.row.name, journal.rewritten
    if upgraded_at and hash_requests(transaction, name, upgraded_at) != requests:
        what = "the requests of before are not those that it wrote"
        result.add(what, name, upgraded_at)
    terms = [read_row(Term, x) for x in transaction.ask("read_terms", datasets=[name])]
    result.compare("term", name, {term.number: term for term in terms}, journal.terms)
    between = {"first": f"{name}#", "last": f"{name}$"}
    stores = transaction.ask("read_people_of", **between)
    people = {account: (first, newest) for account, first, newest in stores}
    result.compare("the store of people of", name, people, journal.people)
    sources = transaction.ask("read_all_sources")
    own = {source: population for source, of, population in sources if of == name}
    # A source may have passed to another dataset.
    passed = {source for source, of, _ in sources if of != name}
    stated = {k: v for k, v in journal.sources.items() if k not in passed}
    result.compare("source", name, own, stated)
    refused = transaction.ask("read_runs_of", dataset=name)
    runs = {run: (n, {*json.loads(halted or "[]")}) for run, n, halted in refused}
    for run, (refusals, halted) in journal.runs.items():
        # A ledger of version 4 brought runs without their entries.
        number, halts = runs.get(run, (0, set()))
        if number < refusals or not halted <= halts:
            result.add(f"run {run!r} lacks a refusal of its entries", name)
    rows = transaction.ask("read_evidence_of", dataset=name)
    evidence = {f"{term} {hashed}": number for _, term, hashed, number in rows}
    # Terms share the parts of windows, which have no number.
    charged = {k: n for k, n in journal.evidence.items() if not k.startswith("0 ")}
    result.compare("evidence", name, evidence, charged)


def check_releases(transaction: Transaction, name: str, result: Verification) -> None:
    """Compare releases with the ends of their charges."""
    for row in pages(transaction, "read_release_page", name, ""):
        *own, charge, state, stored = row[:6]
        *named, request, charge_state, body, withdrawn = row[6:]
        result.releases += 1
        key_text = json.loads(request).get("key_text", "") if request else ""
        if request and own != [named[0], key_text, named[1]]:
            what = f"release {own[1]!r} is not the one that its charge {charge} names"
            result.add(what, name)
        ended = {} if body is None else json.loads(body)
        completed = charge_state == "settled" and ended.get("outcome") == "completed"
        right = {
            "claimed": charge_state == "open" and stored is None,
            "settled": completed and ended.get("digest") == stored,
            "withdrawn": completed and withdrawn is not None,
            "free": charge_state in ENDED and not completed and stored is None,
        }
        if not right.get(state):
            what = f"release {own[1]!r} is {state}, and its charge {charge} is not"
            result.add(what, name)
    for (charge,) in transaction.ask("read_lost_releases", dataset=name):
        result.add(f"the release of charge {charge} was removed", name)


def check_values(
    transaction: Transaction, ledger: Ledger, name: str, result: Verification
) -> None:
    """Compare stored values with their digests."""
    for key, charge, stored, value in pages(transaction, "read_values", name, ""):
        if ledger.digests.of_value(charge, value) != stored:
            result.add(f"the value of release {key} is not the settled one", name)


def find_later_shares(journal: Journal, account: str) -> list[Term]:
    """Return the terms whose change of access gave a share its later gates."""
    number, kind = split(account)[1:3]
    if kind != "flow":
        return []
    # Terms share the accounts of windows, which have no number.
    return [t for n, terms in journal.access.items() if number in (0, n) for t in terms]


def check_gates(rows: Rows, journal: Journal, result: Verification) -> None:
    """Find accounts above the gate of their term's first revision.

    The account of a share may be at the largest gate that a change of access gave it.
    """
    for account in rows.account_rows.values():
        # A charge by hand may halt an odometer, which is no overdraft.
        halted = split(account.id)[2] == "odometer" and account.id in journal.by_hand
        if account.overdrawn or halted:
            continue
        terms = find_terms(rows, account.id) + find_later_shares(journal, account.id)
        gates = [gate_in(t.fields["gates"], *split(account.id)[2:4]) for t in terms]
        if not any(gates) and account.id in journal.by_hand:
            # A repair writes the accounts of a lost term or share without a gate.
            continue
        total = window_total(rows, account.id)
        used = (*map(add, account.settled, account.held),)
        amounts = used if total is None else total.amounts
        if not any(is_admitted(term, account.id, amounts) for term in terms) and (
            total is None or not has_overdrawn_part(rows, account)
        ):
            result.add(f"account {account.id!r} is above its gate", journal.row.name)


def has_overdrawn_part(rows: Rows, account: Account) -> bool:
    """Return True if a part that shares windows with an account is overdrawn."""
    return any(
        other.overdrawn and split(other.id)[4] and not split(other.id)[1]
        for other in rows.accounts(split(account.id)[0])
    )
