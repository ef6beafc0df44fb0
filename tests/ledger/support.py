"""A ledger to try things on, an auditor of its own, and processes to kill."""

from __future__ import annotations

import hashlib
import json
import os
import select
import signal
import sqlite3
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import psycopg

from dpflow import PureDP
from dpflow.accounting.costs import Cost
from dpflow.exceptions import DpflowError
from dpflow.ledger import Ledger, create_ledger, open_ledger
from dpflow.ledger.memory import MEMORY, MemoryDatabase, _memories
from dpflow.ledger.owner import Owners
from dpflow.ledger.postgres import PostgresDatabase
from dpflow.ledger.postgres_owner import SessionOwners
from dpflow.ledger.postgres_server import Connection
from dpflow.ledger.records import Granted, Request
from dpflow.ledger.sqlite import SqliteDatabase
from dpflow.policy import Policy, parse_policy

#: One epsilon in tally units.
UNIT = 10**36

#: Where a ledger is: a SQLite file, or the URL of a PostgreSQL database.
Place = Path | str


def make_policy(dataset: str = "a", **fields: str) -> Policy:
    """Make a policy of basic composition with epsilon 1, or as the fields say."""
    given = {
        "dataset": dataset,
        "unit": "customer",
        "relation": "add-or-remove",
        "budget": "{epsilon: 1}",
        "filter": "basic",
        **fields,
    }
    return parse_policy("\n".join(f"{name}: {text}" for name, text in given.items()))


BASIC = make_policy()


def url(path: Place) -> str:
    """Return the URL of a ledger."""
    return path if isinstance(path, str) else f"sqlite:///{path}"


def new_ledger(folder: Path) -> Ledger:
    """Make a ledger in a folder."""
    return make_ledger(folder / "ledger.db")


def make_ledger(path: Place) -> Ledger:
    """Make a ledger at a place."""
    return create_ledger(url(path))


def ledger_on(database: SqliteDatabase | PostgresDatabase) -> Ledger:
    """Open a ledger on a database object, with its usual owners."""
    if isinstance(database, PostgresDatabase):
        return Ledger(database, SessionOwners(database.server))
    return Ledger(database, owners_of(database.path))


def owners_of(path: Path) -> Owners:
    """Return a new view of the owner files beside a ledger file."""
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
        "release_key": None if key is None else ledger.release_key(key),
        "key_text": key or "",
    }
    return Request(**{**values, **fields})


def granted(ledger: Ledger, cost: Cost | str = "0.1", **fields: Any) -> str:
    """Reserve and return the reservation's id; anything but a grant fails."""
    answer = ledger.reserve(request(ledger, cost, **fields))
    assert isinstance(answer, Granted)
    return answer.reservation


def read(path: Place, sql: str, *values: object) -> list[tuple[Any, ...]]:
    """Ask the database itself, over a connection that dpflow knows nothing of."""
    if in_memory(path):
        with MemoryDatabase(str(path).removeprefix(MEMORY)).read() as session:
            return [tuple(row) for row in session._connection.execute(sql, values)]
    if isinstance(path, str):
        with _postgres(path) as postgres:
            return postgres.execute(sql.replace("?", "%s").encode(), values).fetchall()
    connection = sqlite3.connect(path)
    try:
        return connection.execute(sql, values).fetchall()
    finally:
        connection.close()


#: Tables that check the form of their amounts.
AMOUNTS = ("account", "entry", "granted")


def edit(path: Place, *statements: str, checked: bool = False) -> None:
    """Edit a ledger by hand, as someone might who turns off what is in the way.

    The tables' checks stay on only if `checked`.
    """
    if in_memory(path):
        _edit_memory(str(path), statements, checked)
        return
    if isinstance(path, str):
        with _postgres(path) as postgres:
            if not checked:
                _drop_checks(postgres)
            for statement in statements:
                if statement.startswith("DROP TRIGGER"):
                    # References are as little in the way as they are in a file.
                    postgres.execute(b"SET session_replication_role = replica")
                    postgres.execute(f"{statement} ON entry".encode())
                else:
                    postgres.execute(statement.encode())
        return
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA ignore_check_constraints = {not checked}")
    try:
        for statement in statements:
            connection.execute(statement)
        connection.commit()
    finally:
        connection.close()


