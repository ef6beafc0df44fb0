"""Many workers in one thread: real decisions, simulated time, locks, deaths and disks.

Each worker is a greenlet; each statement is a point at which another one may go on, or
at which the worker dies. A seed decides everything, so that every history can be
played again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import count
from random import Random
from typing import Any

from greenlet import getcurrent, greenlet

from dpflow import PureDP
from dpflow.exceptions import (
    BudgetRefused,
    DpflowError,
    LedgerUnavailable,
    ReservationConflict,
)
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.requests import Busy, Granted, Replayed, Request
from tests.hunts.machinery.support import (
    Crash,
    MemoryStorage,
    SimulatedOwners,
    ask_by,
    tables_in_memory,
)
from tests.ledger.auditor import audit, first
from tests.ledger.support import UNIT, make_policy, request

CAP = Fraction(1)
POLICIES = {name: make_policy(name) for name in ("a", "b")}
DEATH, AMBIGUOUS, TIMEOUT = 0.004, 0.04, 0.04
#: Clocks jump as they like.
CLOCKS = (
    "1970-01-01T00:00:00.000+00:00",
    "2026-11-21T12:00:00.000+00:00",
    "2999-12-31T23:59:59.999+00:00",
)
#: How many steps each worker runs.
STEPS = 3
#: More than any seed needs.
MOST_POINTS = 20_000


@dataclass
class Notes:
    """What the workers know for sure, whatever the ledger says."""

    requests: dict[str, Request] = field(default_factory=dict)
    granted: set[str] = field(default_factory=set)
    settled: set[str] = field(default_factory=set)
    void_sent: set[str] = field(default_factory=set)
    values: dict[str, set[str]] = field(default_factory=dict)
    spent: Counter[str] = field(default_factory=Counter)

    def start(self, name: str) -> None:
        """Note that a body has started: what it costs must be charged by now."""
        made = self.requests[name]
        self.spent.update({p.dataset: units(made) for p in made.policies})


def units(made: Request) -> int:
    """Return the cost of a request in tally units, by the client's own sum."""
    cost: Any = made.cost
    return int(cost.epsilon * UNIT)


