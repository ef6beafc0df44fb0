"""The law: after every command of every history, rows are the fold of the journal.

A ledger in memory, which keeps rows as they are, answers the same commands.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
import pytest

from dpflow import ApproxDP, EarlyStopping, Gaussian, Laplace, PureDP
from dpflow.exceptions import DpflowError
from dpflow.ledger import journal
from dpflow.ledger.approval import Approval
from dpflow.ledger.entry import (
    Entry,
    canonical,
    columns_of,
    entry_of,
    postings_from_text,
)
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.model import (
    Amend,
    Apply,
    Command,
    End,
    Freeze,
    Keys,
    Prior,
    Reserve,
    Seal,
    Wish,
)
from dpflow.ledger.records import Granted, Request, digest
from dpflow.ledger.rows import EPOCH, Epoch, JournalError, Key, Row
from dpflow.ledger.storage.base import Identity
from dpflow.ledger.storage.memory import Memory, MemoryOwners
from dpflow.ledger.storage.postgres import PostgresStorage
from dpflow.ledger.storage.sqlite import SqliteStorage
from dpflow.policy_population import Population
from tests.ledger.support import make_policy
from tests.postgres import server

HISTORIES, LENGTH = 8, 40

FLOWS = "{f: {epsilon: 0.6, halt_at_epsilon: 1.5}, g: {}}"
PLAIN = make_policy("a", flows=FLOWS, odometer="{theorem: basic, delta: 0}")
MEMBERS = {
    "b": make_policy("b", population="p"),
    "c": make_policy("c", population="p", partition="{by: region}"),
}
WHOLE = make_policy(
    "d", unit="customer-week", partition="{by: week}", lifetime="{epsilon: 2}"
)
POPULATION = Population(
    population="p",
    unit="customer",
    relation="add-or-remove",
    budget={"epsilon": "1.2"},
    filter="basic",
).as_policy()
COSTS = [
    PureDP(epsilon="0.1"),
    PureDP(epsilon="0.3"),
    PureDP(epsilon=5),
    ApproxDP(epsilon="0.05", delta="1e-9"),
    EarlyStopping(Laplace(sensitivity=1, epsilon="0.05"), stops=(2, 4)),
    Gaussian(sensitivity=1, sigma=10),
]


class Recording:
    """A storage that remembers in which order entries of all books were written."""

    written: list[Entry]

    def stored(self) -> dict[Key, Row]:
        """Return every row that is stored."""
        raise AssertionError


class Noting:
    """A transaction that notes the entries that it stores."""

    def __init__(self, within: Any, written: list[Entry]) -> None:
        self.within, self.written = within, written

    def __getattr__(self, name: str) -> Any:
        return getattr(self.within, name)

    def store(self, changes: Any, entries: Any, values: Any) -> None:
        """Remember what was written."""
        self.written += entries
        self.within.store(changes, entries, values)


class InMemory(Recording, Memory):
    """The storage in memory."""

    def __init__(self) -> None:
        name = uuid.uuid4().hex
        Memory.create(name, Identity("x", None, "t"), b"0")
        Memory.__init__(self, name)
        self.written = []

    @contextmanager
    def write(self) -> Iterator[Any]:
        """Remember what is written."""
        with super().write() as within:
            yield Noting(within, self.written)

    def stored(self) -> dict[Key, Row]:
        """Return every row that is stored."""
        return self.kept.rows


class InSqlite(Recording, SqliteStorage):
    """The storage in a file."""

    def __init__(self) -> None:
        # Not on a disk: each history syncs some hundred times.
        memory = Path("/dev/shm")
        folder = memory if memory.is_dir() else None
        self.folder = TemporaryDirectory(dir=folder)
        path = Path(self.folder.name) / "ledger.db"
        SqliteStorage.create(path, Identity("x", None, "t"), b"0").close()
        SqliteStorage.__init__(self, path)
        self.written = []

    @contextmanager
    def write(self) -> Iterator[Any]:
        """Remember what is written."""
        with super().write() as within:
            yield Noting(within, self.written)

    def stored(self) -> dict[Key, Row]:
        """Return every row that is stored."""
        with closing(sqlite3.connect(self.path)) as tables, self.read() as reading:
            return all_rows(lambda sql: tables.execute(sql).fetchall(), reading)


class InPostgres(Recording, PostgresStorage):
    """The storage on a server."""

    def __init__(self) -> None:
        url = server().new_database()
        PostgresStorage.create(url, Identity("x", None, "t"), b"0").close()
        PostgresStorage.__init__(self, url)
        self.tables = psycopg.connect(
            url, autocommit=True, options="-c search_path=dpflow"
        )
        self.written = []

    @contextmanager
    def write(self) -> Iterator[Any]:
        """Remember what is written."""
        with super().write() as within:
            yield Noting(within, self.written)

    def stored(self) -> dict[Key, Row]:
        """Return every row that is stored."""
        with self.read() as reading:
            return all_rows(
                lambda sql: self.tables.execute(sql.encode()).fetchall(), reading
            )


def all_rows(ask: Callable[[str], list[Any]], reading: Any) -> dict[Key, Row]:
    """Load every row that the tables name, and count that none is left out."""
    keys = Keys(
        whole=tuple(reading.books()),
        charges=tuple(name for (name,) in ask("SELECT id FROM charge")),
        releases=tuple(key for (key,) in ask("SELECT key FROM release")),
        runs=tuple(name for (name,) in ask("SELECT id FROM run")),
        granted=tuple(ask("SELECT book, step FROM granted")),
        claims=tuple(name for (name,) in ask("SELECT name FROM claim")),
    )
    rows = dict(reading.load(keys).rows)
    assert rows.pop(EPOCH) == Epoch(0)
    tables = ["term", "account", "charge", "release", "run", "granted", "claim"]
    # A server has rows of books that were locked and never written.
    kept = [ask("SELECT count(*) FROM book WHERE number > 0")]
    kept += [ask(f"SELECT count(*) FROM {table}") for table in tables]
    assert sum(count for ((count,),) in kept) == len(rows)
    return rows


class New:
    """The new ledger on a storage."""

    def __init__(self, storage: Any) -> None:
        self.storage = storage
        self.ledger = Ledger(storage, MemoryOwners())
        self.clock = count(1)

    def facts(self) -> dict[str, Any]:
        """Return what every command says of who sends it."""
        return {"at": f"t{next(self.clock)}", "writer": "w", "facts": {"who": "ann"}}

    def run(self, command: Command) -> Any:
        """Load, decide and store; raise a refusal as the ledger does."""
        return self.ledger.ask(command)


def folded_anew(storage: Recording) -> dict[Key, Row]:
    """Read the whole journal from its text, hashes checked, and fold it."""
    rows: dict[Key, Row] = {}
    heads: dict[str, str] = {}
    for written in storage.written:
        previous = heads.get(written.book, "")
        entry = entry_of(previous, columns_of(written), written.hash)
        heads[entry.book] = entry.hash
        for key, row in journal.follow(rows, entry).items():
            if row is None:
                del rows[key]
            else:
                rows[key] = row
    return rows


def lawful(storage: Recording) -> bool:
    """Say whether the rows are the fold of the journal."""
    return plain(folded_anew(storage)) == plain(storage.stored())


def plain(rows: Any) -> Any:
    """Return rows as canonical text: what a database would keep."""
    return {key: canonical(row) for key, row in rows.items()}


class Both:
    """One random history on both ledgers."""

    def __init__(self, seed: int, storage: Any) -> None:
        self.random = Random(seed)
        self.new = New(storage)
        self.old = New(InMemory())
        self.owner = self.new.ledger.owners.mine()
        self.old.ledger.owners = self.new.ledger.owners
        self.policies = {"a": PLAIN, "d": WHOLE, **MEMBERS}
        self.open: list[tuple[str, Request]] = []
        self.ended: list[str] = []
        self.answers: list[str] = []

    def both(self, asked: type[Command], **fields: Any) -> Any:
        """Ask the same of both; they must answer the same."""
        command, found = asked(**fields, **self.new.facts()), []
        for each in (self.new, self.old):
            try:
                answer = each.run(command)
            except DpflowError as error:
                answer = error
            found.append(answer)
        new, old = found
        self.answers.append(type(new).__name__)
        if isinstance(new, DpflowError):
            assert (type(new), new.message, new.details) == (
                type(old),
                old.message,
                old.details,
            )
        else:
            assert new == old
        return new

    def request(self, **fields: Any) -> Request:
        """Make a random request."""
        random = self.random
        names = random.choice([["a"], ["a"], ["a"], ["b"], ["c"], ["b", "c"], ["d"]])
        policies = tuple(self.policies[name] for name in names)
        member = any(policy.population for policy in policies)
        partitions: tuple[str, ...] = ()
        if "c" in names:
            partitions = tuple(random.sample(["x", "y", "z"], random.randint(1, 2)))
        if "d" in names:
            partitions = tuple(
                random.sample(["2026-W01", "2026-W02"], random.randint(1, 2))
            )
        flow = random.choice([None, "f", "g", "h"])
        run = None if flow is None else f"{flow}{random.randint(1, 2)}"
        values = {
            "reservation": uuid.UUID(int=random.getrandbits(128)).hex,
            "owner": self.owner,
            "policies": policies,
            "populations": (POPULATION,) if member else (),
            "partitions": partitions,
            "cost": random.choice(COSTS),
            "step": random.choice(["s", "t"]),
            "flow": flow,
            "flow_run": run,
            "enclosing_runs": () if run is None else (run, "outer"),
            "release_key": random.choice([None, None, "k1", "k2"]),
            "preflights": () if run is None else (run,),
            **fields,
        }
        if values["release_key"] is not None:
            # A key is asked for at another cost now and then only.
            dear = random.random() < 0.2
            values["cost"] = COSTS[1 if dear else 0]
            values["key_text"] = values["release_key"]
            values["release_key"] = digest(values["release_key"] + str(names))
        return Request(**values)

    def reserve(self) -> None:
        """Ask for a step."""
        request = self.request()
        self._asked(request)

    def _asked(self, request: Request) -> None:
        answer = self.both(Reserve, request=request)
        if isinstance(answer, Granted) and answer.reservation == request.reservation:
            self.open.append((request.reservation, request))

    def preflight(self) -> None:
        """Hold a whole run."""
        run = f"f{self.random.randint(1, 2)}"
        same = {"flow": "f", "flow_run": run, "release_key": None, "preflights": ()}
        steps = tuple(self.request(**same) for _ in range(self.random.randint(1, 3)))
        policies = {p.dataset: p for step in steps for p in step.policies}
        people = {p.dataset: p for step in steps for p in step.populations}
        request = self.request(
            **same | {"preflights": ()},
            policies=tuple(policies.values()),
            populations=tuple(people.values()),
            partitions=(),
            cost=steps[0].cost,
            covers=run,
            planned=steps,
        )
        self._asked(request)

    def again(self) -> None:
        """Send an id again."""
        if self.open:
            self._asked(self.random.choice(self.open)[1])

    def end(self) -> None:
        """Settle or void an open charge."""
        if not self.open:
            return
        place = self.random.randrange(len(self.open))
        name, request = self.open.pop(place)
        kind = self.random.choice(["settle", "settle", "settle", "void"])
        reported = None
        if isinstance(request.cost, EarlyStopping):
            reported = self.random.choice([None, 2, 4])
        outcome = self.random.choice(["completed", "completed", "failed"])
        if outcome == "failed":
            reported = None
        fields: dict[str, Any] = {"charge": name, "kind": kind, "owner": self.owner}
        if kind == "void":
            self.both(End, **fields, body={"reason": "r"})
        else:
            value = "1" if outcome == "completed" else None
            kept = None if value is None else digest(value)
            body = {"outcome": outcome, "digest": kept}
            self.both(End, **fields, body=body, reported=reported, value=value)
        self.ended.append(name)

    def seal(self) -> None:
        """End a run's preflight."""
        run = f"f{self.random.randint(1, 2)}"
        self.both(Seal, run=run, owner=self.owner, outcome="completed")

    def amend(self) -> None:
        """Charge more for a step, ended or not."""
        names = [*self.ended, *(name for name, _ in self.open)]
        if not names:
            return
        name = self.random.choice(names)
        cost = PureDP(epsilon=self.random.choice(["0.2", "0.4", "2"]))
        self.both(Amend, charge=name, cost=cost, because="x")

    def prior(self) -> None:
        """Charge what was spent elsewhere."""
        evidence = digest(str(self.random.randint(1, 3)))
        cost = PureDP(epsilon="0.05")
        request = Request(
            reservation=uuid.UUID(int=self.random.getrandbits(128)).hex,
            owner="operator",
            policies=(self.policies["a"],),
            cost=cost,
            step="spent before dpflow",
        )
        self.both(Prior, request=request, because="x", evidence=evidence)

    def close(self) -> None:
        """Freeze a book, or thaw it."""
        name = self.random.choice(["a", "b", "population/p"])
        thawed = self.random.random() < 0.7
        self.both(Freeze, book=name, thaw=thawed, who="ann", because="x")

    def apply(self) -> None:
        """Apply an edited file, tighter or looser."""
        epsilon = self.random.choice(["0.8", "0.9", "1", "1.5"])
        lifetime = self.random.choice(["2", "4"])
        policy = make_policy(
            "a",
            flows=FLOWS,
            odometer="{theorem: basic, delta: 0}",
            budget=f"{{epsilon: {epsilon}}}",
            lifetime=f"{{epsilon: {lifetime}}}",
        )
        new_term = self.random.random() < 0.5
        approval = Approval(principal="ann", authors=("bob",))
        wish = Wish(because="x", new_term=new_term)
        answer = self.both(Apply, policy=policy, wish=wish, approval=approval)
        if not isinstance(answer, DpflowError):
            self.policies["a"] = policy


