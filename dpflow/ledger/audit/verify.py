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
from dataclasses import replace
from hashlib import sha256
from math import inf
from operator import add

from dpflow.exceptions import DpflowError, LedgerCorrupt, LedgerError
from dpflow.interrupts import contextmanager, suppress, without_interrupts
from dpflow.ledger.account_ids import split
from dpflow.ledger.audit.journals import Journal, Verification, read_journal
from dpflow.ledger.canonical import canonical, digest
from dpflow.ledger.decisions.gates import is_admitted
from dpflow.ledger.decisions.lifetimes import is_charged, lifetime_error, term_views
from dpflow.ledger.decisions.pinned_rules import gate_in
from dpflow.ledger.decisions.terms import BY_ITSELF
from dpflow.ledger.decisions.windows import window_total
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.tables.errors import UNREADABLE
from dpflow.ledger.tables.loaded import Rows
from dpflow.ledger.tables.rows import Account, Charge, DamagedRow, Term, read_row
from dpflow.ledger.tables.transaction import Transaction
from dpflow.ledger.views.reading import pages, read_postings

Progress = Callable[[int, int], None]
#: Sums of amounts by account.
Sums = dict[str, list[int]]
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
    journal.compare("dataset", transaction.datasets, {name: journal.row})
    held = check_charges(transaction, journal)
    rows = check_accounts(transaction, journal, held)
    check_tables(transaction, journal)
    check_releases(transaction, journal)
    if result.values:
        check_values(transaction, ledger, journal)
    check_gates(rows, journal)
    check_terms(rows, journal)
    result.heads[name] = journal.row.number, journal.row.hash


def check_charges(transaction: Transaction, journal: Journal) -> Sums:
    """Compare charges with their entries; return what open ones hold, by account."""
    held, name = Sums(), journal.row.name
    for row in pages(transaction, "read_charge_page", name, 0):
        number, kind, charge_made, body, writer, *where = row[:8]
        end, end_kind, charge_ended, *columns, postings, step, flow = row[8:]
        journal.result.reservations += 1
        try:
            charge = Charge.from_columns(tuple(columns))
        except without_interrupts(*UNREADABLE) as error:
            journal.report(f"the charge that it made: {error}", number)
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
            journal.report(problem, number)
        if charge.state == "open":
            add_held(held, charge, name)
    for number, kind in transaction.ask("read_loose_entries", dataset=name):
        journal.report(f"no charge has this {kind}", number)
    return held


def add_held(held: Sums, charge: Charge, dataset: str) -> None:
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


def check_accounts(transaction: Transaction, journal: Journal, held: Sums) -> Rows:
    """Compare accounts with the sums of postings; return them as rows."""
    name = journal.row.name
    rows = Rows(datasets={name: journal.row})
    rows.known_terms = {(name, n): term for n, term in journal.opened.items()}
    between = {"first": f"{name}#", "last": f"{name}$"}
    for columns in transaction.ask("read_accounts_between", **between):
        journal.result.accounts += 1
        try:
            rows.account_rows[columns[0]] = read_row(Account, columns)
        except without_interrupts(*UNREADABLE) as error:
            journal.report(str(error))
            journal.accounts.pop(columns[0], None)
            held.pop(columns[0], None)
    journal.compare("account", rows.account_rows, journal.accounts)
    holding = {row.id: row.held for row in rows.account_rows.values() if any(row.held)}
    by_charges = {account: (*sums,) for account, sums in held.items() if any(sums)}
    journal.compare("the amount held on", holding, by_charges)
    return rows