def _drop_checks(postgres: psycopg.Connection[Any]) -> None:
    """Take the checks of amounts away, for the roles that may."""
    with suppress(psycopg.errors.InsufficientPrivilege), postgres.transaction():
        for table in AMOUNTS:
            # A database may hold a witness alone.
            alter = f"ALTER TABLE IF EXISTS {table} DROP CONSTRAINT IF EXISTS"
            postgres.execute(f"{alter} {table}_amounts".encode())


def in_memory(path: Place) -> bool:
    """Say whether a ledger is in this process's memory."""
    return str(path).startswith(MEMORY)


def _edit_memory(path: str, statements: Sequence[str], checked: bool) -> None:
    """Edit a ledger in memory; as with a new connection, references do not hinder."""
    connection = _memories[path.removeprefix(MEMORY)].connection
    connection.execute("PRAGMA foreign_keys = OFF")
    connection.execute(f"PRAGMA ignore_check_constraints = {not checked}")
    try:
        for statement in statements:
            connection.execute(statement)
    finally:
        connection.execute("PRAGMA ignore_check_constraints = OFF")
        connection.execute("PRAGMA foreign_keys = ON")


def _postgres(path: str) -> psycopg.Connection[tuple[Any, ...]]:
    return psycopg.connect(path, options="-c search_path=dpflow")


def await_death(path: Place, reservation: str) -> None:
    """Wait until the ledger sees that the owner of a reservation has died.

    The server of a database hears of it a moment after the operating system.
    """
    if isinstance(path, Path) or in_memory(path):
        return
    sql = "SELECT owner FROM reservation WHERE id = ?"
    ((owner,),) = read(path, sql, reservation)
    owners = SessionOwners(PostgresDatabase(path).server)
    until = time.monotonic() + 10
    while owners.alive(owner):
        assert time.monotonic() < until
        time.sleep(0.005)
    owners.close()


def sums(path: Place, account: str = "a#1") -> tuple[Fraction, Fraction]:
    """Return what is settled and held on the first component of an account."""
    rows = read(path, "SELECT settled, held FROM account WHERE id = ?", account)
    if not rows:
        return Fraction(0), Fraction(0)
    settled, held = (Fraction(json.loads(text)[0], UNIT) for text in rows[0])
    return settled, held


def kinds(path: Place, account: str = "a#1") -> list[str]:
    """Return the kinds of an account's journal entries, in order."""
    sql = "SELECT kind FROM entry WHERE account = ? ORDER BY seq"
    return [kind for (kind,) in read(path, sql, account)]


def state_of(path: Place, reservation: str) -> str | None:
    """Return the state of a reservation, or None if there is none."""
    sql = "SELECT state FROM reservation WHERE id = ?"
    return next((state for (state,) in read(path, sql, reservation)), None)


COLUMNS = (
    "account seq kind reservation amount settled_after held_after run body at writer"
)


def chain(path: Place, account: str) -> list[tuple[str, str]]:
    """Return each entry's stored hash and the one its content should have."""
    names = COLUMNS.split()
    found, previous = [], ""
    sql = f"SELECT hash, {', '.join(names)} FROM entry WHERE account = ? ORDER BY seq"
    for stored, *values in read(path, sql, account):
        content = dict(zip(names, values, strict=True))
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        previous = hashlib.sha256((previous + text).encode()).hexdigest()
        found.append((stored, previous))
    return found