@cache
def played(seed: int, store: type[Any] = InMemory) -> Both:
    """Play a random history on both ledgers; stop where the law is broken."""
    play = Both(seed, store())
    actions = [play.reserve] * 8 + [play.end] * 5
    actions += [play.again, play.preflight, play.seal, play.amend, play.prior]
    actions += [play.close, play.apply]
    for _ in range(LENGTH):
        play.random.choice(actions)()
        if not lawful(play.new.storage):
            break
    return play


@pytest.mark.parametrize("store", [InMemory, InSqlite, InPostgres])
@pytest.mark.parametrize("seed", range(HISTORIES))
def test_rows_are_the_fold_of_the_journal_and_answers_are_as_before(seed, store):
    """After every command of random histories the law holds, and sums are alike."""
    play = played(seed, store)
    assert lawful(play.new.storage)
    assert {"Granted", "BudgetRefused"} <= {*play.answers}


def test_the_histories_meet_every_answer():
    """What is compared is not grants only: replays, conflicts, refusals come, too."""
    found = (played(seed, InMemory).answers for seed in range(HISTORIES))
    answers = {name for answers in found for name in answers}
    assert answers >= {
        "Granted",
        "Replayed",
        "Busy",
        "BudgetRefused",
        "BudgetExhausted",
        "ReservationConflict",
        "UnsupportedCost",
        "PolicyChanged",
    }