def check_tables(transaction: Transaction, journal: Journal) -> None:
    """Compare terms, stores of people, runs and evidence with their entries."""
    name, (upgraded_at, requests) = journal.row.name, journal.rewritten
    if upgraded_at and hash_requests(transaction, name, upgraded_at) != requests:
        what = "the requests of before are not those that it wrote"
        journal.report(what, upgraded_at)
    terms = [read_row(Term, x) for x in transaction.ask("read_terms", datasets=[name])]
    journal.compare("term", {term.number: term for term in terms}, journal.terms)
    between = {"first": f"{name}#", "last": f"{name}$"}
    stores = transaction.ask("read_people_of", **between)
    people = {account: (first, newest) for account, first, newest in stores}
    journal.compare("the store of people of", people, journal.people)
    sources = transaction.ask("read_all_sources")
    own = {source: population for source, of, population in sources if of == name}
    # A source may have passed to another dataset.
    passed = {source for source, of, _ in sources if of != name}
    stated = {k: v for k, v in journal.sources.items() if k not in passed}
    journal.compare("source", own, stated)
    refused = transaction.ask("read_runs_of", dataset=name)
    runs = {run: (n, {*json.loads(halted or "[]")}) for run, n, halted in refused}
    for run, (refusals, halted) in journal.runs.items():
        # A ledger of version 4 brought runs without their entries.
        number, halts = runs.get(run, (0, set()))
        if number < refusals or not halted <= halts:
            journal.report(f"run {run!r} lacks a refusal of its entries")
    rows = transaction.ask("read_evidence_of", dataset=name)
    evidence = {f"{term} {hashed}": number for _, term, hashed, number in rows}
    # Terms share the parts of windows, which have no number.
    charged = {k: n for k, n in journal.evidence.items() if not k.startswith("0 ")}
    journal.compare("evidence", evidence, charged)


def check_releases(transaction: Transaction, journal: Journal) -> None:
    """Compare releases with the ends of their charges."""
    name = journal.row.name
    for row in pages(transaction, "read_release_page", name, ""):
        *own, charge, state, stored = row[:6]
        *named, request, charge_state, body, withdrawn = row[6:]
        journal.result.releases += 1
        key_text = json.loads(request).get("key_text", "") if request else ""
        if request and own != [named[0], key_text, named[1]]:
            what = f"release {own[1]!r} is not the one that its charge {charge} names"
            journal.report(what)
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
            journal.report(what)
    for (charge,) in transaction.ask("read_lost_releases", dataset=name):
        journal.report(f"the release of charge {charge} was removed")


def check_values(transaction: Transaction, ledger: Ledger, journal: Journal) -> None:
    """Compare stored values with their digests."""
    values = pages(transaction, "read_values", journal.row.name, "")
    for key, charge, stored, value in values:
        if ledger.digests.of_value(charge, value) != stored:
            journal.report(f"the value of release {key} is not the settled one")


def check_terms(rows: Rows, journal: Journal) -> None:
    """Check the hash of each pinned copy, and each term against the lifetime."""
    name = journal.row.name
    # An overdraft may be newer than the next term.
    views = [replace(view, overdrawn=False) for view in term_views(rows, name)]
    for index, term in enumerate(rows.terms(name)):
        if digest(canonical(term.fields["pinned"])) != term.fields["policy_hash"]:
            journal.report(f"the pinned policy of term {term.number} was edited")
        if term.fields["reason"] in BY_ITSELF or not views[index].charged:
            continue
        raises, before = bool(journal.opening[term.number].get("raises")), views[:index]
        if error := lifetime_error(name, before, views[index], raises=raises):
            journal.report(error.message)


def find_terms(rows: Rows, account: str) -> list[Term]:
    """Return the term of an account, or the charged terms that share its windows."""
    dataset, number, *_ = split(account)
    if number:
        return [*filter(None, [rows.term(dataset, number)])]
    return [term for term in rows.terms(dataset) if is_charged(rows, term)]


def find_later_shares(journal: Journal, account: str) -> list[Term]:
    """Return the terms whose change of access gave a share its later gates."""
    number, kind = split(account)[1:3]
    if kind != "flow":
        return []
    # Terms share the accounts of windows, which have no number.
    return [t for n, terms in journal.access.items() if number in (0, n) for t in terms]


def check_gates(rows: Rows, journal: Journal) -> None:
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
            journal.report(f"account {account.id!r} is above its gate")


def has_overdrawn_part(rows: Rows, account: Account) -> bool:
    """Return True if a part that shares windows with an account is overdrawn."""
    return any(
        other.overdrawn and split(other.id)[4] and not split(other.id)[1]
        for other in rows.accounts(split(account.id)[0])
    )
