"""A ledger to try things on, and what it says."""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import psycopg
import pytest

from dpflow import PureDP
from dpflow.accounting.costs.base import Cost
from dpflow.exceptions import BudgetRefused, DpflowError
from dpflow.ledger.account_ids import Amounts
from dpflow.ledger.audit.reconcile import load_repair_rows
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.decisions.repairs import Loss, decide_repair
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import create_ledger, open_ledger
from dpflow.ledger.requests import Granted, Request
from dpflow.ledger.tables.columns import TABLES
from dpflow.ledger.tables.database import Database
from dpflow.ledger.tables.errors import MEMORY
from dpflow.ledger.tables.owners import Owners
from dpflow.ledger.tables.postgres import PostgresDatabase
from dpflow.ledger.tables.sqlite import MemoryDatabase, SqliteDatabase
from dpflow.ledger.tables.transaction import Transaction, new_dataset
from dpflow.policy import Policy, parse_policy

#: Where a ledger is: a SQLite file, or the URL of a PostgreSQL database.
Place = Path | str
DatabaseType = TypeVar("DatabaseType", bound=Database)
#: Units of an exact amount.
UNIT = math.lcm(10**36, *range(1, 101))


def policy_text(dataset: str = "a", **fields: str) -> str:
    """Write a policy of basic composition with epsilon 1, or as the fields say."""
    texts = {
        "dataset": dataset,
        "unit": "customer",
        "relation": "add-or-remove",
        "budget": "{epsilon: 1}",
        "filter": "basic",
        **fields,
    }
    return "\n".join(f"{name}: {text}" for name, text in texts.items())


def make_policy(dataset: str = "a", **fields: str) -> Policy:
    """Make a policy of basic composition with epsilon 1, or as the fields say."""
    return parse_policy(policy_text(dataset, **fields))


BASIC = make_policy()
POPULATION = parse_policy(
    "population: p\nunit: customer\nrelation: add-or-remove\n"
    "budget: {epsilon: 1.2}\nfilter: basic\n"
)


def place_of(of: Place | Ledger) -> Place:
    """Return the place of a ledger that is open, or the place itself."""
    place = of.address if isinstance(of, Ledger) else of
    return place if "://" in str(place) else Path(place)


def url(path: Place) -> str:
    """Return the URL of a ledger."""
    return path if isinstance(path, str) else f"sqlite:///{path}"


def new_ledger(folder: Path) -> Ledger:
    """Make a ledger in a folder."""
    return make_ledger(folder / "ledger.db")


def make_ledger(path: Place) -> Ledger:
    """Make a ledger at a place."""
    return create_ledger(url(path))


def make(path: Path, witness: str = "none") -> Ledger:
    """Make a ledger file."""
    return create_ledger(url(path), witness=witness)


def reopen(path: Path, witness: str = "none") -> Ledger:
    """Open a ledger file."""
    return open_ledger(url(path), witness=witness)


def copied(path: Path, to: Path) -> Path:
    """Copy a ledger file that nobody uses."""
    with closing(reopen(path)) as ledger, ledger.database.transaction() as transaction:
        transaction.begin(lock=False)
    for end in ("", "-wal", "-shm"):
        file = path.with_name(f"{path.name}{end}")
        if file.exists():
            shutil.copy(file, to.with_name(f"{to.name}{end}"))
    return to


def put_back(path: Path, copy: Path) -> None:
    """Put a copy in the place of a ledger, without what belonged to the old file."""
    shutil.copy(copy, path)
    for end in ("-wal", "-shm"):
        path.with_name(f"{path.name}{end}").unlink(missing_ok=True)


def ledger_on(database: Database) -> Ledger:
    """Open a ledger on a database, with its usual owners."""
    return Ledger(database, database.owners())


def owners_of(path: Path) -> Owners:
    """Return a new view of the owner files of a ledger file."""
    return Owners(path.with_name(f"{path.name}.owners"))