def audit(path: Place) -> None:
    """Recompute every hash and every sum of a ledger from its journal alone."""
    open_amounts: dict[tuple[str, str], list[int]] = {}
    ended: dict[str, set[str]] = {}
    for account, settled, held, seq, head in read(
        path, "SELECT id, settled, held, seq, head FROM account"
    ):
        hashes = chain(path, account)
        assert all(stored == computed for stored, computed in hashes)
        spent, kept = [0] * len(json.loads(settled)), [0] * len(json.loads(held))
        rows = read(
            path,
            "SELECT seq, kind, reservation, amount, settled_after, held_after "
            "FROM entry WHERE account = ? ORDER BY seq",
            account,
        )
        for position, (number, kind, reservation, text, *after) in enumerate(rows, 1):
            amount = json.loads(text)
            if kind == "reserve":
                kept = [a + b for a, b in zip(kept, amount, strict=True)]
                open_amounts[account, reservation] = amount
            elif kind == "draw":
                rest = open_amounts.get((account, reservation)) or [-1] * len(amount)
                rest = [a - b for a, b in zip(rest, amount, strict=True)]
                assert min(rest) >= 0
                open_amounts[account, reservation] = rest
                kept = [a - b for a, b in zip(kept, amount, strict=True)]
                # What the draw takes, the next entry holds for the step.
                assert rows[position][1] == "reserve"
                assert json.loads(rows[position][3]) == amount
            elif kind in {"settle", "void", "forfeit", "seal"}:
                assert open_amounts.pop((account, reservation)) == amount
                kept = [a - b for a, b in zip(kept, amount, strict=True)]
                ended.setdefault(reservation, set()).add(kind)
            if kind in {"settle", "forfeit", "amend", "prior", "repair"}:
                spent = [a + b for a, b in zip(spent, amount, strict=True)]
            assert position == number
            assert [spent, kept] == [json.loads(text) for text in after]
        assert (spent, kept) == (json.loads(settled), json.loads(held))
        assert (seq, head) == (len(rows), hashes[-1][0])
    words = {"settled": {"settle"}, "void": {"void"}, "forfeited": {"forfeit"}}
    words["sealed"] = {"seal"}
    for name, state in read(path, "SELECT id, state FROM reservation"):
        assert words.get(state, set()) == ended.pop(name, set())
        assert (state == "open") == any(key[1] == name for key in open_amounts)
    assert ended == {}
    if isinstance(path, str) and not in_memory(path):
        return
    assert read(path, "PRAGMA integrity_check") == [("ok",)]
    assert read(path, "PRAGMA foreign_key_check") == []


def refusal(call: Callable[[], object]) -> str:
    """Return the name of the error that a call raises."""
    try:
        call()
    except DpflowError as error:
        return type(error).__name__
    return "none"


def fill(ledger: Ledger, say: Callable[[str], object]) -> str:
    """Reserve and settle until an error; say what was acknowledged."""
    for _ in range(2000):
        try:
            reservation = granted(ledger, "1e-6")
            say(f"reserved {reservation}")
            ledger.settle(reservation)
            say(f"settled {reservation}")
        except DpflowError as error:
            return type(error).__name__
    return "none"


def check_acknowledged(path: Path, told: list[str]) -> None:
    """Everything acknowledged is kept, and at most one charge besides."""
    audit(path)
    kept = dict(read(path, "SELECT id, state FROM reservation"))
    said = {"reserved": set[str](), "settled": set[str]()}
    for line in told:
        word, reservation = line.split()
        said[word].add(reservation)
    assert said["reserved"] <= kept.keys()
    assert all(kept[reservation] == "settled" for reservation in said["settled"])
    assert len(kept.keys() - said["reserved"]) <= 1
    settled = [name for name, state in kept.items() if state == "settled"]
    assert len(set(settled) - said["settled"]) <= 1


def faulty(path: Place) -> FaultyDatabase | FaultyPostgres:
    """Open a database whose statements run between two hooks."""
    return FaultyPostgres(path) if isinstance(path, str) else FaultyDatabase(path)


class FaultyDatabase(SqliteDatabase):
    """A ledger file whose statements run between two hooks, which tests replace."""

    #: What its driver raises when something outside fails.
    fault = sqlite3.OperationalError

    def __init__(self, path: Path, **options: Any) -> None:
        super().__init__(path, **options)
        self.before: Callable[[str], None] = _nothing
        self.after: Callable[[str], None] = _nothing

    def _connect(self) -> Any:
        return _FaultyConnection(super()._connect(), self)


