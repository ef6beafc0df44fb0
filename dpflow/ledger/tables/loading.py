"""Rows that a decision reads, and the questions that load them.

Which rows a command reads follows from its scope, with the terms as this process
remembers them. If the datasets have other terms, the accounts are read again, once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
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
    Dataset,
    Entry,
    Evidence,
    PeopleStore,
    Release,
    Run,
    Source,
    Term,
    read_row,
)
from dpflow.ledger.tables.transaction import MissingDatasets, Transaction
from dpflow.policy import Policy
from dpflow.policy.windows import window_length


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Rows that a command locks and reads.

    Attributes:
        datasets: Names of datasets and populations, sorted.
        accounts: Returns the ids of accounts, from the terms that this process
            remembers; None for one dataset with all its accounts, terms and flows.
        charge: Id of the charge that the command names.
        release_key: Key of the release that the command names.
        runs: Ids of flow runs.
        policies: Policies that may open a term; their sources are compared.
        evidence: Digest of an evidence.
        people: Account of a store of people.
        command: Id under which an earlier sending wrote entries.
        is_witnessed: True if the witness is compared before the decision.
        is_made: True if a dataset without a row gets one.
    """

    datasets: Sequence[str]
    accounts: Callable[[Terms], list[str]] | None = None
    charge: str | None = None
    release_key: str | None = None
    runs: Sequence[str] = ()
    policies: Sequence[Policy] = ()
    evidence: str | None = None
    people: str | None = None
    command: str | None = None
    is_witnessed: bool = False
    is_made: bool = True

    def questions(self, ids: Sequence[str], *, again: bool) -> dict[str, Any]:
        """Return the statements that read the rows, by what they read.

        Args:
            ids: Ids of accounts.
            again: Whether the command was sent before.
        """
        asked: dict[str, Any] = {"accounts": ("read_accounts", {"ids": ids})}
        if self.accounts is None:
            (name,) = self.datasets
            between = {"first": f"{name}#", "last": f"{name}$"}
            asked["accounts"] = ("read_accounts_between", between)
            asked["people"] = ("read_people_of", between)
            asked["flows"] = ("read_charged_flows", {"dataset": name})
            asked["terms"] = ("read_terms", {"datasets": [name]})
        by_key = (
            ("charge", "read_charge", "id", self.charge),
            ("parts", "read_charge_datasets", "charge", self.charge),
            ("release", "read_release", "key", self.release_key),
            ("evidence", "read_evidence", "digest", self.evidence),
            ("people", "read_people_store", "account", self.people),
        )
        for rows, statement, key, value in by_key:
            if value is not None:
                asked[rows] = statement, {key: value}
        names = [*self.datasets]
        if self.runs:
            asked["runs"] = "read_runs", {"ids": [*self.runs], "datasets": names}
        if again and self.command is not None:
            asked["sent"] = "find_command", {"datasets": names, "command": self.command}
        return asked


def find_scope(request: Request, **changes: Any) -> Scope:
    """Return the scope of a step."""
    names = request.locked
    fields: dict[str, Any] = {
        "accounts": lambda terms: name_accounts(request, newest_numbers(terms, names)),
        "charge": request.reservation,
        "release_key": request.release_key,
        "runs": request.runs,
        "policies": (*request.policies, *request.populations),
        "command": request.reservation,
        "is_witnessed": True,
    }
    return Scope(datasets=names, **(fields | changes))


def find_charge_scope(charge: Charge, **changes: Any) -> Scope:
    """Return the scope of a command about a charge, as it was read without a lock."""
    names = sorted({split(name)[0] for name in charge.amounts})

    def accounts(terms: Terms) -> list[str]:
        newest = newest_numbers(terms, names)
        return name_neighbours(charge.amounts, map(terms.__getitem__, newest.items()))

    return Scope(datasets=names, accounts=accounts, charge=charge.id, **changes)


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


def name_neighbours(accounts: Iterable[str], terms: Iterable[Term]) -> list[str]:
    """Return accounts with all in a window that contains one of them or is next."""
    lengths = {term.book: window_length(term.fields["pinned"]) for term in terms}
    names: dict[str, None] = {}
    for name in accounts:
        names[name] = None
        dataset, _, _, _, part = split(name)
        if part and (length := lengths.get(dataset, 0)):
            near = name_near(name, length + 1)
            names.update((other, None) for _, other in near)
    return [*names]


def newest_numbers(remembered: Terms, names: Iterable[str]) -> dict[str, int]:
    """Return the number of the newest remembered term of each dataset."""
    wanted = {*names}
    return {name: number for name, number in sorted(remembered) if name in wanted}


# Rows