def request(
    ledger: Ledger,
    cost: Cost | str = "0.1",
    *,
    policies: Sequence[Policy] = (BASIC,),
    key: str | None = None,
    **fields: Any,
) -> Request:
    """Make a request of a step; a text stands for an epsilon."""
    values: dict[str, Any] = {
        "reservation": uuid.uuid4().hex,
        "owner": ledger.owners.mine(),
        "policies": tuple(policies),
        "cost": PureDP(epsilon=cost) if isinstance(cost, str) else cost,
        "step": "count",
        "release_key": None if key is None else ledger.digests.of(key),
        "key_text": key or "",
    }
    return Request(**{**values, **fields})


def granted(ledger: Ledger, cost: Cost | str = "0.1", **fields: Any) -> str:
    """Reserve and return the reservation's id; anything but a grant fails."""
    answer = ledger.reserve(request(ledger, cost, **fields))
    assert isinstance(answer, Granted)
    return answer.reservation


def charged(ledger: Ledger, cost: Cost | str = "0.1", **fields: Any) -> str:
    """Reserve and settle a step."""
    name = granted(ledger, cost, **fields)
    ledger.settle(name)
    return name


def read(of: Place | Ledger, sql: str, *values: object) -> list[tuple[Any, ...]]:
    """Ask the database itself, over a connection that dpflow knows nothing of."""
    path = place_of(of)
    if isinstance(path, str) and not in_memory(path):
        with _postgres(path) as session:
            return session.execute(sql.replace("?", "%s").encode(), values).fetchall()
    connection = sqlite3.connect(":memory:" if in_memory(path) else path)
    with closing(connection):
        if in_memory(path):
            memory = MemoryDatabase(str(path).removeprefix(MEMORY)).connection
            connection.deserialize(memory.serialize())
        return connection.execute(sql, values).fetchall()


def in_memory(path: Place) -> bool:
    """Say whether a ledger is in this process's memory."""
    return str(path).startswith(MEMORY)


def edit(path: Place, *statements: str, locked: bool = False) -> None:
    """Edit a file or a database by hand, as someone who turns off what is in the way.

    The tables' checks and triggers stay on only if `locked`.
    """
    if isinstance(path, str):
        with _postgres(path) as session:
            if not locked:
                session.execute("SET session_replication_role = replica")
            for statement in statements:
                session.execute(statement.encode())
        return
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA ignore_check_constraints = {not locked}")
        triggers = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
        dropped = [] if locked else connection.execute(triggers).fetchall()
        before = [f"DROP TRIGGER {name}" for name, _ in dropped]
        for statement in (*before, *statements, *(sql for _, sql in dropped)):
            connection.execute(statement)
        connection.commit()


def _postgres(path: str) -> psycopg.Connection[tuple[Any, ...]]:
    options = "-c search_path=dpflow -c default_transaction_read_only=off"
    return psycopg.connect(path, options=options)


def sums(of: Place | Ledger, account: str = "a#1") -> tuple[Fraction, Fraction]:
    """Return what is settled and held on the first component of an account."""
    rows = read(of, "SELECT settled, held FROM account WHERE id = ?", account)
    if not rows:
        return Fraction(0), Fraction(0)
    settled, held = (Fraction(json.loads(text)[0], UNIT) for text in rows[0])
    return settled, held


def kinds(of: Place | Ledger, account: str = "a#1") -> list[str]:
    """Return the kinds of the entries about an account or its dataset, in order."""
    dataset, _, term = account.partition("#")
    sql = "SELECT kind, postings, body FROM journal WHERE dataset = ? ORDER BY number"
    rows = read(of, sql, dataset)
    decisions = ("open", "tighten", "access", "freeze", "unfreeze", "repair")
    return [
        kind
        for kind, postings, body in rows
        if account in json.loads(postings)
        or ("/" not in term and kind in decisions)
        or account in json.loads(body).get("accounts", ())
        or (kind == "refuse" and json.loads(body).get("account") == account)
    ]


def state_of(of: Place | Ledger, reservation: str) -> str | None:
    """Return the state of a charge; None without such a charge."""
    sql = "SELECT state FROM charge WHERE id = ?"
    return next((state for (state,) in read(of, sql, reservation)), None)


