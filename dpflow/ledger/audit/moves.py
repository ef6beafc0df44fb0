"""Moving a ledger to another database, of either kind, with its id and releases.

From its begin on steps and ends are refused in words. A body that runs keeps its charge
in full. The source is marked as moved only after the target was verified.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpflow.exceptions import ConfigurationError, LedgerMissing, require
from dpflow.interrupts import contextmanager, suppress
from dpflow.ledger.audit.copies import copy_ledger
from dpflow.ledger.audit.verify import check_whole, hash_requests, open_snapshot
from dpflow.ledger.decisions.decision import Decision
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import find_database, witness_at
from dpflow.ledger.tables.loaded import Rows
from dpflow.ledger.tables.transaction import Transaction
from dpflow.ledger.witness.comparison import Watch


def move(ledger: Ledger, url: str, *, anyway: bool = False) -> str:
    """Move a ledger into an empty database; again, it goes on.

    Args:
        ledger: The ledger; opened with `in_move`.
        url: The new place.
        anyway: Move although processes with open charges live.

    Returns:
        The URL of the new place, without any secret; of a file with its whole path.

    Raises:
        ConfigurationError: If it is moved elsewhere, charges are open, or the new
            place holds a ledger.
        LedgerCorrupt: If the copy is not whole.
    """
    kind, where = find_database(url)
    address, witness = name_target(url), ledger.watch.witness
    if witness is not None:
        witness.check_apart(url)
    # A target that does not answer stops no step.
    is_there = is_complete(ledger, kind(where), read_heads(ledger))
    secret = begin_move(ledger, address, is_there=is_there, anyway=anyway)
    target: Any = kind(where)
    is_finished = is_complete(ledger, target, read_heads(ledger))
    if not is_finished:
        target = kind.create(where, ledger.database.identity, secret, complete=0)
        target.is_copy = True
        copy_ledger(ledger, target)
    watch = Watch(target, ledger.watch.witness)
    there = Ledger(target, ledger.owners, watch, conditions=ledger.conditions)
    if not is_finished:
        check_whole(there, "It is a copy, and the ledger stays where it is.")
        with there.writing() as transaction:
            transaction.begin(lock=False)
            write_upgrades(there, transaction, {"from": ledger.address, "to": address})
    finish_move(ledger, None if is_finished else target, address)
    # Until here the source may be used again, and has what the witness shows.
    witness_heads(there)
    return address


def check_setting(ledger: Ledger, url: str, witness: str | None) -> None:
    """Refuse a target for which the setting names no witness, before steps stop.

    Args:
        ledger: The source.
        url: The new place.
        witness: The setting, as for `open_ledger`.

    Raises:
        ConfigurationError: If no step could run there.
    """
    try:
        witness_at(witness, url)
    except ConfigurationError as error:
        address = getattr(ledger.watch.witness, "address", "nowhere")
        msg = f"{error.message} It is {address} until now. Nothing was moved."
        raise ConfigurationError(msg) from None


def name_target(url: str) -> str:
    """Return the URL of a target, the same from every folder, without any secret."""
    kind, where = find_database(url)
    if isinstance(where, Path):
        return f"sqlite:///{where.resolve()}"
    return str(kind(where).address)


def begin_move(ledger: Ledger, address: str, *, is_there: bool, anyway: bool) -> bytes:
    """Mark a ledger as being moved, and return its secret.

    Args:
        ledger: The source.
        address: The URL of the target.
        is_there: Whether a ledger with all entries is there: that of a move which was
            cut short, else the source itself or a copy of it.
        anyway: Begin although processes with open charges live.
    """
    with lock_steps(ledger) as transaction:
        where = transaction.moved_to or transaction.moving_to
        msg = (
            f"the ledger {transaction.address} moves to {where} already. Name that "
            "target, or take the move back: `dpflow ledger move --back URL`."
        )
        require(not transaction.moved_to and where in (None, address), msg)
        msg = f"a ledger is at {address} already, and none is overwritten."
        require(where == address or not is_there, msg)
        secret = transaction.secret()
        rows = transaction.ask("read_open_reservations")
        owners = {row[4]: row[6] for row in rows}
        living = [name for name in owners if ledger.owners.alive(owners[name])]
        if living and not anyway:
            msg = (
                f"{len(living)} charges are open whose processes run, such as "
                f"{living[0]}. Nothing was moved. Wait for them, or write --anyway: "
                "then they stay charged in full."
            )
            raise ConfigurationError(msg)
        transaction.send([("mark_moving", {"moving_to": address})])
    return secret


@contextmanager
def lock_steps(ledger: Ledger) -> Iterator[Transaction]:
    """Run a block in a transaction that waits for all steps and keeps others away."""
    with ledger.writing() as transaction:
        transaction.is_of_copy = True
        if ledger.database.has_server:
            transaction.send([("lock_all", {})])
        transaction.begin(lock=False)
        yield transaction


def read_heads(ledger: Ledger) -> list[tuple[str, int, str]]:
    """Return name, number and hash of the newest entry of each journal."""
    with open_snapshot(ledger, is_of_copy=True) as source:
        rows = source.ask("read_every_dataset")
    return [(row[0], row[6], row[7]) for row in rows if row[6] > 0]


def is_complete(
    ledger: Ledger, target: Any, heads: list[tuple[str, int, str]] | None = None
) -> bool:
    """Look into the target of a move, and remove an unfinished copy from it.

    Args:
        ledger: The source.
        target: The database.
        heads: Newest entries of the source, which a target has that was completed
            before the move was cut short.

    Returns:
        True if such a target is complete.

    Raises:
        ConfigurationError: If another ledger is there, or a complete one.
    """
    target.is_copy = True
    with suppress(LedgerMissing):
        with target.snapshot() as there:
            there.begin(lock=False)
            ((*_, complete, _, _),) = there.ask("read_ledger")
            is_same = there.identity == ledger.database.identity
            newest = [(name, n, there.hash_of(name, n)) for name, n, _ in heads or ()]
        if is_same and complete and newest == heads:
            return True
        msg = f"a ledger is at {target.address} already, and none is overwritten."
        require(is_same and not complete, msg)
        target.remove()
    return False


def write_upgrades(
    there: Ledger, transaction: Transaction, body: dict[str, str], *, rewrites: int = 0
) -> None:
    """Write an entry into each journal, so that no older copy decides again.

    No other process may write meanwhile.

    Args:
        there: The ledger.
        transaction: A transaction of it.
        body: From where to where it moved, or the versions.
        rewrites: Number of changes of the requests of charges, which are hashed then.
    """
    author = there.author()._replace(command=uuid.uuid4().hex)
    for name in transaction.names():
        if rewrites:
            body["requests"] = hash_requests(transaction, name)
        transaction.begin([name], lock=False)
        decision, dataset = Decision(author), transaction.datasets[name]
        decision.append(dataset, "upgrade", body=body)
        transaction.write(decision)


def witness_heads(there: Ledger) -> None:
    """Witness the newest entry of each journal; again does no harm."""
    with open_snapshot(there) as transaction:
        transaction.begin(transaction.names(), lock=False)
        rows = Rows(datasets=dict(transaction.datasets))
    heads = [(d.name, d.number, d.hash) for d in rows.datasets.values() if d.number]
    there.watch.record(Decision(earlier=tuple(heads)), rows)


def finish_move(ledger: Ledger, target: Any, address: str) -> None:
    """Complete the target, then mark the source as moved, under its lock."""
    with lock_steps(ledger) as transaction:
        msg = f"the move of {ledger.address} to {address} was taken back meanwhile."
        require(transaction.moving_to == address, msg)
        if target is not None:
            target.complete()
        transaction.send([("mark_moved", {"moved_to": address})])


def move_back(ledger: Ledger, url: str) -> None:
    """Take a move back that was not finished.

    Raises:
        ConfigurationError: If the target is complete.
        LedgerError: If it is out of reach.
    """
    kind, where = find_database(url)
    with lock_steps(ledger) as transaction:
        msg = f"the ledger {ledger.address} moved to {transaction.moved_to}."
        require(not transaction.moved_to, msg)
        address, target = name_target(url), transaction.moving_to
        msg = f"the ledger moves to {target}, not to {address}. Name that target."
        require(target in (None, address), msg)
        is_complete(ledger, kind(where))
        transaction.send([("mark_moving", {"moving_to": None})])
