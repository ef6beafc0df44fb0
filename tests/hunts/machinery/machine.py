"""The machine that plays random histories on both the ledger and the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from fractions import Fraction
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dpflow import PureDP
from dpflow.exceptions import DpflowError, LedgerUnavailable
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.requests import Replayed, Request, Settled
from tests.hunts.machinery.model import LIMIT, Model
from tests.hunts.machinery.support import (
    Crash,
    MemoryStorage,
    Nth,
    SimulatedOwners,
    ask_by,
    nothing,
    tables_in_memory,
)
from tests.ledger.auditor import audit, first
from tests.ledger.support import UNIT, make_policy, request

QUANTUM = Fraction(1, 10**12)
POLICY = make_policy(budget="{epsilon: 1e-9}")
#: More statements than any operation has, so that some faults never come.
MOST = 45

WORKER = st.integers(0, 2)
PICK = st.integers(0, 10**6)
COST = st.integers(0, 999)
KEY = st.sampled_from([None, None, "k1", "k2"])
END = st.sampled_from(["settle", "void", "forfeit"])
FAULT = st.tuples(
    st.integers(0, MOST),
    st.sampled_from(["before", "after"]),
    st.sampled_from(["crash", "fails once", "fails for ever"]),
)
STATES = {"settle": "settled", "void": "void", "forfeit": "forfeited"}
BROKEN = {"Crash", LedgerUnavailable.__name__}


def name_of(answer: object) -> str:
    """Return the name of an answer or error, as the model says it."""
    # An end answers with the digest of what is kept, if anything is, and alerts.
    name = "none" if isinstance(answer, Settled | None) else type(answer).__name__
    return {"BudgetExhausted": "refused", "BudgetRefused": "refused"}.get(name, name)


def outcome(call: Callable[[], object]) -> tuple[str, object]:
    """Return the name of an answer or error, and the answer."""
    try:
        answer = call()
    except DpflowError as error:
        answer = error
    return name_of(answer), answer


class LedgerMachine(RuleBasedStateMachine):
    """Three workers on one ledger, who die, err and repeat themselves."""

    #: How often each rule did its work, over all examples.
    counts: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.open()
        self.model, self.living = Model(), set[str]()
        self.requests: list[Request] = []
        self.workers = [self.worker() for _ in range(3)]

    def open(self) -> None:
        """Make an empty ledger."""
        self.raw: Any = tables_in_memory()

    def storage(self) -> Any:
        """Open the ledger's storage, with hooks of its own."""
        return MemoryStorage(self.raw)

    def worker(self) -> Ledger:
        """Start a worker."""
        owners: Any = SimulatedOwners(self.living)
        return Ledger(self.storage(), owners)

    def mine(self, worker: int) -> str:
        """Return a worker's name."""
        return self.workers[worker].owners.mine()

    def make(self, worker: int, drawn: int, key: str | None) -> Request:
        """Make a request; its cost is small, large, or exactly what is left."""
        left, (size, kind) = self.model.left(), divmod(drawn, 20)
        large = {0: max(left, 1), 1: left + 1, 2: 21 * size}
        cost = PureDP(epsilon=(large.get(kind) or size + 1) * QUANTUM)
        made = request(self.workers[worker], cost, policies=[POLICY], key=key)
        self.requests.append(made)
        return made

    def expected(self, made: Request, model: Model | None = None) -> str:
        """Ask the model, or another."""
        cost: Any = made.cost
        return (model or self.model).reserve(
            made.reservation,
            made.owner,
            int(cost.epsilon / QUANTUM),
            made.key_text or None,
        )

    def any_name(self, pick: int) -> str:
        """Choose a reservation that was requested, or one that never was."""
        names = ["unknown", *(made.reservation for made in self.requests)]
        return names[-1 - pick % len(names)]

    def check_reserve(self, worker: int, made: Request) -> None:
        """Reserve with both and compare."""
        name, answer = outcome(lambda: self.workers[worker].reserve(made))
        assert self.expected(made) == name, answer
        if isinstance(answer, Replayed):
            assert self.model.releases[made.key_text][1] == answer.value
        self.counts[name] += 1

    def end(self, worker: int, how: str, name: str) -> Callable[[], object]:
        """Return what ends a charge."""
        ledger = self.workers[worker]
        if how == "settle":
            return lambda: ledger.settle(name, value=f'"{name}"')
        return lambda: getattr(ledger, how)(name, reason="test")

    def expected_end(self, worker: int, how: str, name: str) -> str:
        """Ask the model about an end."""
        value = f'"{name}"' if how == "settle" else None
        return self.model.end(name, STATES[how], self.mine(worker), value)

    def state(self, name: str) -> str | None:
        """Read a reservation's state."""
        sql = "SELECT state FROM charge WHERE id = ?"
        return next((state for (state,) in self.raw.execute(sql, (name,))), None)

    @rule(worker=WORKER, cost=COST, key=KEY)
    def reserve(self, worker: int, cost: int, key: str | None) -> None:
        """Ask for a step."""
        self.check_reserve(worker, self.make(worker, cost, key))

    @rule(worker=WORKER, pick=PICK)
    def repeat(self, worker: int, pick: int) -> None:
        """Send a request again, whatever became of it."""
        if self.requests:
            self.check_reserve(worker, self.requests[pick % len(self.requests)])

    @rule(worker=WORKER, cost=COST, key=KEY)
    def wonder(self, worker: int, cost: int, key: str | None) -> None:
        """Ask what the answer would be; nothing is kept of it."""
        made, before = self.make(worker, cost, key), list(self.raw.iterdump())
        self.requests.pop()
        answer = self.workers[worker].would_answer(made)
        assert name_of(answer) == self.expected(made, deepcopy(self.model))
        assert before == list(self.raw.iterdump())
        self.counts["wondered"] += 1

    @rule(worker=WORKER, pick=PICK, cost=COST)
    def reuse(self, worker: int, pick: int, cost: int) -> None:
        """Use an id for another request."""
        made = self.make(worker, cost, None)
        self.requests.pop()
        name = self.any_name(pick)
        if name in self.model.charges:
            self.check_reserve(worker, replace(made, reservation=name))

    @rule(worker=WORKER, how=END, pick=PICK)
    def finish(self, worker: int, how: str, pick: int) -> None:
        """Settle, void or forfeit what may or may not be so ended."""
        self.check_end(worker, how, self.any_name(pick))

    def check_end(self, worker: int, how: str, name: str) -> None:
        """End a charge with both and compare."""
        ending, answer = outcome(self.end(worker, how, name))
        assert self.expected_end(worker, how, name) == ending, answer
        self.counts[f"{how} {ending}"] += 1

    @rule(worker=WORKER, cost=COST, key=st.sampled_from(["k1", "k2"]))
    def release(self, worker: int, cost: int, key: str) -> None:
        """Make a release, and ask for it again at the same cost."""
        made = self.make(worker, cost, key)
        self.check_reserve(worker, made)
        self.check_end(worker, "settle", made.reservation)
        again = self.make(worker, cost, key)
        self.requests[-1] = again = replace(again, cost=made.cost)
        self.check_reserve(worker, again)

    @rule(worker=WORKER, key=KEY)
    def bury(self, worker: int, key: str | None) -> None:
        """Die with a charge that somebody else closes."""
        made = self.make(worker, 3, key)
        self.check_reserve(worker, made)
        self.kill(worker)
        self.check_end(worker, "forfeit", made.reservation)

    @rule(worker=WORKER)
    def kill(self, worker: int) -> None:
        """End a worker; another one takes its place."""
        self.model.dead.add(self.mine(worker))
        self.workers[worker].close()
        self.workers[worker] = self.worker()

    @rule(worker=WORKER, cost=COST, key=KEY, fault=FAULT)
    def break_reserve(
        self, worker: int, cost: int, key: str | None, fault: tuple[int, str, str]
    ) -> None:
        """Let a reservation end at any statement, before or after it ran."""
        made = self.make(worker, cost, key)
        ending = self.broken(worker, lambda: self.workers[worker].reserve(made), fault)
        kept = self.state(made.reservation) is not None
        if kept or ending not in BROKEN:
            assert self.expected(made) == ("Granted" if kept else ending)
        if ending == "Crash":
            self.kill(worker)

    @rule(worker=WORKER, act=END, pick=PICK, fault=FAULT)
    def break_end(
        self, worker: int, act: str, pick: int, fault: tuple[int, str, str]
    ) -> None:
        """Let the end of a charge break at any statement."""
        name = self.any_name(pick)
        old = self.state(name)
        ending = self.broken(worker, self.end(worker, act, name), fault)
        if (act, old, ending) == ("void", "void", "none"):
            # Sent again after a failure, it cannot know that it was void before.
            assert fault[2] == "fails once"
            assert self.model.charges[name].owner == self.mine(worker)
        elif self.state(name) != old or ending not in BROKEN:
            expected = self.expected_end(worker, act, name)
            assert expected == ("none" if self.state(name) != old else ending)
        if ending == "Crash":
            self.kill(worker)

    def broken(
        self, worker: int, call: Callable[[], object], fault: tuple[int, str, str]
    ) -> str:
        """Run an operation that breaks at its n-th statement; return its outcome."""
        at, when, how = fault
        error = Crash() if how == "crash" else LedgerUnavailable("the disk failed")
        storage: Any = self.workers[worker].storage
        setattr(storage, when, Nth(at, error, once=how != "fails for ever"))
        try:
            ending, _ = outcome(call)
        except Crash:
            ending = "Crash"
        storage.before = storage.after = nothing
        self.counts[ending if ending in BROKEN else how] += 1
        return ending

    @invariant()
    def sums_agree(self) -> None:
        """What is spent and held is what the model says, and never too much."""
        spent = int(self.model.total("settled", "forfeited") * QUANTUM * UNIT)
        held = int(self.model.total("open") * QUANTUM * UNIT)
        for settled, kept in self.raw.execute("SELECT settled, held FROM account"):
            assert (spent, held) == (first(settled), first(kept))
        assert spent + held <= LIMIT * QUANTUM * UNIT
        self.counts["steps"] += 1

    def teardown(self) -> None:
        """Audit the journal."""
        assert verify(self.workers[0]).bad == []
        states = audit(ask_by(self.raw), LIMIT * QUANTUM).states
        assert {n: c.state for n, c in self.model.charges.items()} == states
