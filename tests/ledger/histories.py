"""Random histories that are played on several ledgers, and how these answer."""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from dpflow import EarlyStopping, PureDP
from dpflow.accounting.costs.text import cost_from_text
from dpflow.exceptions import BudgetRefused, DpflowError, LedgerUnavailable
from dpflow.ledger.canonical import digest
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.requests import Busy, Granted, Replayed, Request
from dpflow.ledger.tables.loading import read_claim
from dpflow.ledger.tables.postgres import PostgresDatabase
from dpflow.ledger.tables.sqlite import MemoryDatabase, SqliteDatabase
from dpflow.ledger.tables.transaction import Identity, Transaction
from dpflow.policy import Policy
from tests.in_memory import MEMORY
from tests.ledger.support import POPULATION, make_policy
from tests.postgres import server
from tests.tables import read_tables

#: Number of commands of a history.
LENGTH = 50

CASES = read_tables(__file__)
#: Policies by dataset: of all kinds, or those of which each answer is easily foretold.
POLICIES = {
    kind: {name: make_policy(name, **fields) for name, fields in CASES[kind].items()}
    for kind in ("all", "simple")
}
#: Datasets with one source.
SOURCED = ("e", "other-e")
COSTS = {
    kind: [cost_from_text(text) for text in texts]
    for kind, texts in CASES["costs"].items()
}
WEEKS = ("2026-W01", "2026-W02", "2026-W03")


class People:
    """Owners of whom some have died."""

    def __init__(self) -> None:
        self.numbers = count(1)
        self.living: list[str] = []
        self.born()

    def born(self) -> None:
        """Let a new process go on."""
        self.living.append(f"{next(self.numbers):032x}")

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


class Workers:
    """A ledger, as a process uses it, or two that lose a fifth of their commits.

    Attributes:
        lost: How many commits had no answer.
    """

    def __init__(self, owners: Any, database: Any, *, lossy: bool = False) -> None:
        self.random, self.lost = Random(7), 0
        self.calls, self.lost_at = 0, 0
        self.ledgers = [Ledger(database(), owners) for _ in range(1 + lossy)]
        for ledger in self.ledgers if lossy else ():
            self._lose_answers(ledger)

    def _lose_answers(self, ledger: Ledger) -> None:
        transaction = ledger.database.transaction

        @contextmanager
        def lossy() -> Iterator[Transaction]:
            with transaction() as within:
                yield within
            # A second loss in a row is an error that the caller gets.
            self.calls += 1
            if self.calls > self.lost_at + 1 and self.random.random() < 0.2:
                self.lost, self.lost_at = self.lost + 1, self.calls
                message = "the answer to a COMMIT was lost"
                raise LedgerUnavailable(message)

        ledger.database.transaction = lossy  # type: ignore[method-assign]

    @property
    def ledger(self) -> Ledger:
        """One of the processes."""
        return self.random.choice(self.ledgers)

    def __getattr__(self, name: str) -> Any:
        """Return an operation of one of the processes."""
        return getattr(self.ledger, name)

    def end(self, kind: str, charge: str, **fields: Any) -> None:
        """End a charge."""
        getattr(self.ledger, kind)(charge, **fields)

    def withdraw(self, key: str) -> Any:
        """Delete the value of a release."""
        ledger = self.ledger
        with ledger.database.snapshot() as within:
            _, release = read_claim(within.ask("read_release", key=key))
        kept = None if release is None else release.digest
        return ledger.withdraw(key, digest=kept, reason="x")

    def sums(self) -> dict[str, Any]:
        """Return settled, held and whether it is overdrawn, of each account."""
        between = {"first": "", "last": "~"}
        with self.ledger.database.snapshot() as within:
            rows = within.run([("read_accounts_between", between)])[0]
        return {
            r[0]: (tuple(json.loads(r[1])), tuple(json.loads(r[2])), bool(r[5]))
            for r in rows
        }


def in_memory() -> Callable[[], MemoryDatabase]:
    """Make a ledger in memory; return what opens it."""
    name = uuid.uuid4().hex
    MemoryDatabase.create(name, Identity("x", None, "t"), b"0")
    return lambda: MemoryDatabase(name)


