"""The shell around each decision: load, decide, write, witness."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Any

from dpflow.accounting.solving import NotSolved, look_up
from dpflow.exceptions import DpflowError, LedgerUnavailable
from dpflow.interrupts import contextmanager, suppress
from dpflow.ledger.decisions.decision import Author, Decision
from dpflow.ledger.decisions.reserve import Refused, decide_refusal
from dpflow.ledger.decisions.settlement import refuse_unknown
from dpflow.ledger.digests import Digests
from dpflow.ledger.provenance import provenance, writer
from dpflow.ledger.requests import Conditions
from dpflow.ledger.tables.database import Database
from dpflow.ledger.tables.errors import UNREADABLE, readable
from dpflow.ledger.tables.loaded import Rows, Terms
from dpflow.ledger.tables.loading import (
    Scope,
    load_earlier_amounts,
    load_rows,
    read_claim,
)
from dpflow.ledger.tables.owners import Liveness
from dpflow.ledger.tables.rows import Charge
from dpflow.ledger.tables.transaction import (
    ConflictingSource,
    MissingDatasets,
    Transaction,
    new_dataset,
)
from dpflow.ledger.witness.comparison import Watch

#: After this many transactions that ended to solve a number, the next solves inside.
_LOOKUPS = 3

Decide = Callable[[Rows, Author], Decision | Refused]


class Shell:
    """The transactions of one ledger.

    Args:
        database: The database of the ledger.
        owners: Liveness of the processes that hold charges.
        watch: Compares the ledger with its witness; None if that was waived.
        conditions: How requests are decided.
    """

    def __init__(
        self,
        database: Database,
        owners: Liveness,
        watch: Watch | None = None,
        *,
        conditions: Conditions | None = None,
    ) -> None:
        self.database = database
        #: Where the ledger is, for messages.
        self.address = database.address
        self.owners = owners
        self.conditions = conditions or Conditions(provenance=provenance())
        self.id, self.environment, _ = database.identity
        self.watch = watch or Watch(database)
        self.digests = Digests(database)
        self.terms: Terms = {}
        #: Open charges of this process.
        self._charges: dict[str, Charge] = {}

    def close(self) -> None:
        """Close the ledger's files; open reservations of this process are forfeited."""
        self.watch.close()
        self.owners.close()
        self.database.close()

    def author(self) -> Author:
        """Return who sends a command, and when."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        login, how = self.database.writer, self.conditions
        sender = at, login or writer(), login, how.provenance
        return Author(*sender, applies=how.applies_policies)

    def _order(self, scope: Scope, decide: Decide) -> Any:
        """Decide a command of an operator, and witness it."""
        self._check_writable()
        decision, rows = self._transact(scope, decide)
        self.watch.record(decision, rows)
        return answer_or_raise(decision.answer)

    def _transact(self, scope: Scope, decide: Decide) -> tuple[Decision, Rows]:
        """Load, decide and write, and again if the outcome is unknown.

        The ids exist before sending, so that the second attempt, on a fresh
        connection, either finds its entries or decides anew. It does not happen where
        the ledger was busy: the wait would be twice as long.

        Args:
            scope: What the command reads.
            decide: Decides, without input or output.
        """
        command = scope.command or uuid.uuid4().hex
        scope, author = replace(scope, command=command), self.author()
        author = author._replace(command=command)
        prepare: Callable[[], object] | None = None
        again, sent = False, list[Decision]()
        for attempt in count():
            try:
                if prepare is not None:
                    look_up(prepare, active=False)
                once = partial(self._transact_once, scope, decide, author, sent)
                is_looking = attempt < _LOOKUPS
                return look_up(partial(once, again=again), active=is_looking)
            except NotSolved as missing:
                prepare = missing.solve
            except MissingDatasets as missing:
                prepare = partial(self._insert_datasets, missing.names)
            except ConflictingSource:
                # The claim of the other is seen when it is decided again.
                prepare = None
            except LedgerUnavailable as error:
                if "waited" in error.details or again:
                    raise
                prepare, again = None, True
        raise AssertionError

    def _transact_once(
        self,
        scope: Scope,
        decide: Decide,
        author: Author,
        sent: list[Decision],
        *,
        again: bool,
    ) -> tuple[Decision, Rows]:
        """Load, decide and write in one transaction.

        Args:
            scope: What the command reads.
            decide: Decides, without input or output.
            author: Who sends the command.
            sent: Decisions of this command that were sent; this one is added.
            again: Whether one was sent to which no answer came.

        Raises:
            NotSolved: If a number is not solved yet; then nothing was decided.
            MissingDatasets: If a dataset has no row yet.
        """
        watched = self.watch.read(scope, self.terms)
        with readable(self.address), self.database.transaction() as transaction:
            transaction.expected = partial(self.watch.numbers_of, watched)
            rows = load_rows(transaction, scope, self.terms, again=again)
            self.watch.check(transaction, rows, watched)
            for before in sent:
                if before.is_written(rows.sent):
                    return before, rows
            try:
                decision = decide(rows, author)
                if isinstance(decision, Refused):
                    decision = refuse_step(transaction, rows, decision)
            except NotSolved:
                raise NotSolved(partial(_solve, decide, rows, author)) from None
            sent.append(decision)
            transaction.write(decision)
        self.watch.saw(decision)
        return decision, rows

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """Run a block that reads one snapshot."""
        with readable(self.address), self.database.snapshot() as transaction:
            yield transaction

    @contextmanager
    def writing(self) -> Iterator[Transaction]:
        """Run a block in one transaction that writes."""
        with readable(self.address), self.database.transaction() as transaction:
            yield transaction

    def _insert_datasets(self, names: Sequence[str]) -> None:
        """Make the rows of datasets without a term, in a transaction of its own."""
        with self.writing() as transaction:
            transaction.begin(lock=False)
            rows = [("insert_dataset", new_dataset(self.id, name)) for name in names]
            transaction.send(rows)

    def _read_charge(self, name: str) -> Charge:
        """Read a charge without a lock.

        Raises:
            ReservationConflict: If the ledger has no such charge.
        """
        with self.reading() as transaction:
            transaction.begin(lock=False)
            charge, _ = read_claim(transaction.ask("read_charge", id=name))
        if charge is None:
            raise refuse_unknown(name)
        return charge

    def _check_writable(self) -> None:
        if (why := self.database.unwritable) is not None:
            raise why


def refuse_step(transaction: Transaction, rows: Rows, refused: Refused) -> Decision:
    """Decide about a refusal, with the earlier charges of the step."""
    gate, step = refused.refusals[0].gate, refused.step.request.step
    rows.earlier_amounts = load_earlier_amounts(transaction, gate.dataset, step)
    return decide_refusal(rows, refused)


def _solve(decide: Decide, rows: Rows, author: Author) -> None:
    """Solve all numbers that a decision needs, by deciding; its errors come again."""
    with suppress(DpflowError, *UNREADABLE):
        outcome = decide(rows, author)
        if isinstance(outcome, Refused):
            decide_refusal(rows, outcome)


def answer_or_raise(answer: Any) -> Any:
    """Return an answer, or raise it if it is an error."""
    if isinstance(answer, Exception):
        raise answer
    return answer
