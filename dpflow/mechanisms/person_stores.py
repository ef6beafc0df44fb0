"""The store of what each person has left, for a running step that people pay for.

The first such step of a term takes what is left of the dataset's budget, and makes the
store; a step that took nothing has to find it. So each store is paid by a charge of its
own, which its header names, and a store that is lost grants nothing ever again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dpflow.accounting.rules.individual import IndividualBound, IndividualFilter
from dpflow.config import Settings
from dpflow.exceptions import LedgerCorrupt, LedgerMissing
from dpflow.guard.charge import Execution
from dpflow.guard.person_budgets import people_folder
from dpflow.ledger import Ledger
from dpflow.ledger.decision.gates import gate_at
from dpflow.ledger.model import Keys, Reach
from dpflow.ledger.rows import split
from dpflow.ledger.witness.places import witness_folder
from dpflow.people import PersonStore, create_store, open_store
from dpflow.people.records import read_reservation
from dpflow.people.shards import Shard
from dpflow.people.store import unavailable

_NEVER_RAN = "void"


@dataclass(frozen=True, slots=True)
class StorePlace:
    """One shard of an account's store, for any process that can reach its files.

    Attributes:
        path: The people's file.
        witness: Its witness.
        reservation: The charge that paid for it, as its header has to say.
        bound: What that charge paid.
        shard: Which part of all people it keeps.
    """

    path: Path
    witness: Path
    reservation: str
    bound: IndividualBound
    shard: Shard

    def open(self) -> PersonStore:
        """Open it.

        Raises:
            LedgerMissing: If it is not here.
            LedgerCorrupt: If it is damaged, too old, or paid by another charge.
            LedgerUnavailable: If another process holds it, or it cannot be used.
        """
        return open_store(
            self.path, bound=self._paid_by, witness=self.witness, shard=self.shard
        )

    def _paid_by(self, reservation: str) -> IndividualBound:
        if reservation != self.reservation:
            msg = (
                f"{self.path} was paid by charge {reservation}, and the other shards "
                f"by {self.reservation}. Restore the newest copy of all of them."
            )
            raise LedgerCorrupt(msg, ledger=str(self.path))
        return self.bound


def person_stores(execution: Execution, shards: int) -> tuple[StorePlace, ...]:
    """Return the stores that a running step pays from; the first step makes them.

    Raises:
        InvalidCost: If there cannot be so many shards.
        LedgerMissing: If the term's first step has not left them here.
        LedgerCorrupt: If one is damaged, or paid by no charge of the ledger.
        LedgerUnavailable: If another process holds one, or files cannot be used.
    """
    project, reservation = execution.project, execution.request.reservation
    account, bound = _paid(project.ledger, reservation)
    places = [
        (Shard(number, shards), *found)
        for number, found in enumerate(
            _places(project.settings, project.ledger, account, shards)
        )
    ]
    files = [file for _, *pair in places for file in pair]
    if bound is not None and not any(file.exists() for file in files):
        for shard, path, witness in places:
            create_store(
                path,
                bound=bound,
                witness=witness,
                reservation=reservation,
                shard=shard,
            ).close()
    else:
        reservation, bound = _found(project.ledger, account, places[0][1], shards)
    return tuple(
        StorePlace(path, witness, reservation, bound, shard)
        for shard, path, witness in places
    )


def _found(
    ledger: Ledger, account: str, path: Path, shards: int
) -> tuple[str, IndividualBound]:
    """Return which charge paid for a store that is there, and what it paid."""
    if not path.exists():
        msg = (
            f"there is no store of what people have left at {path}, and the budget of "
            f"{account} was taken to make one, in as many shards as its first run said "
            f"(this one says {shards}). If that run is still going on, run this one "
            "again afterwards. Else restore the newest copy, or run on the machine "
            "that has it; if it is gone, nobody knows what people have left, and a new "
            "term has to begin: dpflow policy apply --new-term."
        )
        raise LedgerMissing(msg, ledger=str(path))
    try:
        reservation = read_reservation(path)
    except OSError as error:
        raise unavailable(path, error) from error
    payer, bound = _paid(ledger, reservation)
    if payer != account or bound is None:
        msg = f"{path} was paid by a charge of {payer}, not of {account}"
        raise LedgerCorrupt(msg, ledger=str(path))
    return reservation, bound


def _paid(ledger: Ledger, reservation: str) -> tuple[str, IndividualBound | None]:
    """Return the account that a charge was posted to, and the bound that it paid."""
    with ledger.storage.read() as reading:
        state = reading.load(Keys(charges=(reservation,), reach=Reach.TERMS))
    charge = state.charge(reservation)
    if charge is None or charge.state == _NEVER_RAN:
        msg = f"the ledger {ledger.place} knows no charge {reservation} that ran"
        raise LedgerCorrupt(msg, ledger=ledger.place)
    entry = state.made(charge, next(iter(charge.places)))
    account = next(name for name in entry.postings if split(name)[2] == "dataset")
    gate = gate_at(state, account)
    amounts = entry.postings[account].amount
    if gate is None or not isinstance(gate.rule, IndividualFilter):
        msg = f"account {account} keeps no budgets of people"
        raise LedgerCorrupt(msg, ledger=ledger.place)
    return account, gate.rule.bound_of(amounts) if any(amounts) else None


def _places(
    found: Settings, ledger: Ledger, account: str, shards: int
) -> Iterator[tuple[Path, Path]]:
    """Yield where each shard of an account and its witness are; makes the folders."""
    name = f"{ledger.id}.{re.sub(r'[^A-Za-z0-9._-]', '.', account)}"
    folder, witness = people_folder(found), witness_folder(found.witness)
    for each in (folder, witness):
        each.mkdir(parents=True, exist_ok=True, mode=0o700)
    for number in range(shards):
        part = "" if shards == 1 else f".{number}-of-{shards}"
        file = f"{name}{part}.people"
        yield folder / file, witness / f"{file}.witness"