class _FaultyConnection:
    """A connection that calls its database's hooks around each statement."""

    def __init__(self, connection: sqlite3.Connection, hooks: FaultyDatabase) -> None:
        self._connection, self._hooks = connection, hooks

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        """Run a statement between the hooks."""
        self._hooks.before(sql)
        cursor = self._connection.execute(sql, *values)
        try:
            self._hooks.after(sql)
        except BaseException:
            # The driver leaves no statement running when it raises.
            cursor.close()
            raise
        return cursor

    def rollback(self) -> None:
        """End the transaction."""
        self._connection.rollback()

    def close(self) -> None:
        """Close the real connection."""
        self._connection.close()


class FaultyPostgres(PostgresDatabase):
    """A PostgreSQL ledger whose statements run between two hooks."""

    fault = psycopg.OperationalError

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self.before: Callable[[str], None] = _nothing
        self.after: Callable[[str], None] = _nothing

    @contextmanager
    def borrowed(self) -> Iterator[Connection]:
        """Lend a connection that calls the hooks."""
        with super().borrowed() as connection:
            lent: Any = _FaultyPostgresConnection(connection, self)
            yield lent


class _FaultyPostgresConnection:
    """A PostgreSQL connection that calls its database's hooks."""

    def __init__(self, connection: Connection, hooks: FaultyPostgres) -> None:
        self._connection, self._hooks = connection, hooks
        self._pipeline: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    @contextmanager
    def pipeline(self) -> Iterator[Any]:
        """Enter the pipeline mode and remember it."""
        with self._connection.pipeline() as self._pipeline:
            yield self._pipeline

    def execute(self, sql: bytes, *values: Any) -> Any:
        """Run a statement between the hooks."""
        self._hooks.before(sql.decode())
        cursor = self._connection.execute(sql, *values)
        if self._hooks.after is not _nothing:
            # It has run, not only been sent, when the hook is called.
            self._pipeline.sync()
        self._hooks.after(sql.decode())
        return cursor


def _nothing(sql: str) -> None:
    """Let a statement be."""


class Child:
    """A forked process that runs a function and reports by a pipe.

    Args:
        target: What it does; gets `say`, which sends a line at once.
    """

    def __init__(self, target: Callable[[Callable[[str], None]], None]) -> None:
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(reading)
            status = 1
            try:
                target(lambda line: _write(writing, line))
                status = 0
            except BaseException:
                _write(writing, traceback.format_exc())
            finally:
                os._exit(status)
        os.close(writing)
        self._lines = os.fdopen(reading)

    def line(self) -> str:
        """Wait for the next line; empty at the end."""
        return self._lines.readline().rstrip("\n")

    def speaks(self, seconds: float) -> bool:
        """Say whether the process says something, or ends, within so long."""
        return bool(select.select([self._lines], [], [], seconds)[0])

    def kill(self) -> None:
        """Kill the process as the kernel would, and wait until it is gone."""
        os.kill(self.pid, signal.SIGKILL)
        self.end()

    def end(self) -> tuple[int, list[str]]:
        """Wait for the end; return the exit code, negative for a signal, and lines."""
        with self._lines:
            lines = self._lines.read().splitlines()
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status), lines


def _write(descriptor: int, line: str) -> None:
    os.write(descriptor, f"{line}\n".encode())


def die() -> None:
    """End this process as a crash would."""
    os.kill(os.getpid(), signal.SIGKILL)


def told_by_child(target: Callable[[], Any]) -> str:
    """Run a function in a forked process and return what it says."""
    code, lines = Child(lambda say: say(str(target()))).end()
    assert code == 0, lines
    return "\n".join(lines)


class Gate:
    """A door that holds forked processes until it is opened."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()

    def wait(self) -> None:
        """Wait, in the child, until the parent opens or dies."""
        os.close(self._writing)
        os.read(self._reading, 1)

    def open(self) -> None:
        """Let all children through."""
        os.close(self._writing)
        os.close(self._reading)


@contextmanager
def holding(path: Path) -> Iterator[None]:
    """Let another process hold the ledger inside a transaction."""
    gate = Gate()

    def hold(say: Callable[[str], None]) -> None:
        with open_ledger(url(path)).database.write():
            say("held")
            gate.wait()

    child = Child(hold)
    assert child.line() == "held"
    try:
        yield
    finally:
        gate.open()
        assert child.end() == (0, [])
