"""The ledger and its witness: compared before each decision, written after it.

An open process also compares the newest entries that it saw itself, so that it notices
an older copy without a witness.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from operator import add

from dpflow.exceptions import LedgerError, LedgerRolledBack, LedgerUnwitnessed
from dpflow.interrupts import suppress
from dpflow.ledger.account_ids import split
from dpflow.ledger.decisions.decision import Decision
from dpflow.ledger.tables.database import Database
from dpflow.ledger.tables.errors import readable, refuse_damaged
from dpflow.ledger.tables.loaded import Rows, Terms
from dpflow.ledger.tables.loading import Scope
from dpflow.ledger.tables.rows import Account, Dataset, Entry, read_row
from dpflow.ledger.tables.transaction import Transaction
from dpflow.ledger.witness.base import Witness
from dpflow.ledger.witness.lines import (
    DECISIONS,
    ENDS,
    WITNESSED,
    Head,
    Witnessed,
    WitnessedUse,
    lines_of,
)

#: Entries in a process's memory; it is cleared when it is full.
_MOST = 4096


class Watch:
    """Keeps a ledger from deciding anything after it forgot a charge.

    Args:
        database: The database of the ledger.
        witness: Its witness; None if that was waived.
    """

    def __init__(self, database: Database, witness: Witness | None = None) -> None:
        self.database, self.address = database, database.address
        self.witness = witness
        self._witness_address = "" if witness is None else witness.address
        #: The newest entries that this process saw.
        self._seen: dict[str, Head] = {}
        #: Hashes of entries that this process saw in the journal.
        self._hashes: dict[tuple[str, int], str] = {}

    # Before a decision

    def read(self, scope: Scope, terms: Terms) -> Witnessed:
        """Read the witness about the rows of a command, before their lock.

        Nothing is read for a command that is not compared with it.

        Args:
            scope: What the command reads.
            terms: Terms of this process.

        Raises:
            LedgerUnwitnessed: If there is no witness.
            LedgerCorrupt: If the witness is damaged.
            LedgerUnavailable: If it cannot be read.
        """
        if self.witness is None or not scope.is_witnessed or scope.accounts is None:
            return Witnessed()
        accounts = partial(scope.accounts, terms)
        witnessed = self.witness.read(scope.datasets, accounts)
        # Another thread may raise the heads before this one has the lock.
        return replace(witnessed, heads=dict(witnessed.heads))

    def numbers_of(
        self, witnessed: Witnessed, names: Sequence[str]
    ) -> list[tuple[str, int]]:
        """Return datasets and numbers whose hashes the first trip reads."""
        both = self._seen, witnessed.heads
        heads = [(n, h[n].number) for h in both for n in names if n in h]
        return [pair for pair in dict.fromkeys(heads) if pair[1] > 0]

    def check(self, transaction: Transaction, rows: Rows, witnessed: Witnessed) -> None:
        """Check that the ledger holds what this process and the witness saw.

        Raises:
            LedgerRolledBack: If it is an older copy, or two copies are in use.
            LedgerCorrupt: If an account is not as it was witnessed.
        """
        for name, dataset in transaction.datasets.items():
            if name in self._seen:
                whose = ", which this process saw"
                self._check_hash(transaction, dataset, self._seen[name], whose)
            if name in witnessed.heads:
                self._check_head(transaction, dataset, witnessed.heads[name])
            self._note(dataset)
        self._check_accounts(transaction, rows, witnessed)

    def _check_head(
        self, transaction: Transaction, dataset: Dataset, head: Head
    ) -> None:
        assert self.witness is not None
        if head.forked and head.epoch >= dataset.epoch:
            raise self.witness.say_forked(dataset.name)
        if dataset.epoch < head.epoch:
            what = f"lacks repair {head.epoch} of dataset {dataset.name!r}"
            raise self._say_older(what)
        whose = f" of its witness {self.witness.address}"
        self._check_hash(transaction, dataset, head, whose)

    def _check_hash(
        self, transaction: Transaction, dataset: Dataset, head: Head, whose: str
    ) -> None:
        """Refuse a journal that lacks an entry of its epoch."""
        # A repair that the head lacks was made after what it shows.
        if dataset.epoch != head.epoch or head.number <= 0:
            return
        own = dataset.hash
        if head.number != dataset.number:
            own = transaction.hash_of(dataset.name, head.number)
        if own != head.hash:
            what = f"lacks entry {head.number} of dataset {dataset.name!r}{whose}"
            raise self._say_older(what)

    def _check_accounts(
        self, transaction: Transaction, rows: Rows, witnessed: Witnessed
    ) -> None:
        """Refuse an account that is behind the witness, or differs from it."""
        for name in rows.read_ids & witnessed.uses.keys():
            epoch, version, used = witnessed.uses[name]
            dataset = transaction.datasets.get(name.partition("#")[0])
            if dataset is None or dataset.epoch != epoch:
                continue
            row = rows.account_rows.get(name)
            own = 0 if row is None else row.version
            if own < version:
                what = f"has account {name!r} at version {own}, and the witness "
                what += f"{self._witness_address} says {version}"
                raise self._say_older(what)
            if row and own == version and (*map(add, row.settled, row.held),) != used:
                what = f"account {name!r} is not what its witness "
                what += f"{self._witness_address} says"
                raise refuse_damaged(what, self.address)

    def _say_older(self, what: str) -> LedgerRolledBack:
        msg = (
            f"the ledger {self.address} {what}. A backup was restored, its -wal was "
            "lost, it is a copy, or a copy of it is in use. Stop that, and bring "
            "the right ledger back; if none has all entries, `dpflow ledger "
            "reconcile` shows the missing ones and charges them. No step runs "
            "until then."
        )
        return LedgerRolledBack(msg, ledger=self.address, witness=self._witness_address)

    # After a commit

    def saw(self, decision: Decision) -> None:
        """Remember the newest entries after a commit."""
        for dataset in decision.datasets.values():
            self._note(dataset)

    def _note(self, dataset: Dataset) -> None:
        """Remember the newest entry of a dataset."""
        self._seen[dataset.name] = Head(dataset.epoch, dataset.number, dataset.hash)
        if len(self._hashes) > _MOST:
            self._hashes.clear()
        self._hashes[dataset.name, dataset.number] = dataset.hash

    def record(self, decision: Decision, rows: Rows, key: str | None = None) -> None:
        """Write committed entries to the witness, durably.

        A decision that charges nothing needs no witness: without one no step runs, and
        a witness that is begun anew has the decision.

        Raises:
            LedgerRolledBack: If two copies of the ledger are in use.
            LedgerUnwitnessed: If there is no witness.
            LedgerUnavailable: If it cannot be written.
        """
        lines = lines_of(decision, rows, WITNESSED, key)
        if self.witness is not None and lines:
            is_free = all(line.kind in DECISIONS for line in lines)
            with suppress(*[LedgerUnwitnessed] * is_free):
                self.witness.record(lines, self.prove, synced=True)

    def record_end(self, decision: Decision, rows: Rows) -> None:
        """Write the end of a charge to the witness, with its next line.

        Its loss harms nothing: a witness that is out of reach stops the next step.
        """
        lines = lines_of(decision, rows, ENDS)
        if self.witness is not None and lines:
            with suppress(LedgerError):
                self.witness.record(lines, self.prove, synced=False)

    def close(self) -> None:
        """Write the ends that wait for a next line, if the witness answers."""
        if self.witness is not None:
            with suppress(LedgerError):
                self.witness.record((), self.prove, synced=True)

    def prove(self, pairs: Sequence[tuple[str, int]]) -> Mapping[tuple[str, int], str]:
        """Read hashes of the own journal, unless this process saw the entries."""
        if self._hashes.keys() >= {*pairs}:
            return self._hashes
        numbers = dict[str, list[int]]()
        for name, number in pairs:
            numbers.setdefault(name, []).append(number)
        # Others wait for the witness meanwhile: one question for each dataset.
        questions = [
            ("read_hashes", {"dataset": name, "numbers": asked})
            for name, asked in numbers.items()
        ]
        with readable(self.address), self.database.snapshot() as transaction:
            answers = transaction.begin((), questions, lock=False)
        hashes = zip(numbers, answers, strict=True)
        return {(name, number): text for name, rows in hashes for number, text in rows}

    # For people

    def read_heads(self) -> Mapping[str, Head] | LedgerError:
        """Read the witness, before a snapshot of the ledger is begun.

        What the witness has by then is in the snapshot; what it gets later need not be.
        """
        try:
            return {} if self.witness is None else self.witness.read_all().heads
        except LedgerError as error:
            return error

    def problem(
        self,
        within: Transaction | None = None,
        heads: Mapping[str, Head] | LedgerError | None = None,
    ) -> str | None:
        """Return the reason that no step would run, for commands that only show.

        Args:
            within: A transaction that reads the ledger, if there is one. Steps wait for
                it, or `heads` were read before it was begun.
            heads: What `read_heads` returned.
        """
        if self.witness is None:
            return None
        heads = self.read_heads() if heads is None else heads
        if isinstance(heads, LedgerError):
            return heads.message
        try:
            own = self.database.snapshot() if within is None else nullcontext(within)
            with readable(self.address), own as transaction:
                transaction.begin(sorted(heads), lock=False)
                for name, head in heads.items():
                    dataset = transaction.datasets.get(name, Dataset(name))
                    self._check_head(transaction, dataset, head)
        except LedgerError as error:
            return error.message
        return None

    def forgotten(self, rows: Rows, names: Sequence[str]) -> list[str]:
        """Return accounts of whole terms that lack charges which were witnessed."""
        if self.witness is None or not self.witness.exists():
            return []
        lost = set()
        for name, use in self.witness.read_all().uses.items():
            dataset, number = split(name)[:2]
            row = rows.account_rows.get(name)
            is_behind = (0 if row is None else row.version) < use.version
            if dataset in names and number and is_behind:
                lost.add(f"{dataset}#{number}")
        return sorted(lost)


def state_of_ledger(database: Database, *, is_trusted: bool = False) -> Witnessed:
    """Return what a witness that begins now holds of a ledger.

    Args:
        database: The database of the ledger.
        is_trusted: Mark it: nothing is known of what the ledger lost before.

    Raises:
        LedgerCorrupt: If a row is damaged.
    """
    state = Witnessed()
    with readable(database.address), database.snapshot() as transaction:
        transaction.begin(lock=False)
        # The newest one of each dataset is the last.
        rows = map(Entry._make, transaction.ask("read_decisions", first="", last="~~"))
        decided = {e.dataset: (e.number, e.hash) for e in rows if e.kind in DECISIONS}
        for columns in transaction.ask("read_every_dataset"):
            row = read_row(Dataset, columns)
            current = row.epoch, row.number, row.hash, False, row.term
            head = Head(*current, *decided.get(row.name, (0, "")))
            if is_trusted:
                head = head._replace(trusted_number=row.number, trusted_hash=row.hash)
            state.heads[row.name] = head
        for columns in transaction.ask("read_accounts_between", first="", last="~~"):
            account = read_row(Account, columns)
            used = (*map(add, account.settled, account.held),)
            epoch = state.heads[split(account.id)[0]].epoch
            state.uses[account.id] = WitnessedUse(epoch, account.version, used)
        for name, _, step in transaction.ask("read_people_of", first="", last="~~"):
            state.people[name] = state.heads[split(name)[0]].number, step
        for name, number, digest in transaction.ask("read_newest_hashes"):
            state.hashes.setdefault(name, {})[number] = digest
    return state
