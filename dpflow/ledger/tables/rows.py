"""Rows of the ledger's tables, their marks, and the hash of a journal's entry.

A row is frozen data with the columns of its table, in their order. `read_row` reads the
columns of a statement and refuses a row whose mark is not that of its columns;
`name_columns` returns them for a statement.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from operator import add
from typing import Any, NamedTuple, TypeVar

from dpflow.ledger.account_ids import Amounts
from dpflow.ledger.account_ids import Term as Term  # noqa: PLC0414 (moves here at the switch)
from dpflow.ledger.canonical import by_identity, canonical
from dpflow.ledger.tables.columns import tables

R = TypeVar("R")

#: Change of an account: settled, held; signed.
Posting = tuple[Amounts, Amounts]


class DamagedRow(ValueError):
    """A row whose mark is not that of its columns."""


def hash_columns(*columns: object) -> str:
    """Return the SHA-256 over columns, each with its length; null and "" differ.

    The text of a column is in UTF-8, behind its number of bytes and a colon; null is -.
    """
    texts = ["-" if c is None else f"{len(text := str(c))}:{text}" for c in columns]
    joined = "".join(texts)
    if not joined.isascii():
        texts = ["-" if c is None else f"{len(f'{c}'.encode())}:{c}" for c in columns]
        joined = "".join(texts)
    return sha256(joined.encode()).hexdigest()


def first_hash(ledger: str, dataset: str) -> str:
    """Return what the hash of a dataset's first entry is chained to."""
    return hash_columns(ledger, dataset)


#: The text of a request, which several columns and hashes have.
request_text = by_identity(canonical)


def _load_tuple(text: str) -> tuple[Any, ...]:
    return (*json.loads(text),)


def _load_held(text: str) -> dict[str, Held]:
    amounts = {}
    for name, (amount, version, *others) in json.loads(text).items():
        used, added = (None if fields is None else tuple(fields) for fields in others)
        amounts[name] = Held(tuple(amount), version, used, added)
    return amounts


#: Fields that a database has as JSON: how each is read and written.
_JSON: Mapping[str, tuple[Callable[[str], Any], Callable[[Any], str]]] = {
    **dict.fromkeys(
        ("frozen", "fields", "realised", "arguments", "shape"), (json.loads, canonical)
    ),
    **dict.fromkeys(("settled", "held", "halted"), (_load_tuple, canonical)),
    "request": (json.loads, request_text),
    "amounts": (_load_held, canonical),
}


class Form(NamedTuple):
    """How a kind of row stands in its table.

    Attributes:
        columns: Names of the columns.
        width: Number of the fields that are columns; further ones are read from
            elsewhere.
        is_marked: Whether the last column is a mark.
        codecs: Place, reader, writer and value for null of each field that is JSON.
    """

    columns: tuple[str, ...]
    width: int
    is_marked: bool
    codecs: tuple[tuple[int, Callable[..., Any], Callable[..., str], Any], ...]


@cache
def form_of(kind: Any) -> Form:
    """Return the form of a kind of row, from its fields and the schema."""
    table = re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()
    columns = tables()["journal" if kind is Entry else table].columns
    is_marked = columns[-1] == "mark"
    width = len(columns) - is_marked
    codecs = [
        (position, *_JSON[name], kind._field_defaults.get(name))
        for position, name in enumerate(kind._fields[:width])
        if name in _JSON
    ]
    return Form(columns, width, is_marked, tuple(codecs))


#: Marked rows that this process proved or wrote, by their columns; it is cleared when
#: it is full.
_proved: dict[tuple[Any, ...], Any] = {}
_MOST = 1024


def read_row(kind: Callable[..., R], columns: Sequence[Any]) -> R:
    """Return a row from its columns.

    Raises:
        DamagedRow: If the mark is that of other columns.
    """
    columns, form = tuple(columns), form_of(kind)
    if not form.is_marked:
        return _load(kind, form, columns)
    proved: R | None = _proved.get(columns)
    if proved is not None:
        return proved
    *values, mark = columns
    if hash_columns(*values) != mark:
        what = f"{kind.__name__.lower()} {columns[0]!r}"
        message = f"the row of {what} is not what its mark says"
        raise DamagedRow(message)
    return _remember(columns, _load(kind, form, values))


def name_columns(row: Any) -> dict[str, Any]:
    """Return the columns of a row by name, with its mark."""
    kind: Any = type(row)
    form = form_of(kind)
    values = [*row[: form.width]]
    fields = [*values]
    for position, load, dump, empty in form.codecs:
        value = values[position]
        if value is None or value == empty:
            values[position], fields[position] = None, empty
            continue
        values[position] = text = dump(value)
        if type(value) is not tuple:
            # What is remembered is what another process reads, in its order.
            fields[position] = load(text)
    if form.is_marked:
        values.append(hash_columns(*values))
        _remember(tuple(values), kind(*fields))
    return dict(zip(form.columns, values, strict=True))


def _load(kind: Callable[..., R], form: Form, columns: Sequence[Any]) -> R:
    """Return a row from its columns without the mark."""
    values = [*columns]
    for position, load, _, empty in form.codecs:
        text = values[position]
        values[position] = empty if text is None else load(text)
    return kind(*values)


def _remember(columns: tuple[Any, ...], row: R) -> R:
    if len(_proved) >= _MOST:
        _proved.clear()
    _proved[columns] = row
    return row


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

    @classmethod
    def from_columns(cls, columns: Sequence[Any]) -> Dataset:
        """Read a row; raises `DamagedRow`."""
        return read_row(cls, columns)


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

    def post(self, settled: Amounts, held: Amounts) -> Account:
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
    def from_columns(cls, columns: Sequence[Any]) -> Charge:
        """Read a row; raises `DamagedRow`."""
        return read_row(cls, columns)

    @property
    def about(self) -> tuple[str, str, str | None, str | None]:
        """Its id, step, flow and flow run, as entries have them."""
        return self.id, self.step, self.flow, self.run

    @property
    def accounts(self) -> tuple[str, ...]:
        """Its accounts, in the order of the requests."""
        return tuple(self.request["accounts"])


class ChargeDataset(NamedTuple):
    """A dataset or population of a charge, and where its journal says so.

    Attributes:
        end_number: Number of the entry that ended the charge; None while it is open.
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
    end_command: str | None = None
    end_hash: str | None = None
    end_postings: str | None = None
    reserve_hash: str | None = None


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


class Evidence(NamedTuple):
    """Digest of an evidence that was charged once, and the number of that entry."""

    dataset: str
    term: int
    digest: str
    number: int


class Source(NamedTuple):
    """The dataset that claims a source, with its population."""

    name: str
    dataset: str
    population: str | None


class PeopleStore(NamedTuple):
    """Charges that paid for the budgets of people, and for the newest step."""

    account: str
    first: str
    newest: str


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

    def with_hash(self, previous: str) -> Entry:
        """Return the entry with its hash."""
        columns = self[:12]
        return Entry(*columns, hash_columns(previous, *columns))
