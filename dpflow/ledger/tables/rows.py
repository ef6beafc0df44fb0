"""Rows of the ledger's tables, their marks, and the hash of a journal's entry.

A row is frozen data. `from_columns` reads the columns of a statement and refuses a row
whose mark is not that of its columns; `parameters` returns them for a statement.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from operator import add
from typing import Any, NamedTuple, cast

from dpflow.ledger.account_ids import Amounts
from dpflow.ledger.account_ids import Term as Term  # noqa: PLC0414 (moves here at the switch)
from dpflow.ledger.canonical import canonical

#: Change of an account: settled, held; signed.
Posting = tuple[Amounts, Amounts]


class DamagedRow(ValueError):
    """A row whose mark is not that of its columns."""


def hash_columns(*columns: object) -> str:
    """Return the SHA-256 over columns, each with its length; null and "" differ.

    The text of a column is in UTF-8, behind its number of bytes and a colon; null is -.
    """
    texts = ["-" if c is None else f"{len(str(c))}:{c}" for c in columns]
    joined = "".join(texts)
    if not joined.isascii():
        sizes = (None if c is None else len(str(c).encode()) for c in columns)
        pairs = zip(sizes, columns, strict=True)
        joined = "".join("-" if n is None else f"{n}:{c}" for n, c in pairs)
    return sha256(joined.encode()).hexdigest()


def first_hash(ledger: str, dataset: str) -> str:
    """Return what the hash of a dataset's first entry is chained to."""
    return hash_columns(ledger, dataset)


def text_or_none(value: object) -> str | None:
    """Return a JSON value as canonical text; None of an absent one."""
    return None if value is None else canonical(value)


#: By its mark, the columns of a row that this process proved or wrote, and the row.
_proved: dict[str, tuple[tuple[Any, ...], Any]] = {}
#: Rows in this memory; it is cleared when it is full.
_MOST = 1024


def find_proved(columns: tuple[Any, ...]) -> Any:
    """Return the row of columns that were proved before; None of others."""
    values, row = _proved.get(columns[-1], ((), None))
    return row if values == columns[:-1] else None


def remember_row(columns: tuple[Any, ...], mark: str, row: Any) -> None:
    """Remember a row whose mark is that of its columns."""
    if len(_proved) >= _MOST:
        _proved.clear()
    _proved[mark] = columns, row


