"""What the ledger lacks of its witness, and its repair."""

from __future__ import annotations

import json
from dataclasses import dataclass
from operator import add

from dpflow.exceptions import ConfigurationError
from dpflow.ledger.account_ids import Amounts, split
from dpflow.ledger.audit.verify import check_whole, open_snapshot
from dpflow.ledger.decisions.charges_by_hand import Posted
from dpflow.ledger.decisions.decision import Decision
from dpflow.ledger.decisions.repairs import Loss, decide_repair
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.requests import UNKNOWN
from dpflow.ledger.tables.loaded import Rows, sum_amounts
from dpflow.ledger.tables.loading import Scope, load_rows
from dpflow.ledger.tables.rows import Entry
from dpflow.ledger.tables.transaction import Transaction, new_dataset
from dpflow.ledger.views.reading import pages
from dpflow.ledger.witness.comparison import state_of_ledger
from dpflow.ledger.witness.lines import Line, Witnessed, uses_of

#: Kinds whose postings add to what is used.
_RAISING = ("reserve", "adjust", "repair")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """What a repair did to a dataset.

    Attributes:
        loss: What the ledger lacked.
        posted: What was charged again.
        frozen: True if the repair froze the dataset.
        keys: Charges and release keys of lost entries, as far as the witness has them.
    """

    loss: Loss
    posted: tuple[Posted, ...]
    frozen: bool = False
    keys: tuple[tuple[str, str], ...] = ()


def compare(ledger: Ledger) -> list[Loss]:
    """Return what each dataset lacks of its witness; empty if nothing is lost.

    Raises:
        LedgerUnwitnessed: If there is no witness.
        ConfigurationError: If the witness was waived.
    """
    witnessed, losses = read_witness(ledger), []
    for name in sorted(witnessed.heads):
        with ledger.reading() as transaction:
            rows = load_repair_rows(transaction, name, ledger, lock=False)
            loss = find_loss(transaction, rows, name, witnessed)
        if loss is not None:
            losses.append(loss)
    return losses


def reconcile(
    ledger: Ledger, *, reason: str, witnessed: Witnessed | None = None
) -> list[Repaired]:
    """Charge again what the ledger lacks of its witness, once; nothing is lowered.

    Args:
        ledger: The ledger.
        reason: Why, for the journal.
        witnessed: What a replaced ledger holds, where there is no witness.

    Raises:
        LedgerCorrupt: If the ledger itself is damaged.
        LedgerUnwitnessed: If there is no witness.
        ConfigurationError: If the witness was waived.
    """
    witnessed = read_witness(ledger) if witnessed is None else witnessed
    advice = "Nothing was written. Restore a backup that `dpflow ledger verify` finds"
    check_whole(ledger, f"{advice} whole.")
    repairs = [
        repair_dataset(ledger, name, witnessed, reason)
        for name in sorted(witnessed.heads)
    ]
    return [repaired for repaired in repairs if repaired is not None]


def repair_dataset(
    ledger: Ledger, name: str, witnessed: Witnessed, reason: str
) -> Repaired | None:
    """Repair a dataset and begin its epoch in the witness; None if nothing is lost."""
    author, decision = ledger.author(), Decision(answer=())
    with ledger.writing() as transaction:
        transaction.begin(lock=False)
        transaction.send([("insert_dataset", new_dataset(ledger.id, name))])
        rows = load_repair_rows(transaction, name, ledger, lock=True)
        loss = find_loss(transaction, rows, name, witnessed)
        if loss is None:
            return None
        # A repair whose line was lost is not made twice.
        if not is_repaired(transaction, name, (loss.epoch, loss.number)):
            decision = decide_repair(rows, loss, reason, author)
            transaction.write(decision)
    after = decision.datasets.get(name, rows.book(name))
    accounts = {**rows.account_rows, **decision.accounts}
    people = {k: store.newest for k, store in rows.people.items()} | dict(loss.people)
    columns = name, after.epoch, after.number, after.hash, "repair", after.term
    lines = [Line(*columns, uses_of(accounts, name), people)]
    frozen = any(entry.kind == "freeze" for entry, *_ in decision.entries)
    if frozen:
        lines.append(lines[0]._replace(kind="freeze"))
    witness = ledger.watch.witness
    # A new witness begins with what the ledger holds after its repair.
    if witness is not None and witness.exists():
        witness.record(lines, ledger.watch.prove, synced=True)
    ledger.watch.saw(decision)
    keys = witnessed.keys.get(name, {})
    lost = tuple(pair for number, pair in keys.items() if number > loss.common)
    return Repaired(loss=loss, posted=decision.answer, frozen=frozen, keys=lost)


def read_witness(ledger: Ledger) -> Witnessed:
    """Return everything that the witness holds.

    Raises:
        ConfigurationError: If the witness was waived.
    """
    if ledger.watch.witness is None:
        msg = "the ledger has no witness to compare with. Set DPFLOW_WITNESS to it."
        raise ConfigurationError(msg)
    return ledger.watch.witness.read_all()