class SimulatedStorage(MemoryStorage):
    """The disk that all workers share, and the lock on it.

    Transactions are those of SQLite; the lock, the failures and the points at which
    others go on, one before each statement, are simulated.
    """

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(tables_in_memory())
        self.simulation = simulation
        self.before = lambda _: simulation.point()
        self.locked = False

    @contextmanager
    def write(self) -> Iterator[Any]:
        """Run a block under the lock; its commit may have an unknown outcome."""
        with self.lock(), super().write() as transaction:
            yield transaction
            fate = self.simulation.random.random()
            if fate < AMBIGUOUS:
                if fate < AMBIGUOUS / 2:
                    self.connection.execute("COMMIT")
                raise LedgerUnavailable("the answer to COMMIT was lost")
        self.simulation.look()
        self.simulation.point()

    read = write

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Wait for the lock, perhaps in vain; a death gives it back."""
        impatient = self.simulation.random.random() < TIMEOUT
        while self.locked:
            if impatient:
                raise LedgerUnavailable("busy", waited=30)
            self.simulation.point(waiting=True)
        self.locked = True
        try:
            yield
        finally:
            self.locked = False


class Simulation:
    """One history of some workers and an operator.

    Args:
        seed: Decides everything.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.notes, self.living = Notes(), set[str]()
        self.counts: Counter[str] = Counter()
        self.names = count()
        self.hub = getcurrent()
        self.storage = SimulatedStorage(self)
        self.waiting: set[greenlet] = set()
        self.workers = [greenlet(self.life) for _ in range(4)]
        self.workers.append(greenlet(self.operate))

    # The scheduler

    def run(self) -> Simulation:
        """Play the history to its end, then audit it."""
        while self.workers:
            able = self.workers
            if self.storage.locked:
                able = [w for w in able if w not in self.waiting]
            worker = self.random.choice(able)
            worker.switch()
            if worker.dead:
                self.workers.remove(worker)
        self.check()
        return self

    def point(self, *, waiting: bool = False) -> None:
        """Let others go on, all of them if this one waits; perhaps never come back."""
        self.counts["points"] += 1
        assert self.counts["points"] < MOST_POINTS, "the workers wait for ever"
        if waiting:
            self.waiting.add(getcurrent())
        self.hub.switch()
        self.waiting.discard(getcurrent())
        if self.random.random() < DEATH:
            self.counts["deaths"] += 1
            raise Crash

    # The workers

    def ledger(self) -> Ledger:
        """Open the ledger as a new process would."""
        owners: Any = SimulatedOwners(self.living)
        while True:
            try:
                ledger = Ledger(self.storage, owners)
                # The secret of the release keys is read once.
                ledger.digests.of()
            except LedgerUnavailable:
                self.point()
            else:
                return ledger

    def life(self) -> None:
        """Work, die, be born again under another name, until all steps are done."""
        done = 0
        while done < STEPS:
            ledger = None
            try:
                ledger = self.ledger()
                while done < STEPS:
                    done += 1
                    self.work(ledger)
            except Crash:
                if ledger is not None:
                    ledger.owners.close()

    def work(self, ledger: Ledger) -> None:
        """Ask for a step and run it if it is granted."""
        made = self.make(ledger)
        answer = self.send(ledger, made)
        self.counts[type(answer).__name__] += 1
        if isinstance(answer, Granted):
            self.notes.granted.add(made.reservation)
            self.run_body(ledger, made)
        elif isinstance(answer, Replayed):
            known = self.notes.values[made.key_text]
            assert answer.value in known, "replayed what nobody made"
        else:
            refusals = BudgetRefused, Busy, LedgerUnavailable, ReservationConflict
            assert isinstance(answer, refusals), answer

    def make(self, ledger: Ledger) -> Request:
        """Make a request on one dataset or two, with a key or without."""
        chance = self.random
        names = chance.choice((["a"], ["b"], ["a", "b"]))
        percent = chance.choice((3, 5, 8, 13, 21))
        made = request(
            ledger,
            PureDP(epsilon=Fraction(percent, 100)),
            step=f"count {percent}",
            policies=[POLICIES[name] for name in names],
            key=chance.choice((None, None, None, "k1", "k2")),
            # Counted before any statement lets another worker go on.
            reservation=f"r{next(self.names)}",
        )
        self.notes.requests[made.reservation] = made
        return made

    def send(self, ledger: Ledger, made: Request) -> Any:
        """Ask, and ask again with the same id while the answer is unknown."""
        answer: Any = None
        for _ in range(3):
            try:
                return ledger.reserve(made)
            except LedgerUnavailable as error:
                answer = error
                if "waited" in error.details:
                    break
            except DpflowError as error:
                return error
        return answer

    def run_body(self, ledger: Ledger, made: Request) -> None:
        """Void, or run the body and settle."""
        name, notes = made.reservation, self.notes
        if self.random.random() < 0.1:
            notes.void_sent.add(name)
            self.try_to(lambda: ledger.void(name, reason="test"))
            return
        notes.start(name)
        self.look()
        self.point()
        value = f'"{name}"'
        notes.values.setdefault(made.key_text, set()).add(value)
        if self.try_to(lambda: ledger.settle(name, value=value)):
            notes.settled.add(name)

    def try_to(self, call: Callable[[], None]) -> bool:
        """Try twice; what was done at the first time may not be done again."""
        for _ in range(2):
            try:
                call()
            except LedgerUnavailable:
                continue
            except ReservationConflict:
                return False
            return True
        return False

    def operate(self) -> None:
        """Close what the dead have left, now and then."""
        for _ in range(STEPS):
            for _ in range(self.random.randrange(60)):
                self.hub.switch()
            try:
                ledger = self.ledger()
                with ledger.storage.read() as reading:
                    names = reading.open_charges()
                for name in names[:2]:
                    forfeit(self, ledger, name)
            except (Crash, LedgerUnavailable):
                continue

    # What must hold

    def look(self) -> None:
        """At every instant: what has run is charged, and the charge fits the cap."""
        sql = "SELECT id, settled, held FROM account WHERE id LIKE '%#1'"
        for account, settled, held in self.storage.connection.execute(sql):
            dataset = account.removesuffix("#1")
            used = first(settled) + first(held)
            assert used <= CAP * UNIT, "overspent"
            assert used >= self.notes.spent[dataset], "a step runs uncharged"

    def check(self) -> None:
        """At the end: the ledger holds what was acknowledged, and nothing else."""
        facts = audit(ask_by(self.storage.connection), CAP)
        notes, states = self.notes, facts.states
        assert notes.granted <= set(states), "an acknowledged reservation is lost"
        assert set(states) <= set(notes.requests)
        for name in notes.settled:
            assert states[name] == "settled", "an acknowledged settlement is lost"
        for name, state in states.items():
            assert state != "void" or name in notes.void_sent, "given back unasked"
        # By the clients' own sums: whatever was not given back is charged in full.
        for dataset, used in facts.used.items():
            kept = sum(
                units(notes.requests[name])
                for name, state in states.items()
                if state != "void"
                and dataset in {p.dataset for p in notes.requests[name].policies}
            )
            assert kept == used, "not charged in full"
        self.counts["unsettled"] += sum(s == "open" for s in states.values())
        self.counts["forfeited"] += sum(s == "forfeited" for s in states.values())


def forfeit(simulation: Simulation, ledger: Ledger, reservation: str) -> None:
    """Close a dead charge; the operator closes none of a living process."""
    try:
        ledger.forfeit(reservation, reason="test")
    except ReservationConflict:
        simulation.counts["left alone"] += 1