def check_mark(what: str, columns: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the columns of a row without its mark.

    Raises:
        DamagedRow: If the mark is that of other columns.
    """
    *values, mark = columns
    if hash_columns(*values) != mark:
        message = f"the row of {what} is not what its mark says"
        raise DamagedRow(message)
    return tuple(values)


def mark_columns(columns: tuple[Any, ...], row: Any) -> str:
    """Return the mark of a row that is written."""
    mark = hash_columns(*columns)
    remember_row(columns, mark, row)
    return mark


class Dataset(NamedTuple):
    """A dataset or population: its newest term, and the newest entry of its journal.

    Attributes:
        revision: Revision of the newest term.
        frozen: Person, reason and time of a freeze; None if steps may run.
        epoch: Number of repairs, at least the witness's.
        repaired_at: Number of the newest repair's entry; 0 without one.
    """

    name: str
    term: int = 0
    revision: int = 0
    frozen: Mapping[str, Any] | None = None
    epoch: int = 0
    repaired_at: int = 0
    number: int = 0
    hash: str = ""
    #: Flows that were charged in the newest term, where a decision reads them.
    flows: tuple[str, ...] = ()

    @property
    def terms(self) -> int:
        """The number of terms."""
        return self.term

    @classmethod
    def from_columns(cls, columns: tuple[Any, ...]) -> Dataset:
        """Read a row; raises `DamagedRow`."""
        if (proved := find_proved(columns)) is not None:
            return cast("Dataset", proved)
        values = check_mark(f"dataset {columns[0]!r}", columns)
        frozen = None if values[3] is None else json.loads(values[3])
        row = cls._make([*values[:3], frozen, *values[4:], ()])
        remember_row(values, columns[-1], row)
        return row

    def columns(self) -> tuple[Any, ...]:
        """Return the columns without the mark."""
        return (*self[:3], text_or_none(self.frozen), *self[4:8])

    def parameters(self) -> dict[str, Any]:
        """Return the columns by name."""
        columns = self.columns()
        named = dict(zip(self._fields, columns, strict=False))
        return {**named, "mark": mark_columns(columns, self._replace(flows=()))}


class Account(NamedTuple):
    """One tally.

    Attributes:
        version: Rises with each change of settled or held, and with nothing else.
        alerted: The highest threshold that was raised; None without one.
        overdrawn: 1 if a charge by hand or a repair raised it above its gate.
    """

    id: str
    settled: Amounts
    held: Amounts
    version: int = 0
    alerted: str | None = None
    overdrawn: int = 0

    @classmethod
    def from_columns(cls, columns: tuple[Any, ...]) -> Account:
        """Read a row; raises `DamagedRow`."""
        if (proved := find_proved(columns)) is not None:
            return cast("Account", proved)
        values = check_mark(f"account {columns[0]!r}", columns)
        name, settled, held, *rest = values
        row = cls(name, (*json.loads(settled),), (*json.loads(held),), *rest)
        remember_row(values, columns[-1], row)
        return row

    def posted(self, settled: Amounts, held: Amounts) -> Account:
        """Return the account after a posting.

        Raises:
            DamagedRow: If it would hold less than nothing.
        """
        name, settled_before, held_before, version, alerted, overdrawn = self
        if not len(settled_before) == len(settled) == len(held_before) == len(held):
            message = f"an entry posts other components to account {name!r}"
            raise DamagedRow(message)
        after_settled = (*map(add, settled_before, settled),)
        after_held = (*map(add, held_before, held),)
        if min(*after_held, *after_settled) < 0:
            message = f"account {name!r} would hold less than nothing"
            raise DamagedRow(message)
        sums = after_settled, after_held
        return Account(name, *sums, version + 1, alerted, overdrawn)

    def parameters(self) -> dict[str, Any]:
        """Return the columns by name."""
        settled, held = amounts_text(self.settled), amounts_text(self.held)
        columns = (self.id, settled, held, *self[3:])
        named = dict(zip(self._fields, columns, strict=True))
        return {**named, "mark": mark_columns(columns, self)}


def amounts_text(amounts: Iterable[int]) -> str:
    """Return amounts as a JSON array."""
    return f"[{','.join(map(str, amounts))}]"


class Held(NamedTuple):
    """What a charge holds on one account.

    Attributes:
        version: Version of the account right after the reserve, or after the end.
        used: For an unsteady rule, what was used before the reserve.
        added: What corrections added; None without one.
    """

    amount: Amounts
    version: int
    used: Amounts | None = None
    added: Amounts | None = None

    @classmethod
    def from_list(cls, fields: list[Any]) -> Held:
        """Read the JSON list of an account."""
        amount, version, used, added = fields
        return cls(
            tuple(amount),
            version,
            None if used is None else tuple(used),
            None if added is None else tuple(added),
        )


class Charge(NamedTuple):
    """A step's claim on its accounts.

    Attributes:
        state: "open", "settled", "void" or "forfeited".
        owner: Name of the system's lock that the reserving process holds.
        login: Its PostgreSQL login; None on SQLite.
        request: What the request said.
        amounts: What the charge holds, by account.
        realised: The outcome by which the end was priced; None for a full one.
    """

    id: str
    state: str
    owner: str
    login: str | None
    step: str
    flow: str | None
    run: str | None
    release_key: str | None
    request: Mapping[str, Any]
    amounts: Mapping[str, Held]
    realised: Any = None

    @classmethod
    def from_columns(cls, columns: tuple[Any, ...]) -> Charge:
        """Read a row; raises `DamagedRow`."""
        if (proved := find_proved(columns)) is not None:
            return cast("Charge", proved)
        values = check_mark(f"charge {columns[0]!r}", columns)
        request, amounts = json.loads(values[8]), json.loads(values[9])
        held = {name: Held.from_list(amounts[name]) for name in request["accounts"]}
        realised = None if values[10] is None else json.loads(values[10])
        row = cls._make([*values[:8], request, held, realised])
        remember_row(values, columns[-1], row)
        return row

    def parameters(self) -> dict[str, Any]:
        """Return the columns by name."""
        amounts, realised = canonical(self.amounts), text_or_none(self.realised)
        columns = (*self[:8], canonical(self.request), amounts, realised)
        named = dict(zip(self._fields, columns, strict=True))
        return {**named, "mark": mark_columns(columns, self)}

    @property
    def accounts(self) -> tuple[str, ...]:
        """Its accounts, in the order of the requests."""
        return tuple(self.request["accounts"])


class ChargeDataset(NamedTuple):
    """A dataset or population of a charge, and where its journal says so.

    Attributes:
        end_number: Number of the entry that ended the charge; None while it is open.
        end_kind: Kind of that entry.
        end_command: Command of that entry.
        end_hash: Hash of that entry.
        end_postings: Postings of that entry.
        reserve_hash: Hash of the entry that reserved the charge.
    """

    dataset: str
    reserve_number: int
    charge: str
    end_number: int | None
    flow: str | None
    step: str
    end_kind: str | None = None
    end_command: str | None = None
    end_hash: str | None = None
    end_postings: str | None = None
    reserve_hash: str | None = None

    def parameters(self) -> dict[str, Any]:
        """Return the columns by name."""
        return dict(zip(self._fields[:6], self[:6], strict=True))


class Release(NamedTuple):
    """A stored output, or the claim of the charge that makes it.

    Attributes:
        dataset: The first of its datasets by name.
        state: "claimed", "settled", "free" or "withdrawn".
        digest: Digest of the value.
        arguments: Keyed digest of each argument; under "" that of the function.
        shape: Length, groups and columns of the value.
    """

    key: str
    key_text: str
    dataset: str
    step: str
    charge: str
    state: str
    digest: str | None = None
    arguments: Mapping[str, Any] | None = None
    shape: Mapping[str, Any] | None = None
    value: str | None = None

    @classmethod
    def from_columns(cls, columns: tuple[Any, ...]) -> Release:
        """Read a row."""
        *texts, arguments, shape, value = columns
        loaded = (None if t is None else json.loads(t) for t in (arguments, shape))
        return cls._make([*texts, *loaded, value])

    def parameters(self) -> dict[str, Any]:
        """Return the columns by name."""
        named = dict(zip(self._fields, self, strict=True))
        named["arguments"] = text_or_none(self.arguments)
        named["shape"] = text_or_none(self.shape)
        return named


class Run(NamedTuple):
    """A flow run on a dataset.

    Attributes:
        refusals: Number of its refusals.
        halted: Accounts of odometers that refused a step of it.
        completed: 1 if the flow ended well; None if that is unknown.
    """

    id: str
    dataset: str
    flow: str | None
    refusals: int = 0
    halted: tuple[str, ...] = ()
    completed: int | None = None

    @classmethod
    def from_columns(cls, columns: tuple[Any, ...]) -> Run:
        """Read a row."""
        name, dataset, flow, refusals, halted, completed = columns
        gates = () if halted is None else tuple(json.loads(halted))
        return cls(name, dataset, flow, refusals, gates, completed)

    def parameters(self) -> dict[str, Any]:
        """Return the columns by name."""
        named = dict(zip(self._fields, self, strict=True))
        return {**named, "halted": text_or_none(list(self.halted) or None)}


class Evidence(NamedTuple):
    """Digest of an evidence that was charged once, and the number of that entry."""

    dataset: str
    term: int
    digest: str
    number: int

    def parameters(self) -> dict[str, Any]:
        """Return the columns by name."""
        return self._asdict()


class Source(NamedTuple):
    """The dataset that claims a source, with its population."""

    name: str
    dataset: str
    population: str | None

    def parameters(self) -> dict[str, Any]:
        """Return the columns by name."""
        return self._asdict()


class PeopleStore(NamedTuple):
    """Charges that paid for the budgets of people, and for the newest step."""

    account: str
    first: str
    newest: str

    def parameters(self) -> dict[str, Any]:
        """Return the columns by name."""
        return self._asdict()


class Entry(NamedTuple):
    """One entry of a dataset's journal, as the database has it.

    Attributes:
        at: The time, a label.
        writer: User and host, or the login of the database.
        command: Id of the command that wrote it.
        postings: JSON: changes of settled and held, by account.
        body: JSON: further facts. Never data.
    """

    dataset: str
    number: int
    at: str
    writer: str
    kind: str
    command: str
    charge: str | None
    step: str | None
    flow: str | None
    run: str | None
    postings: str
    body: str
    hash: str = ""

    def chained(self, previous: str) -> Entry:
        """Return the entry with its hash."""
        return self._replace(hash=hash_columns(previous, *self[:12]))

    def parameters(self) -> dict[str, Any]:
        """Return the columns by name."""
        return self._asdict()


def term_parameters(term: Term) -> dict[str, Any]:
    """Return the columns of a term by name; its `entry` is the revision."""
    return {
        "dataset": term.book,
        "number": term.number,
        "revision": term.entry,
        "body": canonical(term.facts),
    }


def read_term(columns: tuple[Any, ...]) -> Term:
    """Read the row of a term."""
    dataset, number, revision, body = columns
    return Term(dataset, number, revision, json.loads(body))