class Forgetful(InMemory):
    """A store that leaves out a row that an entry implies."""

    @contextmanager
    def write(self) -> Iterator[Any]:
        """Forget what was changed of releases that were there."""
        before = dict(self.kept.rows)
        with super().write() as within:
            yield within
        for key in self.kept.rows:
            if key[0] == "release" and key in before:
                self.kept.rows[key] = before[key]


def test_a_store_that_leaves_a_row_out_breaks_the_law():
    """The control: a release whose settlement is not written is noticed."""
    assert not all(
        lawful(played(seed, store=Forgetful).new.storage) for seed in range(3)
    )


def test_a_follow_that_forgets_what_a_charge_holds_breaks_the_law(monkeypatch):
    """The control: rows that were written by another `follow` are not its fold."""
    kinds = dict(journal.KINDS)
    storage = played(1, InMemory).new.storage
    assert lawful(storage)
    kinds["settle"] = kinds["settle"]._replace(settles=False)
    monkeypatch.setattr(journal, "KINDS", kinds)
    with pytest.raises(JournalError, match="the entries give"):
        folded_anew(storage)


def test_an_edited_entry_is_refused():
    """Every column of an entry is in its hash, and every sum follows from it."""
    storage = played(2, InMemory).new.storage
    for number, written in enumerate(storage.written[:12]):
        told = columns_of(written)
        edits = {
            "at": "then",
            "writer": "eve",
            "kind": "void" if told.kind != "void" else "seal",
            "charge": "x",
            "body": told.body.replace("ann", "eve"),
            "number": told.number + 1,
            "book": told.book + "x",
            "postings": "{}" if told.postings != "{}" else '{"a#1":[[1],[1],[1]]}',
        }
        before = [e for e in storage.written[:number] if e.book == written.book]
        previous = before[-1].hash if before else ""
        assert entry_of(previous, told, written.hash).number == written.number
        for name, value in edits.items():
            with pytest.raises(JournalError):
                entry_of(previous, told._replace(**{name: value}), written.hash)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        '{"a":[[1],[1]]}',
        '{"a":[[1.0],[1],[0]]}',
        '{"a":[[true],[1],[0]]}',
        '{"a":[[-1],[1],[0]]}',
        '{"a":[[],[],[]]}',
        '{"a": [[1],[1],[0]]}',
        '{"a":[["1"],[1],[0]]}',
    ],
)
def test_what_are_no_postings_is_refused(text):
    """Amounts are non-negative integers in one form; anything else is damage."""
    with pytest.raises(JournalError, match="posting"):
        postings_from_text(text)
