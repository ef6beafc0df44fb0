"""The ledger on PostgreSQL against a small model, over random histories.

`tests/hunts/test_model.py` has more of them on SQLite and in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dpflow import PureDP
from dpflow.exceptions import DpflowError, LedgerUnavailable
from dpflow.ledger import Ledger
from dpflow.ledger.records import Replayed, Request
from tests.hunts.model import Model
from tests.ledger.faults import FaultyPostgres, faulty
from tests.ledger.support import (
    UNIT,
    audit,
    ledger_on,
    make_ledger,
    make_policy,
    read,
    request,
    sums,
)
from tests.postgres import server
from tests.sizes import scaled


@pytest.fixture(autouse=True)
def _no_witness(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers share no witness here: the model is of the ledger alone."""
    monkeypatch.setenv("DPFLOW_WITNESS", "none")


LIMIT = 1000
QUANTUM = Fraction(1, 10**12)
POLICY = make_policy(budget="{epsilon: 1e-9}")


# The machine that plays both


def outcome(call: Callable[[], object]) -> tuple[str, object]:
    """Return the name of an answer or error, and the answer."""
    try:
        answer = call()
    except DpflowError as error:
        name = type(error).__name__
        return name.replace("BudgetExhausted", "refused").replace(
            "BudgetRefused", "refused"
        ), error
    return "none" if answer is None else type(answer).__name__, answer


WORKER = st.integers(0, 2)
PICK = st.integers(0, 10**6)
COST = st.integers(1, LIMIT + 50) | st.sampled_from(["left", "left + 1"])
KEY = st.sampled_from([None, None, "k1", "k2"])


class PostgresMachine(RuleBasedStateMachine):
    """Three workers on one ledger, who die, err and repeat themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.path = server().new_database()
        make_ledger(self.path).close()
        self.model = Model()
        self.asked: list[Request] = []
        self.workers = [self.worker() for _ in range(3)]

    def worker(self) -> Ledger:
        """Start a worker."""
        return ledger_on(faulty(self.path))

    def make(self, worker: int, cost: int | str, key: str | None) -> Request:
        """Make a request; its cost may be exactly what is left."""
        if isinstance(cost, str):
            cost = max(self.model.left(), 1) + ("+" in cost)
        ledger, amount = self.workers[worker], PureDP(epsilon=cost * QUANTUM)
        made = request(ledger, amount, policies=[POLICY], key=key)
        self.asked.append(made)
        return made

    def expected(self, made: Request) -> str:
        """Ask the model."""
        assert isinstance(made.cost, PureDP)
        return self.model.reserve(
            made.reservation,
            made.owner,
            int(made.cost.epsilon / QUANTUM),
            made.key_text or None,
        )

    def any_name(self, pick: int) -> str:
        """Choose a reservation that was asked for, or one that never was."""
        names = ["unknown", *(made.reservation for made in self.asked)]
        return names[pick % len(names)]

    def check_reserve(self, worker: int, made: Request) -> None:
        """Reserve with both and compare."""
        name, answer = outcome(lambda: self.workers[worker].reserve(made))
        assert self.expected(made) == name
        if isinstance(answer, Replayed):
            assert self.model.releases[made.key_text][1] == answer.value

    @rule(worker=WORKER, cost=COST, key=KEY)
    def reserve(self, worker: int, cost: int | str, key: str | None) -> None:
        """Ask for a step."""
        self.check_reserve(worker, self.make(worker, cost, key))

    @rule(worker=WORKER, pick=PICK)
    def repeat(self, worker: int, pick: int) -> None:
        """Send a request again, whatever became of it."""
        if self.asked:
            self.check_reserve(worker, self.asked[pick % len(self.asked)])

    @rule(worker=WORKER, pick=PICK, cost=st.integers(1, LIMIT))
    def reuse(self, worker: int, pick: int, cost: int) -> None:
        """Use an id for another request."""
        made = self.make(worker, cost, None)
        self.asked.pop()
        name = self.any_name(pick)
        if name in self.model.charges:
            values = {**fields_of(made), "reservation": name}
            self.check_reserve(worker, Request(**values))

    @rule(worker=WORKER, pick=PICK, fails=st.booleans(), lost=st.booleans())
    def settle(self, worker: int, pick: int, fails: bool, lost: bool) -> None:
        """Post a charge with its release, with none that can be kept, or as failed."""
        name, value = self.any_name(pick), None if lost or fails else f'"{pick}"'
        how = "failed" if fails else "completed"
        told, _ = outcome(
            lambda: self.workers[worker].settle(name, outcome=how, value=value)
        )
        assert self.model.end(name, "settled", "", value) == told

    @rule(worker=WORKER, pick=PICK)
    def void(self, worker: int, pick: int) -> None:
        """Give a charge back, if it is one's own."""
        name, ledger = self.any_name(pick), self.workers[worker]
        told, _ = outcome(lambda: ledger.void(name, reason="test"))
        assert self.model.end(name, "void", ledger.owners.mine()) == told

    @rule(worker=WORKER, pick=PICK)
    def forfeit(self, worker: int, pick: int) -> None:
        """Close a dead charge."""
        name = self.any_name(pick)
        told, _ = outcome(lambda: self.workers[worker].forfeit(name, because="test"))
        assert self.model.end(name, "forfeited", "") == told

    @rule(worker=WORKER)
    def kill(self, worker: int) -> None:
        """End a worker; another one takes its place."""
        self.model.dead.add(self.workers[worker].owners.mine())
        self.workers[worker].close()
        self.workers[worker] = self.worker()

    @rule(worker=WORKER, cost=COST, key=KEY, at=st.integers(0, 25), after=st.booleans())
    def fault(
        self, worker: int, cost: int | str, key: str | None, at: int, after: bool
    ) -> None:
        """Let every statement from the n-th on fail, before or after it ran."""
        made, database = self.make(worker, cost, key), self.workers[worker].storage
        assert isinstance(database, FaultyPostgres)
        count = 0

        def fail(sql: str) -> None:
            nonlocal count
            count += 1
            if count > at:
                raise database.fault("disk I/O error")

        setattr(database, "after" if after else "before", fail)
        told, _ = outcome(lambda: self.workers[worker].reserve(made))
        database.before = database.after = lambda _: None
        sql = "SELECT 1 FROM charge WHERE id = ?"
        kept = read(self.path, sql, made.reservation) != []
        if kept or told != LedgerUnavailable.__name__:
            assert self.expected(made) == ("Granted" if kept else told)

    @invariant()
    def sums_agree(self) -> None:
        """What is spent and held is what the model says, and never too much."""
        spent = self.model.total("settled", "forfeited") * QUANTUM
        held = self.model.total("open") * QUANTUM
        assert (spent, held) == sums(self.path)
        assert spent + held <= LIMIT * QUANTUM

    def teardown(self) -> None:
        """Audit the journal."""
        for ledger in self.workers:
            ledger.close()
        audit(self.path)
        states = dict(read(self.path, "SELECT id, state FROM charge"))
        assert {n: c.state for n, c in self.model.charges.items()} == states
        server().drop(self.path)


def fields_of(made: Request) -> dict[str, object]:
    """Return a request's fields by name."""
    return {name: getattr(made, name) for name in Request.__slots__}


PostgresMachine.TestCase.settings = settings(
    max_examples=scaled(8, push=3),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestPostgresMachine = PostgresMachine.TestCase


def test_the_model_has_a_unit() -> None:
    """A model's unit is a whole number of tally units, so that both are exact."""
    assert (UNIT * QUANTUM).denominator == 1
