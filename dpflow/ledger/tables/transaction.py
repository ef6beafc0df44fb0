"""A transaction of the ledger: rows in one trip, changes in another.

    lock datasets -> read rows -> decide -> write rows and entries, COMMIT

What each transaction looks at before anything else: which ledger this is, its version,
and whether it moved; on PostgreSQL also that a commit lasts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dpflow.exceptions import LedgerCorrupt, LedgerError, LedgerUnavailable
from dpflow.ledger.decisions.decision import Decision
from dpflow.ledger.tables.errors import refuse_damaged
from dpflow.ledger.tables.rows import Dataset, first_hash, name_columns, read_row

#: Version of the tables; the ledgers of before had a journal of rows.
VERSION = 5

#: Numbers of entries whose hashes are compared, of some datasets.
Expected = Callable[[Sequence[str]], Sequence[tuple[str, int]]]
#: Names of statements, with their parameters.
Questions = Iterable[tuple[str, Mapping[str, Any]]]


class Identity(NamedTuple):
    """Facts by which a ledger differs from others; they never change.

    Attributes:
        ledger: Id of the ledger.
        environment: The only environment that it serves; None for any.
        created_at: The time, a label.
    """

    ledger: str
    environment: str | None
    created_at: str


class MissingDatasets(Exception):
    """A transaction named datasets that have no row yet."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(f"no rows of {names!r:.100}")
        self.names = names


class ConflictingSource(Exception):
    """Another transaction claimed a source just now; the command is decided again."""


class Transaction(ABC):
    """One transaction of a database.

    Args:
        database: The database.
        connection: Its connection.
        pipeline: Pipeline of the connection to a server.

    Attributes:
        datasets: Rows of the datasets that `begin` locked or read.
        expected: Returns, for datasets, the numbers of entries whose hashes are
            compared; a server returns them in the first trip.
        identity: Which ledger it is.
        is_of_copy: Whether it reads or fills a copy that no step may use yet.
        version: The version that it needs; an upgrade begins with an older one.
        moving_to: Where the ledger is being moved, if it is.
        moved_to: Where it was moved.
    """

    #: Questions that begin each transaction, before those of the caller.
    _first: Sequence[tuple[str, Mapping[str, Any]]] = (("read_ledger", {}),)
    identity: Identity
    moving_to: str | None
    moved_to: str | None

    def __init__(self, database: Any, connection: Any, pipeline: Any = None) -> None:
        self._database, self.address = database, database.address
        self.connection, self._pipeline = connection, pipeline
        self.is_of_copy, self.version = database.is_copy, database.version
        self.datasets: dict[str, Dataset] = {}
        self.expected: Expected = lambda _: ()
        self._hashes: dict[tuple[str, int], str] = {}

    @abstractmethod
    def run(self, questions: Questions) -> list[list[Any]]:
        """Run statements, all in one trip, and return the rows of each.

        A statement is a name, or a text in SQLite's words.
        """

    @abstractmethod
    def send(self, questions: Questions) -> None:
        """Run statements without reading answers."""

    def begin(
        self, datasets: Sequence[str] = (), questions: Questions = (), *, lock: bool
    ) -> list[list[Any]]:
        """Lock or read datasets and run the first questions, all in one trip.

        Args:
            datasets: Names, sorted.
            questions: Statements that are answered after the locks were taken.
            lock: Lock the datasets until the end of the transaction.

        Raises:
            MissingDatasets: If some have no row yet.
            LedgerCorrupt: If the ledger is another one, or a row is damaged.
            LedgerUnavailable: If it is of another version, moved, or not durable.
        """
        # Elsewhere the lock of the file is the lock of all datasets.
        on_server: bool = self._database.has_server
        statements = ["read_datasets"]
        if lock and on_server:
            statements = ["queue_for_datasets", "lock_datasets"]
        named = {"names": [*datasets]}
        locks = [(statement, named) for statement in statements if datasets]
        pairs = self.expected(datasets) if on_server else ()
        hashes = [("read_hash", {"dataset": d, "number": n}) for d, n in pairs]
        answers = self.run([*locks, *self._first, *hashes, *questions])
        rows = list[Any]()
        for _ in locks:
            # The last locks or reads the datasets.
            rows = answers.pop(0)
        self._look(answers)
        del answers[: len(self._first)]
        for pair in pairs:
            self._hashes[pair] = "".join(text for (text,) in answers.pop(0))
        self.datasets = {row[0]: read_row(Dataset, row) for row in rows}
        if lock and len(rows) < len(datasets):
            missing = [name for name in datasets if name not in self.datasets]
            raise MissingDatasets(missing)
        return answers

    def hash_of(self, dataset: str, number: int) -> str:
        """Return the hash of an entry; "" if the journal lacks it."""
        pair = (dataset, number)
        if pair not in self._hashes:
            rows = self.ask("read_hash", dataset=dataset, number=number)
            self._hashes[pair] = "".join(text for (text,) in rows)
        return self._hashes[pair]

    def ask(self, name: str, /, **parameters: Any) -> list[Any]:
        """Run one statement and return its rows."""
        return self.run([(name, parameters)])[0]

    def write(self, decision: Decision) -> None:
        """Write the changes and entries of a decision."""
        self.send(decision.statements())

    def secret(self) -> bytes:
        """Return the secret of release keys; a reader's login may not have it."""
        ((text,),) = self.ask("read_secret")
        return bytes.fromhex(text)

    def names(self) -> list[str]:
        """Return the names of the datasets that the ledger has."""
        return [row[0] for row in self.ask("read_every_dataset")]

    def _look(self, answers: list[list[Any]]) -> None:
        """Check which ledger it is, and that it may be used."""
        if len(answers[0]) != 1:
            what = "its identity row is missing"
            raise refuse_damaged(what, self.address)
        ledger, version, environment, created, complete, moving, moved = answers[0][0]
        if type(version) is not int:
            what = "its identity row cannot be read"
            raise refuse_damaged(what, self.address)
        self.identity = Identity(ledger, environment, created)
        self.moving_to, self.moved_to = moving, moved
        kind: type[LedgerError] = LedgerUnavailable
        if version != self.version:
            what = f"has version {version}, and this dpflow needs version "
            what += str(self.version)
            advice = "Run `dpflow ledger upgrade`."
            if version > self.version:
                advice = "Use a newer dpflow."
        elif self._database.opened not in (None, self.identity):
            kind, advice = LedgerCorrupt, "Restore the first."
            what = f"is another ledger than before: its id is {ledger}"
        elif self.is_of_copy:
            return
        elif moved:
            what, advice = f"moved to {moved}", "Set DPFLOW_LEDGER_URL to it."
        elif moving:
            what = f"is being moved to {moving}"
            advice = "Wait for its end. One that was cut short goes on with the same "
            advice += f"command, or back: `dpflow ledger move --back {moving}`."
        elif not complete:
            what, advice = "is being copied into", "Wait for the end of the copy."
        else:
            return
        msg = f"the ledger {self.address} {what}. Nothing was charged. {advice}"
        raise kind(msg, ledger=self.address)


def new_dataset(ledger: str, name: str) -> dict[str, Any]:
    """Return the parameters of the row of a dataset without a term."""
    return name_columns(Dataset(name, hash=first_hash(ledger, name)))
