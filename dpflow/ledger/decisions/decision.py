"""A decision: an answer, changes of rows, and entries of journals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import neg
from typing import Any, NamedTuple

from dpflow.ledger.account_ids import Amounts, split
from dpflow.ledger.canonical import canonical
from dpflow.ledger.tables.loaded import Rows
from dpflow.ledger.tables.rows import Account, Dataset, Entry, Posting, name_columns

#: A row of a table: one of the classes of `tables.rows`.
Row = tuple[Any, ...]
#: Id of a charge, step, flow and flow run.
About = tuple[str | None, str | None, str | None, str | None]


class Author(NamedTuple):
    """Who sends a command, and when.

    Attributes:
        at: The time, a label.
        writer: User and host, or the login of the database.
        login: The PostgreSQL login; None on SQLite.
        provenance: User and code version, for the journal.
        command: Id of the command.
        applies: Whether a step may open the first term of its policy.
    """

    at: str
    writer: str
    login: str | None = None
    provenance: Mapping[str, Any] = {}
    command: str = ""
    applies: bool = True


_NO_AUTHOR = Author(at="", writer="")


@dataclass(slots=True)
class Decision:
    """An answer, with what the transaction writes.

    Attributes:
        author: Who sends the command, if entries are written.
        answer: The answer; an error is raised after it was written.
        changes: Statements with the rows that they write.
        entries: New entries, in order, each with its dataset's row after it, and the
            statement that writes this row.
        datasets: The newest row of each dataset that an entry was appended to.
        accounts: The newest row of each account that was changed.
        postings: Changes of accounts, by dataset, for the entries of the command.
        earlier: Entries of a charge that began or ended before, for the witness.
    """

    author: Author = _NO_AUTHOR
    answer: Any = None
    changes: list[tuple[str, Row]] = field(default_factory=list)
    entries: list[tuple[Entry, Dataset, str]] = field(default_factory=list)
    datasets: dict[str, Dataset] = field(default_factory=dict)
    accounts: dict[str, Account] = field(default_factory=dict)
    postings: dict[str, dict[str, Posting]] = field(default_factory=dict)
    earlier: tuple[tuple[str, int, str], ...] = ()

    def post(
        self, rows: Rows, name: str, change: Posting, *, overdrawn: bool = False
    ) -> Account:
        """Change what an account has settled and what it holds, and return it.

        Args:
            rows: Rows of the ledger.
            name: Id of the account.
            change: Change of the settled and of the held amount.
            overdrawn: Whether the change raises the account above its gate.
        """
        zero = (0,) * len(change[0])
        before = rows.account(name) or Account(name, zero, zero)
        if overdrawn:
            before = before._replace(overdrawn=1)
        self.accounts[name] = after = before.post(*change)
        self.postings.setdefault(split(name)[0], {})[name] = change
        return after

    def append(
        self,
        dataset: Dataset,
        kind: str,
        *,
        postings: Mapping[str, Posting] | None = None,
        body: Mapping[str, Any] | None = None,
        about: About = (None, None, None, None),
    ) -> Entry:
        """Append an entry to the journal of a dataset.

        Args:
            dataset: The row before, with what the entry changes in it.
            kind: Kind of the entry.
            postings: Changes of accounts.
            body: Further facts.
            about: Id of the charge, step, flow and flow run.
        """
        previous = self.datasets.get(dataset.name, dataset)
        author, number = self.author, previous.number + 1
        sending = author.at, author.writer, kind, author.command
        texts = canonical(postings or {}), canonical(body or {})
        entry = Entry(dataset.name, number, *sending, *about, *texts)
        entry = entry.with_hash(previous.hash)
        after = dataset._replace(number=entry.number, hash=entry.hash)
        statement = _STATEMENTS.get(kind, "advance_dataset")
        self.entries.append((entry, after, statement))
        self.datasets[dataset.name] = after
        return entry

    def is_written(self, entries: Sequence[Entry]) -> bool:
        """Return True if entries of a journal are those of the decision."""
        hashes = {entry.hash for entry in entries}
        own = {entry.hash for entry, *_ in self.entries}
        return bool(own) and own <= hashes

    def number_after(self, dataset: Dataset) -> int:
        """Return the number of the next entry of a dataset."""
        return self.datasets.get(dataset.name, dataset).number + 1

    def statements(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Return the statements that write the decision, in order."""
        rows: list[tuple[str, Row]] = []
        for entry, dataset, statement in self.entries:
            rows += ("insert_journal", entry), (statement, dataset)
        rows += [("put_account", account) for account in self.accounts.values()]
        return [(name, name_columns(row)) for name, row in (*rows, *self.changes)]


#: Kinds whose entries change more of the dataset's row than number and hash. A worker
#: that freezes may write no more of it than `freeze_dataset` does.
_STATEMENTS = {
    **dict.fromkeys(("open", "tighten", "access", "unfreeze", "repair"), "put_dataset"),
    "freeze": "freeze_dataset",
}


def negative(amounts: Amounts) -> Amounts:
    """Return amounts with the other sign."""
    return (*map(neg, amounts),)