def load_repair_rows(
    transaction: Transaction, name: str, ledger: Ledger, *, lock: bool
) -> Rows:
    """Read a dataset whole, with its stores of people."""
    scope = Scope(datasets=[name], is_made=False)
    return load_rows(transaction, scope, ledger.terms, lock=lock)


def find_loss(
    transaction: Transaction, rows: Rows, name: str, witnessed: Witnessed
) -> Loss | None:
    """Return what a dataset lacks of its witness; None if it lacks nothing."""
    head = witnessed.heads[name]
    if not is_behind(transaction, rows, name, witnessed):
        return None
    hashes = dict(witnessed.hashes.get(name, {}))
    hashes[head.number] = head.hash
    common = 0
    for number in sorted(hashes, reverse=True):
        if number > 0 and transaction.hash_of(name, number) == hashes[number]:
            common = number
            break
    used = {k: use.used for k, use in witnessed.uses.items() if split(k)[0] == name}
    added, paid = read_own(transaction, name, common)
    # Where a lost and an own entry paid, no file has the charges of both.
    people = {
        store: UNKNOWN if store in paid else newest
        for store, (number, newest) in witnessed.people.items()
        if split(store)[0] == name and number > common
    }
    decided = head.decided_number
    return Loss(
        dataset=name,
        epoch=head.epoch,
        number=head.number,
        common=common,
        used=used,
        added=added,
        people=people,
        decided=not decided or transaction.hash_of(name, decided) == head.decided_hash,
        term=head.term,
    )


def is_behind(
    transaction: Transaction, rows: Rows, name: str, witnessed: Witnessed
) -> bool:
    """Return True if a dataset lacks something of its witness, or was forked."""
    head, dataset = witnessed.heads[name], rows.book(name)
    if head.epoch < dataset.epoch:
        # The line of a repair may not have reached the witness.
        state = head.epoch, head.number
        return head.forked or is_repaired(transaction, name, state)
    if head.epoch > dataset.epoch or head.forked:
        return True
    if head.number > 0 and transaction.hash_of(name, head.number) != head.hash:
        return True
    for account, use in witnessed.uses.items():
        row, is_own = rows.account(account), split(account)[0] == name
        is_newer = use.version > (0 if row is None else row.version)
        if is_own and is_newer and use.epoch == dataset.epoch:
            return True
    return False


def is_repaired(transaction: Transaction, name: str, state: tuple[int, int]) -> bool:
    """Return True if the newest repair of a dataset names this state of the witness."""
    rows = transaction.ask("read_newest_repair", dataset=name)
    return bool(rows) and json.loads(rows[0][0])["witness"] == [*state]


def read_own(
    transaction: Transaction, name: str, common: int
) -> tuple[dict[str, Amounts], set[str]]:
    """Return what a journal's own entries after a number added, by account.

    An account to which an entry only returned something is there with zero. The second
    answer are the stores of people that these entries paid.
    """
    added, paid = dict[str, Amounts](), set[str]()
    for columns in pages(transaction, "read_journal_page", name, common, key=1):
        entry = Entry(*columns)
        for account, (settled, held) in json.loads(entry.postings).items():
            amount = tuple(map(add, settled, held))
            if entry.kind not in _RAISING:
                amount = (0,) * len(amount)
            added[account] = sum_amounts(amount, added.get(account))
        if entry.kind == "pay":
            paid.add(json.loads(entry.body)["people"])
    return added, paid


def trust(ledger: Ledger, *, reason: str) -> None:
    """Begin a witness with what the ledger holds now.

    Every charge of before ends in full: what was lost before, nothing knows. The
    witness is marked, so that a restore of an older backup asks first.

    Raises:
        ConfigurationError: If there is a witness, or it was waived.
    """
    witness = ledger.watch.witness
    if witness is None:
        msg = "the witness is waived. Set DPFLOW_WITNESS to its place first."
        raise ConfigurationError(msg)
    if witness.exists():
        raise witness.refuse_second()
    end_in_full(ledger, reason)
    witness.begin(state_of_ledger(ledger.database, is_trusted=True))


def end_in_full(ledger: Ledger, reason: str) -> None:
    """Let every charge that was made so far end in full."""
    with open_snapshot(ledger) as transaction:
        names = transaction.names()
    author = ledger.author()
    for name in names:
        with ledger.writing() as transaction:
            rows = load_repair_rows(transaction, name, ledger, lock=True)
            dataset = rows.book(name)
            if dataset.number == 0:
                continue
            loss = Loss(
                dataset=name,
                epoch=dataset.epoch,
                number=dataset.number,
                common=dataset.number,
                term=dataset.term,
            )
            decision = decide_repair(rows, loss, reason, author)
            transaction.write(decision)
        ledger.watch.saw(decision)
