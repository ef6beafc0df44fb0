"""Random histories on a storage that remembers what was written, and its fold."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from dpflow.ledger.decision.admit import Reserve
from dpflow.ledger.decision.office import (
    Amend,
    Freeze,
    Prior,
    Repair,
    Withdraw,
)
from dpflow.ledger.entry import Entry
from dpflow.ledger.journal import follow
from dpflow.ledger.model import Command
from dpflow.ledger.state import State
from dpflow.ledger.storage.memory import Memory
from dpflow.ledger.storage.postgres import PostgresStorage
from dpflow.ledger.storage.tables import Reading

from dpflow import ApproxDP, EarlyStopping, Gaussian, Laplace, PureDP
from dpflow.exceptions import DpflowError
from dpflow.ledger import entry
from dpflow.ledger.account_ids import Account
from dpflow.ledger.canonical import canonical, digest
from dpflow.ledger.decisions.policy_changes import Apply
from dpflow.ledger.decisions.settlement import End
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.requests import Granted, Request
from dpflow.ledger.tables.sqlite_connection import SqliteStorage
from dpflow.ledger.tables.transaction import Identity
from dpflow.policy.population import Population
from tests.ledger.support import make_policy
from tests.postgres import server

IDENTITY = Identity("x", None, "t")


class InMemory(Memory):
    """The storage in memory."""

    def __init__(self) -> None:
        name = uuid.uuid4().hex
        Memory.create(name, IDENTITY, b"0")
        super().__init__(name)


class InSqlite(SqliteStorage):
    """The storage in a file."""

    def __init__(self) -> None:
        # Not on a disk: each history syncs some hundred times.
        memory = Path("/dev/shm")
        self.folder = TemporaryDirectory(dir=memory if memory.is_dir() else None)
        path = Path(self.folder.name) / "ledger.db"
        SqliteStorage.create(path, IDENTITY, b"0").close()
        super().__init__(path)


class InPostgres(PostgresStorage):
    """The storage on a server."""

    def __init__(self) -> None:
        url = server().new_database()
        PostgresStorage.create(url, IDENTITY, b"0").close()
        super().__init__(url)


def folded(entries: Iterable[Entry]) -> State:
    """Follow a journal from its first entry."""
    state = State(whole=True)
    for each in entries:
        follow(state, each)
    return state


def stored(reading: Reading) -> State:
    """Load every key that the tags name."""
    keys = [key for (key,) in reading.ask("names", first="", last="~")]
    state = reading.load(lambda _: keys)
    state.whole = True
    return state


def unlike(folded: State, stored: State) -> list[str]:
    """Return the keys that are not what the journal comes to, or not in its place."""
    return [
        key
        for key in sorted({*folded.rows, *stored.rows})
        if canonical(folded.rows.get(key)) != canonical(stored.rows.get(key))
        or folded.numbers.get(key) != stored.numbers.get(key)
    ]


def lawful(storage: Any) -> bool:
    """Say whether the newest value of each key is that of the fold of the journal."""
    entry._proved.clear()
    with storage.read() as reading:
        return unlike(folded(reading.after()), stored(reading)) == []


LENGTH = 50

FLOWS = "{f: {epsilon: 0.6, halt_at_epsilon: 1.5}, g: {}}"
PLAIN = make_policy("a", flows=FLOWS, odometer="{theorem: basic, delta: 0}")
MEMBERS = {
    "b": make_policy("b", population="p"),
    "c": make_policy("c", population="p", partition="{by: region}"),
}
WHOLE = make_policy(
    "d", unit="customer-week", partition="{by: week}", lifetime="{epsilon: 2}"
)
#: Its source has two names.
SOURCED = {name: make_policy(name, source="visits") for name in ("e", "other-e")}
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


class People:
    """Owners of whom some have died."""

    def __init__(self) -> None:
        self.numbers = count(1)
        self.living: list[str] = []
        self.born()

    def born(self) -> str:
        """Let a new process go on."""
        self.living.append(f"{next(self.numbers):032x}")
        return self.living[-1]

    def died(self) -> None:
        """Let the oldest process end, and a new one go on."""
        self.living.pop(0)
        if not self.living:
            self.born()

    def mine(self) -> str:
        """Return the process that asks."""
        return self.living[-1]

    def alive(self, owner: str) -> bool:
        """Say whether a process still runs."""
        return owner in self.living

    def close(self) -> None:
        """Do nothing."""


class Play:
    """One random history.

    Attributes:
        answers: The type of each answer, and what it says if it is an error.
    """

    def __init__(self, seed: int, storage: Any) -> None:
        self.random = Random(seed)
        self.storage = storage
        self.owners = People()
        self.ledger = Ledger(storage, self.owners)
        self.clock = count(1)
        self.policies = {"a": PLAIN, "d": WHOLE, **MEMBERS, **SOURCED}
        self.open: list[tuple[str, Request]] = []
        self.ended: list[str] = []
        self.answers: list[tuple[str, str]] = []
        deeds: list[Callable[[], object]] = [self.reserve] * 8 + [self.end] * 5
        deeds += [self.die] * 3 + [self.close] * 2
        deeds += [self.again, self.amend, self.prior, self.apply, self.withdraw]
        self.deeds = [*deeds, self.repair]

    def step(self) -> None:
        """Do something."""
        self.random.choice(self.deeds)()

    def facts(self) -> dict[str, Any]:
        """Return what every command says of who sends it."""
        writer, at = self.storage.writer or "w", f"t{next(self.clock)}"
        return {"at": at, "writer": writer, "facts": {"who": "ann"}}

    def ask(self, command: Command) -> Any:
        """Load, decide and store; an error is an answer, too."""
        try:
            answer = self.ledger.ask(command)
        except DpflowError as error:
            answer = error
        said = answer.message if isinstance(answer, DpflowError) else ""
        self.answers.append((type(answer).__name__, said))
        return answer

    def request(self, **fields: Any) -> Request:
        """Make a random request."""
        random = self.random
        names = random.choice([["a"]] * 3 + [["b"], ["c"], ["b", "c"], ["d"], ["e"]])
        if names == ["e"]:
            names = [random.choice([*SOURCED])]
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
            "owner": self.owners.mine(),
            "policies": policies,
            "populations": (POPULATION,) if member else (),
            "partitions": partitions,
            "cost": random.choice(COSTS),
            "step": random.choice(["s", "t"]),
            "flow": flow,
            "flow_run": run,
            "enclosing_runs": () if run is None else (run, "outer"),
            "release_key": random.choice([None, "k1"]),
            "fresh": random.random() < 0.1,
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
        self.send(self.request())

    def send(self, request: Request) -> None:
        """Send a request, and remember a grant."""
        answer = self.ask(Reserve(request=request, **self.facts()))
        if isinstance(answer, Granted) and answer.reservation == request.reservation:
            self.open.append((request.reservation, request))

    def again(self) -> None:
        """Send an id again."""
        if self.open:
            self.send(self.random.choice(self.open)[1])

    def end(self) -> None:
        """Settle, void or forfeit an open charge."""
        if not self.open:
            return
        place = self.random.randrange(len(self.open))
        name, request = self.open.pop(place)
        kind = self.random.choice(["settle"] * 4 + ["void", "void", "forfeit"])
        reported, value, body = None, None, {"reason": "r"}
        if kind == "void":
            body = {"reason": "r"}
        if kind == "settle":
            if isinstance(request.cost, EarlyStopping):
                reported = self.random.choice([None, 2, 4])
            outcome = self.random.choice(["completed", "completed", "failed"])
            reported = None if outcome == "failed" else reported
            kept = self.random.choice(["1", "1", "1", None])
            value = kept if outcome == "completed" else None
            kept = value and self.ledger.digests.of_value(name, value)
            body = {"outcome": outcome, "digest": kept}
        self.ask(
            End(
                charge=name,
                kind=kind,
                owner=self.owners.mine(),
                body=body,
                reported=reported,
                value=value,
                **self.facts(),
            )
        )
        self.ended.append(name)

    def die(self) -> None:
        """Let a process begin, or the oldest end: its charges are abandoned."""
        if self.random.random() < 0.5:
            self.owners.born()
        else:
            self.owners.died()

    def amend(self) -> None:
        """Charge more for a step, ended or not."""
        names = [*self.ended, *(name for name, _ in self.open)]
        if not names:
            return
        cost = PureDP(epsilon=self.random.choice(["0.2", "0.4", "2"]))
        name = self.random.choice(names)
        self.ask(Amend(charge=name, cost=cost, reason="x", **self.facts()))

    def prior(self) -> None:
        """Charge what was spent elsewhere."""
        words = {
            "policy": self.policies["a"],
            "cost": PureDP(epsilon="0.05"),
            "evidence": digest(str(self.random.randint(1, 3))),
        }
        self.ask(Prior(reason="x", **words, **self.facts()))

    def close(self) -> None:
        """Freeze a book, or unfreeze it."""
        name = self.random.choice(["a", "b", "e", "population/p"])
        unfreeze = self.random.random() < 0.7
        self.ask(Freeze(book=name, unfreeze=unfreeze, reason="x", **self.facts()))

    def apply(self) -> None:
        """Apply an edited file, tighter or looser, or one without its source."""
        if self.random.random() < 0.3:
            name = self.random.choice([*SOURCED])
            source = self.random.choice(["visits", "shop", None])
            policy = make_policy(name, **({} if source is None else {"source": source}))
        else:
            epsilon = self.random.choice(["0.8", "0.9", "1", "1.5"])
            lifetime = self.random.choice(["2", "4"])
            policy = make_policy(
                "a",
                flows=self.random.choice([FLOWS, FLOWS, "{g: {}}"]),
                odometer="{theorem: basic, delta: 0}",
                budget=f"{{epsilon: {epsilon}}}",
                lifetime=f"{{epsilon: {lifetime}}}",
            )
        command = Apply(
            policy=policy,
            reason="x",
            new_term=self.random.random() < 0.5,
            **self.facts(),
        )
        if not isinstance(self.ask(command), DpflowError):
            self.policies[policy.dataset] = policy

    def withdraw(self) -> None:
        """Delete a value that is kept, or one that is not."""
        state = self.state()
        keys = [k[8:] for k in state.rows if k.startswith("release/")]
        kept = [r for r in map(state.release, keys) if r and r.state == "settled"]
        if kept:
            row = self.random.choice(kept)
            words = {"key": row.key, "digest": row.digest, "reason": "x"}
            self.ask(Withdraw(**words, **self.facts()))

    def repair(self) -> None:
        """Charge again what a witness would say is lost."""
        state = self.state()
        rows: list[Account] = []
        for book in ("a", "b", "c", "d", "e", "other-e"):
            rows += [row for row in state.accounts(book) if any(row.settled)]
        if not rows:
            return
        row = self.random.choice(rows)
        book = row.id.partition("#")[0]
        loss: dict[str, Any] = {
            "amounts": {row.id: tuple(-(-amount // 3) for amount in row.settled)},
            "books": {book: ["f"]},
            "lost": ((50, self.random.choice("fe") * 64),),
            "frozen": self.random.choice([{}, {}, {book: "a freeze was lost"}]),
            "head": state.head[0],
            "repairs": state.repairs + 1,
        }
        self.ask(Repair(reason="x", **loss, **self.facts()))

    def state(self) -> State:
        """Return what every key is."""
        with self.storage.read() as reading:
            return stored(reading)


def played(seed: int, store: Callable[[], Any], play: Any = Play) -> Any:
    """Play a random history; stop where the law is broken."""
    result = play(seed, store())
    for _ in range(LENGTH):
        result.step()
        if not lawful(result.storage):
            break
    return result