class Play:
    """One random history, on several ledgers at the same time.

    Args:
        seed: Decides everything.
        owners: The processes.
        ledgers: Each gets every command.
        simple: Play on datasets of which each answer is easily foretold.
        describe: Returns what the ledgers have to agree on.

    Attributes:
        answers: What each ledger answered, command by command.
    """

    def __init__(
        self,
        seed: int,
        owners: People,
        ledgers: Sequence[Any],
        *,
        simple: bool = False,
        describe: Callable[[Any], Any] | None = None,
    ) -> None:
        self.describe = describe or described
        self.random, self.owners, self.ledgers = Random(seed), owners, ledgers
        kind = "simple" if simple else "all"
        self.policies: dict[str, Policy] = dict(POLICIES[kind])
        self.choices = CASES["choices"][kind]
        self.costs = COSTS[kind]
        self.open: list[tuple[str, Request]] = []
        self.ended: list[tuple[str, Request]] = []
        self.answers: list[tuple[str, list[Any]]] = []
        self.deeds: list[Callable[[], None]] = [self.reserve] * 8 + [self.end] * 5
        self.deeds += [self.die] * 3 + [self.again, self.amend, self.prior]
        self.deeds += [self.freeze, self.apply, self.withdraw]
        if simple:
            self.deeds.remove(self.apply)

    def step(self) -> None:
        """Do something."""
        self.random.choice(self.deeds)()

    def ask(self, name: str, *values: Any, **fields: Any) -> Any:
        """Send a command to each ledger; return the first one's answer."""
        found: list[Any] = []
        first: Any = None
        for ledger in self.ledgers:
            try:
                answer = getattr(ledger, name)(*values, **dict(fields))
            except DpflowError as error:
                answer = error
            first = first or answer
            found.append(self.describe(answer))
        self.answers.append((f"{name} {values!r:.200} {fields!r:.200}", found))
        return first

    def request(self) -> Request:
        """Make a random request."""
        random = self.random
        names = random.choice(self.choices)
        if names == ["e"]:
            names = [random.choice(SOURCED)]
        policies = tuple(self.policies[name] for name in names)
        member = any(policy.population for policy in policies)
        partitions: tuple[str, ...] = ()
        if names[-1] in "cdw":
            parts = ("x", "y", "z") if names[-1] == "c" else WEEKS
            partitions = tuple(random.sample(parts, random.randint(1, 2)))
        flow = random.choice([None, "f", "g", "h"])
        run = None if flow is None else f"{flow}{random.randint(1, 2)}"
        key, cost = random.choice([None, "k1"]), random.choice(self.costs)
        if key is not None:
            # A key is asked for at another cost now and then only.
            cost = COSTS["all"][1 if random.random() < 0.2 else 0]
        return Request(
            reservation=uuid.UUID(int=random.getrandbits(128)).hex,
            owner=self.owners.mine(),
            policies=policies,
            populations=(POPULATION,) if member else (),
            partitions=partitions,
            cost=cost,
            step=random.choice(["s", "t"]),
            flow=flow,
            flow_run=run,
            enclosing_runs=() if run is None else (run, "outer"),
            release_key=None if key is None else digest(key + str(names)),
            key_text=key or "",
            fresh=random.random() < 0.1,
        )

    def reserve(self) -> None:
        """Ask for a step."""
        self.send(self.request())

    def send(self, request: Request) -> None:
        """Send a request, and remember a grant."""
        answer = self.ask("reserve", request)
        pair = request.reservation, request
        if isinstance(answer, Granted) and pair not in self.open:
            self.open.append(pair)

    def again(self) -> None:
        """Send an id again, of a charge that ended or not."""
        if charges := self.open + self.ended:
            self.send(self.random.choice(charges)[1])

    def end(self) -> None:
        """Settle, void or forfeit a charge; few have ended before."""
        charges = self.ended if self.random.random() < 0.1 else self.open
        if not charges:
            return
        name, request = charges.pop(self.random.randrange(len(charges)))
        kind = self.random.choice(["settle"] * 4 + ["void", "void", "forfeit"])
        fields: dict[str, Any] = {"reason": "r"}
        if kind == "settle":
            outcome = self.random.choice(["completed", "completed", "failed"])
            stops = isinstance(request.cost, EarlyStopping) and outcome == "completed"
            value = self.random.choice(["1", "1", "1", None])
            fields = {
                "outcome": outcome,
                "value": value if outcome == "completed" else None,
                "reported": self.random.choice([None, 2, 4]) if stops else None,
            }
        self.ask("end", kind, name, **fields)
        self.ended.append((name, request))

    def die(self) -> None:
        """Let a process begin, or the oldest end: its charges are abandoned."""
        if self.random.random() < 0.5:
            self.owners.born()
        else:
            self.owners.died()

    def amend(self) -> None:
        """Charge more for a step, ended or not."""
        charges = self.open if self.random.random() < 0.5 else self.ended
        if charges:
            cost = PureDP(epsilon=self.random.choice(["0.2", "0.4", "2"]))
            self.ask("amend", self.random.choice(charges)[0], cost, reason="x")

    def prior(self) -> None:
        """Charge what was spent elsewhere."""
        evidence = digest(str(self.random.randint(1, 3)))
        name = self.random.choice(sorted({"a", "auto", "s"} & self.policies.keys()))
        policy, cost = self.policies[name], PureDP(epsilon="0.05")
        self.ask("charge_prior", policy, cost, evidence=evidence, reason="x")

    def freeze(self) -> None:
        """Freeze a dataset, or unfreeze it."""
        names = sorted({"a", "b", "e", "s"} & self.policies.keys())
        name = self.random.choice([*names, "population/p"])
        unfreeze = self.random.random() < 0.7
        self.ask("freeze", name, reason="x", unfreeze=unfreeze)

    def apply(self) -> None:
        """Apply an edited file, tighter or looser, or one without its source."""
        random, name = self.random, "a"
        changes: dict[str, str] = {}
        if random.random() < 0.3:
            name = random.choice(SOURCED)
            source = random.choice(["visits", "shop", None])
            changes = {} if source is None else {"source": source}
        elif random.random() < 0.2:
            name, epsilon = "w", random.choice(["0.7", "0.9", "1"])
            changes = {**CASES["all"]["w"], "budget": f"{{epsilon: {epsilon}}}"}
        else:
            epsilon = random.choice(["0.8", "0.9", "1", "1.5"])
            lifetime = random.choice(["2", "4"])
            flows = CASES["all"]["a"]["flows"]
            changes = {
                **CASES["all"]["a"],
                "flows": random.choice([flows, flows, "{g: {}}"]),
                "budget": f"{{epsilon: {epsilon}}}",
                "lifetime": f"{{epsilon: {lifetime}}}",
            }
        policy = make_policy(name, **changes)
        new_term = self.random.random() < 0.5
        answer = self.ask("apply", policy, reason="x", new_term=new_term)
        if not isinstance(answer, DpflowError):
            self.policies[policy.dataset] = policy

    def withdraw(self) -> None:
        """Delete a value that is kept, or one that is not."""
        name = self.random.choice(["a", "b", "auto", "s"])
        self.ask("withdraw", digest("k1" + str([name])))