def load_rows(
    transaction: Transaction,
    scope: Scope,
    remembered: Terms,
    *,
    lock: bool = True,
    again: bool = False,
) -> Rows:
    """Lock the datasets of a scope and read its rows.

    Args:
        transaction: The transaction.
        scope: What the command reads.
        remembered: Terms of this process.
        lock: Lock the datasets; without it nothing can be written.
        again: Whether the command was sent before.
    """
    ids = [] if scope.accounts is None else scope.accounts(remembered)
    asked = scope.questions(ids, again=again)
    try:
        answers = transaction.begin(scope.datasets, [*asked.values()], lock=lock)
    except MissingDatasets:
        if scope.is_made:
            raise
        return Rows(known_terms=remembered)
    rows_of = dict(zip(asked, answers, strict=True))
    if scope.accounts is None:
        add_terms(remembered, rows_of["terms"])
    elif load_terms(transaction, remembered, scope.datasets):
        ids = scope.accounts(remembered)
        rows_of["accounts"] = transaction.ask("read_accounts", ids=ids)
    rows = Rows(
        datasets=transaction.datasets,
        known_terms=remembered,
        account_rows=read_accounts(rows_of["accounts"]),
        read_ids={*ids},
    )
    rows.charge, rows.release = read_claim(rows_of.get("charge", ()))
    rows.charge_datasets = [ChargeDataset(*row) for row in rows_of.get("parts", ())]
    if scope.policies:
        load_claims(transaction, rows, scope.policies)
    if scope.release_key is not None:
        rows.release_charge, rows.release = read_claim(rows_of["release"])
        if rows.release is not None and rows.release_charge is None:
            message = f"the charge of release {rows.release.key_text!r} is missing"
            raise DamagedRow(message)
    _add_rare_rows(rows, rows_of)
    return rows


def _add_rare_rows(rows: Rows, rows_of: Mapping[str, Iterable[Any]]) -> None:
    """Add the rows that few commands read."""
    for run in (read_row(Run, row) for row in rows_of.get("runs", ())):
        rows.runs[run.id, run.dataset] = run
    for name, dataset in rows.datasets.items() if "flows" in rows_of else ():
        flows = tuple(sorted(flow for (flow,) in rows_of["flows"]))
        rows.datasets[name] = dataset._replace(flows=flows)
    rows.people = {row[0]: PeopleStore(*row) for row in rows_of.get("people", ())}
    rows.evidence = [Evidence(*row) for row in rows_of.get("evidence", ())]
    rows.sent = [Entry(*row) for row in rows_of.get("sent", ())]


def read_accounts(answer: Iterable[tuple[Any, ...]]) -> dict[str, Account]:
    """Return accounts by id."""
    return {row[0]: read_row(Account, row) for row in answer}


#: Number of columns of a charge, before those of its release.
_CHARGE_COLUMNS = 12


def read_claim(answer: Sequence[Sequence[Any]]) -> tuple[Charge | None, Release | None]:
    """Return the charge and the release of an answer; None for either without one."""
    if not answer:
        return None, None
    charge, release = answer[0][:_CHARGE_COLUMNS], answer[0][_CHARGE_COLUMNS:]
    return (
        None if charge[0] is None else read_row(Charge, charge),
        None if release[0] is None else read_row(Release, release),
    )


def add_terms(remembered: Terms, answer: Iterable[Any]) -> None:
    """Remember the terms of an answer."""
    for columns in answer:
        term = read_row(Term, columns)
        remembered[term.book, term.number] = term


def load_terms(
    transaction: Transaction, remembered: Terms, names: Iterable[str]
) -> bool:
    """Read the terms of locked datasets that this process does not remember.

    Returns:
        True if the newest term of one was another than remembered.
    """
    locked, stale = transaction.datasets, []
    datasets = [locked[name] for name in names if name in locked]
    for dataset in datasets:
        # A ledger that was put back has fewer terms than this process saw.
        newer = [k for k in remembered if k[0] == dataset.name and k[1] > dataset.term]
        for key in newer:
            del remembered[key]
        if newer or not has_newest(remembered, dataset):
            stale.append(dataset)
    if stale:
        names = [dataset.name for dataset in stale]
        add_terms(remembered, transaction.ask("read_terms", datasets=names))
    for dataset in stale:
        # A repair freezes a dataset whose newest term is lost.
        if dataset.frozen is None and not has_newest(remembered, dataset):
            message = f"term {dataset.term} of dataset {dataset.name!r} is missing"
            raise DamagedRow(message)
    return bool(stale)


def has_newest(remembered: Terms, dataset: Dataset) -> bool:
    """Return True if the newest term of a dataset is remembered, or it has none."""
    term = remembered.get((dataset.name, dataset.term))
    return not dataset.term or (term is not None and term.entry == dataset.revision)


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
        pinned = read_row(Term, columns).fields["pinned"]
        if pinned.get("source") in claims:
            claims[pinned["source"]][columns[0]] = pinned.get("population", "")
    rows.claims = claims
    claimed = [Source(*row) for row in transaction.ask("read_all_sources")]
    rows.sources = {row.name: row for row in claimed if row.name in sources}


def load_earlier_amounts(
    transaction: Transaction, dataset: str, step: str
) -> list[Mapping[str, Any]]:
    """Read the amounts of the newest 100 charges of a step in a dataset."""
    rows = transaction.ask("read_earlier_charges", dataset=dataset, step=step)
    return [json.loads(text) for (text,) in rows]
