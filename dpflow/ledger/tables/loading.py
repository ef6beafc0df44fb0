"""Rows that a decision reads, and the questions that load them.

Which rows a command reads follows from its request, with the terms as this process
remembers them. If the datasets have other terms, the rows are read again, once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dpflow.ledger.account_ids import split
from dpflow.ledger.decisions.gates import accounts_of
from dpflow.ledger.decisions.terms import agrees
from dpflow.ledger.decisions.windows import name_near
from dpflow.ledger.requests import Request
from dpflow.ledger.tables.loaded import Rows, Terms
from dpflow.ledger.tables.rows import (
    Account,
    Charge,
    ChargeDataset,
    DamagedRow,
    Entry,
    Evidence,
    PeopleStore,
    Release,
    Run,
    Source,
    Term,
    read_row,
    read_term,
)
from dpflow.ledger.tables.transaction import MissingDatasets, Questions, Transaction
from dpflow.policy import Policy
from dpflow.policy.windows import window_length

# Questions


def name_accounts(request: Request, terms: Mapping[str, int]) -> list[str]:
    """Return the ids of the accounts that decide a request.

    Args:
        request: The step.
        terms: Number of the newest term of each dataset.
    """
    names: dict[str, None] = {}
    for policy in (*request.policies, *request.populations):
        newest = max(terms.get(policy.dataset, 1), 1)
        # Older terms decide whether an uncharged one gets its first charge.
        for number in range(1, newest):
            names[f"{policy.dataset}#{number}"] = None
        length = policy.window.length if policy.window else 0
        for name in accounts_of(policy, request, newest):
            names[name] = None
            if length:
                names.update(
                    (near, None) for _, near in name_near(name, length, length)
                )
    return [*names]


def name_datasets(charge: Charge) -> list[str]:
    """Return the datasets and populations of a charge, sorted."""
    return sorted({split(name)[0] for name in charge.amounts})


def name_neighbours(accounts: Iterable[str], terms: Iterable[Term]) -> list[str]:
    """Return accounts with all in a window that contains one of them or is next."""
    lengths = {term.book: window_length(term.facts["pinned"]) for term in terms}
    names: dict[str, None] = {}
    for name in accounts:
        names[name] = None
        dataset, _, _, _, part = split(name)
        if part and (length := lengths.get(dataset, 0)):
            near = name_near(name, length + 1)
            names.update((other, None) for _, other in near)
    return [*names]


def ask_accounts(names: Iterable[str]) -> tuple[str, dict[str, Any]]:
    """Return the question for accounts."""
    return "read_accounts", {"ids": [*names]}


def read_accounts(answer: Iterable[tuple[Any, ...]]) -> dict[str, Account]:
    """Return accounts by id."""
    return {row[0]: read_row(Account, row) for row in answer}


def read_claim(
    answer: Sequence[Sequence[Any]],
) -> tuple[Charge | None, Release | None]:
    """Return the charge and the release of an answer; None for either without one."""
    if not answer:
        return None, None
    charge, release = answer[0][:_CHARGE_COLUMNS], answer[0][_CHARGE_COLUMNS:]
    return (
        None if charge[0] is None else read_row(Charge, charge),
        None if release[0] is None else read_row(Release, release),
    )


#: Number of columns of a charge, before those of its release.
_CHARGE_COLUMNS = 12


def read_terms(
    transaction: Transaction, remembered: Terms, names: Iterable[str]
) -> None:
    """Read and remember the terms of datasets."""
    if datasets := sorted(names):
        for columns in transaction.ask("read_terms", datasets=datasets):
            term = read_term(columns)
            remembered[term.book, term.number] = term


def load_terms(
    transaction: Transaction, remembered: Terms, names: Iterable[str]
) -> bool:
    """Read the terms of locked datasets that this process does not remember.

    Returns:
        True if the newest term of one was another than remembered.
    """
    stale = []
    for name in names:
        dataset = transaction.datasets.get(name)
        if dataset is None:
            continue
        # A ledger that was put back has fewer terms than this process saw.
        newer = [key for key in remembered if key[0] == name and key[1] > dataset.term]
        for key in newer:
            del remembered[key]
        term = remembered.get((name, dataset.term))
        changed = term is None or term.entry != dataset.revision
        if newer or (dataset.term and changed):
            stale.append(name)
    read_terms(transaction, remembered, stale)
    for name in stale:
        dataset = transaction.datasets[name]
        newest = remembered.get((name, dataset.term))
        is_other = newest is None or newest.entry != dataset.revision
        # A repair freezes a dataset whose newest term is lost.
        if dataset.term and dataset.frozen is None and is_other:
            message = f"term {dataset.term} of dataset {name!r} is missing"
            raise DamagedRow(message)
    return bool(stale)


def newest_numbers(remembered: Terms, names: Iterable[str]) -> dict[str, int]:
    """Return the number of the newest remembered term of each dataset."""
    wanted, numbers = {*names}, dict[str, int]()
    for dataset, number in remembered:
        if dataset in wanted:
            numbers[dataset] = max(number, numbers.get(dataset, 0))
    return numbers


def load_reserve_rows(
    transaction: Transaction, request: Request, remembered: Terms, *, lock: bool = True
) -> Rows:
    """Lock the datasets of a request and read all that decides about it.

    Args:
        transaction: The transaction.
        request: The step.
        remembered: Terms of this process.
        lock: Lock the datasets; without it nothing can be written.
    """
    names = request.locked
    ids = name_accounts(request, newest_numbers(remembered, names))
    runs = [*dict.fromkeys(filter(None, (*request.enclosing_runs, request.flow_run)))]
    questions: list[tuple[str, dict[str, Any]]] = [
        ask_accounts(ids),
        ("read_charge", {"id": request.reservation}),
    ]
    if runs:
        questions.append(("read_runs", {"ids": runs, "datasets": names}))
    if request.release_key is not None:
        questions.append(("read_release", {"key": request.release_key}))
    accounts, charges, *more = transaction.begin(names, questions, lock=lock)
    if load_terms(transaction, remembered, names):
        ids = name_accounts(request, newest_numbers(remembered, names))
        accounts = transaction.run([ask_accounts(ids)])[0]
    rows = Rows(
        datasets=transaction.datasets,
        known_terms=remembered,
        account_rows=read_accounts(accounts),
        read_ids={*ids},
    )
    if charges:
        rows.charge, _ = read_claim(charges)
        rows.charge_datasets = load_charge_datasets(transaction, request.reservation)
    load_claims(transaction, rows, (*request.policies, *request.populations))
    if runs:
        found = map(Run.from_columns, more.pop(0))
        rows.runs = {(run.id, run.dataset): run for run in found}
    if more:
        rows.release_charge, rows.release = read_claim(more[0])
        if rows.release is not None and rows.release_charge is None:
            message = f"the charge of release {rows.release.key_text!r} is missing"
            raise ValueError(message)
    return rows


def load_claims(
    transaction: Transaction, rows: Rows, policies: Sequence[Policy]
) -> None:
    """Read which datasets claim the sources of policies that open a term."""
    sources = set()
    for policy in policies:
        term = rows.newest(policy.dataset)
        if policy.source is not None and (term is None or not agrees(term, policy)):
            sources.add(policy.source)
    if not sources:
        return
    claims: dict[str, dict[str, str]] = {source: {} for source in sources}
    for columns in transaction.ask("read_sources"):
        pinned = read_term(columns).facts["pinned"]
        if pinned.get("source") in claims:
            claims[pinned["source"]][columns[0]] = pinned.get("population", "")
    found = [transaction.ask("read_source", name=source) for source in sources]
    rows.claims = claims
    rows.sources = {row[0]: Source(*row) for answer in found for row in answer}


def load_earlier_amounts(
    transaction: Transaction, dataset: str, step: str
) -> list[Mapping[str, Any]]:
    """Read the amounts of the newest 100 charges of a step in a dataset."""
    rows = transaction.ask("read_earlier_charges", dataset=dataset, step=step)
    return [json.loads(text) for (text,) in rows]


def load_charge_datasets(transaction: Transaction, charge: str) -> list[ChargeDataset]:
    """Read the datasets of a charge, with the entries that made and ended it."""
    rows = transaction.ask("read_charge_datasets", charge=charge)
    return [ChargeDataset(*row) for row in rows]


def load_end_rows(
    transaction: Transaction,
    charge: Charge,
    remembered: Terms,
    *,
    lock: bool = True,
) -> Rows:
    """Lock the datasets of a charge and read what its end changes.

    Args:
        transaction: The transaction.
        charge: The charge as it was remembered or read without a lock.
        remembered: Terms of this process.
        lock: Lock the datasets; without it nothing can be written.
    """
    names = name_datasets(charge)
    terms = [t for n in names if (t := _newest(remembered, n)) is not None]
    accounts = name_neighbours(charge.amounts, terms)
    questions = [
        ask_accounts(accounts),
        ("read_charge", {"id": charge.id}),
        ("read_charge_datasets", {"charge": charge.id}),
    ]
    found, charges, parts = transaction.begin(names, questions, lock=lock)
    if load_terms(transaction, remembered, names):
        terms = [t for n in names if (t := _newest(remembered, n)) is not None]
        accounts = name_neighbours(charge.amounts, terms)
        found = transaction.run([ask_accounts(accounts)])[0]
    load_missing_terms(transaction, remembered, charge.amounts)
    current, release = read_claim(charges)
    return Rows(
        datasets=transaction.datasets,
        known_terms=remembered,
        account_rows=read_accounts(found),
        read_ids={*accounts},
        charge=current,
        charge_datasets=[ChargeDataset(*row) for row in parts],
        release=release,
    )


def load_missing_terms(
    transaction: Transaction, remembered: Terms, accounts: Iterable[str]
) -> None:
    """Read the older terms of accounts that this process does not remember."""
    named = map(split, accounts)
    missing = {d for d, n, *_ in named if n and (d, n) not in remembered}
    read_terms(transaction, remembered, missing)


def _newest(remembered: Terms, name: str) -> Term | None:
    number = newest_numbers(remembered, [name]).get(name, 0)
    return remembered.get((name, number))


def load_office_rows(
    transaction: Transaction,
    policy: Policy | str,
    remembered: Terms,
    *,
    lock: bool = True,
) -> Rows:
    """Lock one dataset and read all its terms and accounts, for an operator.

    Args:
        transaction: The transaction.
        policy: The policy that is applied, or the name of a dataset.
        remembered: Terms of this process.
        lock: Lock the dataset; without it nothing can be written.
    """
    name = policy if isinstance(policy, str) else policy.dataset
    questions: Questions = [
        ("read_accounts_between", {"first": f"{name}#", "last": f"{name}$"}),
        ("read_charged_flows", {"dataset": name}),
        ("read_terms", {"datasets": [name]}),
    ]
    try:
        accounts, flows, terms = transaction.begin([name], questions, lock=lock)
    except MissingDatasets:
        if isinstance(policy, str):
            return Rows(known_terms=remembered)
        raise
    for columns in terms:
        term = read_term(columns)
        remembered[term.book, term.number] = term
    rows = Rows(
        datasets=transaction.datasets,
        known_terms=remembered,
        account_rows=read_accounts(accounts),
    )
    if name in rows.datasets:
        charged = tuple(sorted(flow for (flow,) in flows))
        rows.datasets[name] = rows.datasets[name]._replace(flows=charged)
    if not isinstance(policy, str):
        load_claims(transaction, rows, [policy])
    return rows


def load_prior_rows(transaction: Transaction, prior: Any, remembered: Terms) -> Rows:
    """Read what decides about prior spending, and where its evidence was charged."""
    rows = load_reserve_rows(transaction, prior.request, remembered)
    rows.charge = None
    rows.evidence = load_evidence(transaction, prior.evidence)
    return rows


def load_amendment_rows(
    transaction: Transaction, charge: Charge, evidence: str | None, remembered: Terms
) -> Rows:
    """Read what decides about a correction of a charge."""
    rows = load_end_rows(transaction, charge, remembered)
    rows.evidence = load_evidence(transaction, evidence)
    return rows


def load_evidence(transaction: Transaction, digest: str | None) -> list[Evidence]:
    """Read where an evidence was charged before."""
    if digest is None:
        return []
    return [Evidence(*row) for row in transaction.ask("read_evidence", digest=digest)]


def load_payment_rows(
    transaction: Transaction,
    charge: Charge,
    account: str,
    remembered: Terms,
    *,
    lock: bool = True,
) -> Rows:
    """Read what decides about a payment of people."""
    rows = load_end_rows(transaction, charge, remembered, lock=lock)
    found = transaction.ask("read_people_store", account=account)
    rows.people = {row[0]: PeopleStore(*row) for row in found}
    return rows


def load_withdrawal_rows(transaction: Transaction, key: str, remembered: Terms) -> Rows:
    """Read a release, lock its dataset, and read it again."""
    question = [("read_release", {"key": key})]
    (found,) = transaction.begin([], question, lock=False)
    _, release = read_claim(found)
    if release is None:
        return Rows(known_terms=remembered)
    (found,) = transaction.begin([release.dataset], question, lock=True)
    _, release = read_claim(found)
    return Rows(datasets=transaction.datasets, known_terms=remembered, release=release)


def load_sent(
    transaction: Transaction, datasets: Sequence[str], command: str
) -> list[Entry]:
    """Read the entries that an earlier sending of a command wrote."""
    rows = transaction.ask("find_command", datasets=[*datasets], command=command)
    return [Entry(*row) for row in rows]


def load_run_rows(
    transaction: Transaction, request: Request, dataset: str, remembered: Terms
) -> Rows:
    """Lock a dataset, and read the rows of the runs around a step there."""
    runs = [*dict.fromkeys(filter(None, (*request.enclosing_runs, request.flow_run)))]
    question = ("read_runs", {"ids": runs, "datasets": [dataset]})
    (found,) = transaction.begin([dataset], [question], lock=True)
    rows = Rows(datasets=transaction.datasets, known_terms=remembered)
    rows.runs = {(run.id, run.dataset): run for run in map(Run.from_columns, found)}
    return rows
