"""The store of what each person has left, for a running step that people pay for.

The first such step of a term takes what is left of the dataset's budget, and makes the
store; a step that took nothing has to find it. So each store is paid by a charge of its
own, which its header names, and a store that is lost grants nothing ever again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from dpflow.accounting.rules.individual import IndividualBound, IndividualFilter
from dpflow.config import Settings
from dpflow.exceptions import LedgerCorrupt, LedgerError, LedgerMissing, PublicError
from dpflow.guard.charge import Execution
from dpflow.guard.person_budgets import people_folder
from dpflow.ledger import Ledger
from dpflow.ledger.decision.gates import gate_at
from dpflow.ledger.model import terms_of_accounts
from dpflow.ledger.rows import account_key, split
from dpflow.ledger.state import State, charge_keys
from dpflow.ledger.witness.places import witness_folder
from dpflow.people import PersonStore, create_store, open_store


@contextmanager
def store_errors_shown() -> Iterator[None]:
    """Let what is wrong with a store leave the body: its text names no person.

    Raises:
        PublicError: If the block raises an error of a ledger.
    """
    try:
        yield
    except LedgerError as error:
        msg = f"{type(error).__name__}: {error.message}"
        raise PublicError(msg) from None


def person_store(execution: Execution) -> PersonStore:
    """Open the store that a running step pays from; the first step makes it.

    Raises:
        LedgerMissing: If the term's first step has not left it here.
        LedgerCorrupt: If it is damaged, or paid by no charge of the ledger.
        LedgerUnavailable: If another process holds it, or files cannot be used.
    """
    ledger, reservation = execution.project.ledger, execution.request.reservation
    account, bound = _paid(ledger, reservation)
    path, witness = _places(execution.project.settings, ledger, account)
    if bound is not None and not path.exists() and not witness.exists():
        return create_store(path, bound=bound, witness=witness, reservation=reservation)
    if not path.exists():
        msg = (
            f"there is no store of what people have left at {path}, and the budget of "
            f"{account} was taken to make one. If that run is still going on, run this "
            "one again afterwards. Else restore the newest copy, or run on the machine "
            "that has it; if it is gone, nobody knows what people have left, and a new "
            "term has to begin: dpflow policy apply --new-term."
        )
        raise LedgerMissing(msg, ledger=str(path))
    return open_store(path, bound=partial(_bound, ledger, account), witness=witness)


def _bound(ledger: Ledger, account: str, reservation: str) -> IndividualBound:
    """Return what the charge paid that a store names."""
    payer, bound = _paid(ledger, reservation)
    if payer != account or bound is None:
        msg = f"the store of {account} was paid by a charge of {payer}"
        raise LedgerCorrupt(msg, ledger=ledger.place)
    return bound


def _paid(ledger: Ledger, reservation: str) -> tuple[str, IndividualBound | None]:
    """Return the account that a charge was posted to, and the bound that it paid."""

    def needs(state: State) -> Iterator[str]:
        yield from charge_keys(state, reservation)
        if (made := state.made.get(reservation)) is not None:
            yield from terms_of_accounts(made.amounts)
            yield from map(account_key, made.amounts)

    with ledger.storage.read() as reading:
        state = reading.load(needs)
    charge = state.charge(reservation)
    if charge is None or charge.state == "void":
        msg = f"the ledger {ledger.place} knows no charge {reservation} that ran"
        raise LedgerCorrupt(msg, ledger=ledger.place)
    amounts = charge.made.amounts
    account = next(name for name in amounts if split(name)[2] == "dataset")
    gate, paid = gate_at(state, account), amounts[account]
    if gate is None or not isinstance(gate.rule, IndividualFilter):
        msg = f"account {account} keeps no budgets of people"
        raise LedgerCorrupt(msg, ledger=ledger.place)
    return account, gate.rule.bound_of(paid) if any(paid) else None


def _places(found: Settings, ledger: Ledger, account: str) -> tuple[Path, Path]:
    """Return where an account's store and its witness are; make the folders."""
    name = f"{ledger.id}.{re.sub(r'[^A-Za-z0-9._-]', '.', account)}.people"
    folder, witness = people_folder(found), witness_folder(found.witness)
    for each in (folder, witness):
        each.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder / name, witness / f"{name}.witness"