class JournalLine(NamedTuple):
    """An entry of a journal, with its texts read."""

    dataset: str
    number: int
    kind: str
    charge: str | None
    step: str | None
    flow: str | None
    run: str | None
    postings: dict[str, Any]
    body: dict[str, Any]


def entries(of: Place | Ledger) -> list[JournalLine]:
    """Return all entries in the order of datasets and numbers."""
    sql = "SELECT dataset, number, kind, charge, step, flow, run, postings, body "
    rows = read(of, f"{sql} FROM journal ORDER BY dataset, number")
    read_all = ((*row[:7], *map(json.loads, row[7:])) for row in rows)
    return [*map(JournalLine._make, read_all)]


def body(of: Place | Ledger, kind: str) -> dict[str, Any]:
    """Return the facts of the newest entry of a kind, with those of its request."""
    entry = [entry for entry in entries(of) if entry.kind == kind][-1]
    found = read(of, "SELECT request FROM charge WHERE id = ?", entry.charge)
    request = json.loads(found[0][0]) if found and kind == "reserve" else {}
    named = {"step": entry.step, "flow": entry.flow, "flow_run": entry.run}
    return {**request, **named, **entry.body}


def terms_of(of: Place | Ledger, dataset: str = "a") -> list[dict[str, Any]]:
    """Return the facts of each term of a dataset, oldest first."""
    sql = "SELECT body FROM term WHERE dataset = ? ORDER BY number"
    return [json.loads(text) for (text,) in read(of, sql, dataset)]


def audit(of: Place | Ledger) -> None:
    """Verify a ledger."""
    if isinstance(place_of(of), Path):
        assert read(of, "PRAGMA integrity_check") == [("ok",)]
    if isinstance(of, Ledger):
        assert verify(of).bad == []
        return
    with closing(open_ledger(url(of), witness="none", read_only=True)) as ledger:
        assert verify(ledger).bad == []


def refusal(call: Callable[[], object]) -> str:
    """Return the name of the error that a call raises."""
    try:
        call()
    except DpflowError as error:
        return type(error).__name__
    return "none"


def everything(path: Place | Ledger) -> list[Any]:
    """Return all that is in a ledger, but for datasets without an entry."""
    tables = ["ledger", *TABLES]
    tables[tables.index("dataset")] += " WHERE number > 0"
    return [sorted(read(path, f"SELECT * FROM {name}"), key=repr) for name in tables]


def freeze_of(ledger: Ledger, dataset: str) -> Any:
    """Return who froze a dataset and why; None if it is not frozen."""
    ((text,),) = read(ledger, "SELECT frozen FROM dataset WHERE name = ?", dataset)
    return None if text is None else json.loads(text)


def refused(ledger: Ledger, cost: Cost | str, **fields: Any) -> BudgetRefused:
    """Reserve what will be refused and return the refusal."""
    with pytest.raises(BudgetRefused) as caught:
        ledger.reserve(request(ledger, cost, **fields))
    return caught.value


def repair(ledger: Ledger, used: Mapping[str, Amounts]) -> None:
    """Raise accounts of dataset "a" to what a witness holds, as a repair does."""
    with ledger.database.transaction() as transaction:
        rows = load_repair_rows(transaction, "a", ledger, lock=True)
        term = rows.book("a").term
        loss = Loss(dataset="a", epoch=0, number=99, common=0, used=used, term=term)
        decision = decide_repair(rows, loss, "restored", ledger.author())
        transaction.write(decision)


def impatient(path: Place) -> Ledger:
    """Open a ledger that does not wait long for others."""
    kind = PostgresDatabase if isinstance(path, str) else SqliteDatabase
    return ledger_on(waiting(kind(path), 0.4))


def waiting(database: DatabaseType, seconds: float) -> DatabaseType:
    """Return a database that waits so long for other writers."""
    for each in (database, getattr(database, "server", database)):
        each.lock_seconds = seconds
    return database


def write_a_row(session: Transaction) -> None:
    """Write the row of a dataset within a transaction."""
    session.begin(lock=False)
    session.send([("insert_dataset", new_dataset(session.identity.ledger, "x"))])