def described(answer: Any) -> Any:
    """Return what two ledgers have to agree on."""
    if isinstance(answer, Granted):
        return "Granted", answer.accounts
    if isinstance(answer, Replayed):
        return "Replayed", answer.reservation, answer.value, answer.made_at
    if isinstance(answer, Busy):
        return "Busy", answer.reservation
    if isinstance(answer, BudgetRefused):
        details: Mapping[str, Any] = answer.details
        names = ("dataset", "gate", "theorem", "asked", "left", "fits")
        return type(answer).__name__, [details.get(name) for name in names]
    if isinstance(answer, DpflowError):
        return type(answer).__name__
    if isinstance(answer, tuple):
        return sorted((p.account, str(dict(p.amount)), p.overdrawn) for p in answer)
    if hasattr(answer, "action"):
        terms = [view.charged for view in answer.terms]
        return answer.action, answer.term, sorted(answer.closed), terms
    return answer


def in_postgres() -> Callable[[], Any]:
    """Make a ledger on the server of the tests; return what opens it."""
    url = server().new_database()
    PostgresDatabase.create(url, Identity("x", None, "t"), b"0").close()
    return lambda: PostgresDatabase(url)


def in_sqlite() -> Callable[[], Any]:
    """Make a ledger in a file; return what opens it."""
    folder = tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None)
    path = Path(folder) / "ledger.db"
    SqliteDatabase.create(path, Identity("x", None, "t"), b"0").close()
    return lambda: SqliteDatabase(path)


def play(seed: int, database: Callable[[], Any] = in_memory) -> Workers:
    """Play a random history on a new ledger, and return that."""
    owners = People()
    workers = Workers(owners, database())
    history = Play(seed, owners, [workers])
    for _ in range(LENGTH):
        history.step()
    return workers
