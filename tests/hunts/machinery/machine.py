"""The machine that plays random histories on the ledger and on the model at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from fractions import Fraction
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dpflow import PureDP
from dpflow.exceptions import DpflowError, LedgerUnavailable
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.model import Keys
from dpflow.ledger.records import Replayed, Request
from tests.hunts.machinery.hooks import Crash, Hooks, nth
from tests.hunts.machinery.memory import MemoryStorage, tables_in_memory
from tests.hunts.machinery.model import LIMIT, Model
from tests.hunts.machinery.support import SimulatedOwners, asked
from tests.hunts.machinery.tampers import TAMPERS, edited
from tests.ledger.auditor import Ask, audit, first
from tests.ledger.support import UNIT, make_policy, request

QUANTUM = Fraction(1, 10**12)
POLICY = make_policy(budget="{epsilon: 1e-9}")
#: More calls than any operation makes; a fault beyond the last one does not come.
MOST = 26

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
TABLES = [
    "book",
    "term",
    "account",
    "entry",
    "charge",
    "release",
    "run",
    "granted",
    "claim",
    "ledger",
    "row",
]
STATES = {"settle": "settled", "void": "void", "forfeit": "forfeited"}


def ask(ledger: Ledger, **fields: Any) -> object:
    """Reserve with the fields."""
    values = {"policies": [POLICY], "cost": PureDP(epsilon=QUANTUM), **fields}
    return ledger.reserve(request(ledger, **values))


def name_of(answer: object) -> str:
    """Return the name of an answer or error, as the model says it."""
    # A settlement answers with the digest of what is kept, if anything is.
    name = "none" if isinstance(answer, str | None) else type(answer).__name__
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
        self.asked: list[Request] = []
        self.workers = [self.worker() for _ in range(3)]
        self.reader = self.storage()
        self.fields = Request.__dataclass_fields__

    def open(self) -> None:
        """Make an empty ledger."""
        self.raw: Any = tables_in_memory()

    def storage(self) -> Any:
        """Open the ledger's storage, with hooks of its own."""
        return MemoryStorage(self.raw)

    def ask(self) -> Ask:
        """Return what asks the ledger's tables."""
        return asked(self.raw)

    def worker(self) -> Ledger:
        """Start a worker."""
        owners: Any = SimulatedOwners(self.living)
        return Ledger(self.storage(), owners)

    def hooks(self, worker: int) -> Hooks:
        """Return the hooks of a worker."""
        storage: Any = self.workers[worker].storage
        hooks: Hooks = storage.hooks
        return hooks

    def cost(self, drawn: int) -> int:
        """Turn a draw into a small cost, a large one, or exactly what is left."""
        kind, size = drawn % 20, drawn // 20
        large = {0: max(self.model.left(), 1), 1: self.model.left() + 1, 2: 21 * size}
        return large.get(kind) or size + 1

    def make(self, worker: int, cost: int, key: str | None) -> Request:
        """Make a request."""
        ledger, amount = self.workers[worker], PureDP(epsilon=cost * QUANTUM)
        made = request(ledger, amount, policies=[POLICY], key=key)
        self.asked.append(made)
        return made

    def expected(self, made: Request, model: Model | None = None) -> str:
        """Ask the model, or another."""
        cost: Any = made.cost
        owner, key = made.owner, made.key_text or None
        return (model or self.model).reserve(
            made.reservation, owner, int(cost.epsilon / QUANTUM), key
        )

    def any_name(self, pick: int) -> str:
        """Choose a reservation that was asked for, or one that never was."""
        names = ["unknown", *(made.reservation for made in self.asked)]
        return names[-1 - pick % len(names)]

    def check_reserve(self, worker: int, made: Request) -> None:
        """Reserve with both and compare."""
        name, answer = outcome(lambda: self.workers[worker].reserve(made))
        assert self.expected(made) == name, answer
        if isinstance(answer, Replayed):
            assert self.model.releases[made.key_text][1] == answer.value
        self.counts[name] += 1

    def end(self, worker: int, how: str, name: str) -> Callable[[], None]:
        """Return what ends a charge."""
        ledger = self.workers[worker]
        if how == "settle":
            return lambda: ledger.settle(name, value=f'"{name}"')
        if how == "void":
            return lambda: ledger.void(name, reason="test")
        return lambda: ledger.forfeit(name, reason="test")

    def expected_end(self, worker: int, how: str, name: str) -> str:
        """Ask the model about an end."""
        mine = self.workers[worker].owners.mine()
        value = f'"{name}"' if how == "settle" else None
        return self.model.end(name, STATES[how], mine, value)

    def state(self, name: str) -> str | None:
        """Read a reservation's state."""
        with self.reader.read() as reading:
            charge = reading.load(Keys(charges=(name,))).charge(name)
        return None if charge is None else charge.state

    @rule(worker=WORKER, cost=COST, key=KEY)
    def reserve(self, worker: int, cost: int, key: str | None) -> None:
        """Ask for a step."""
        self.check_reserve(worker, self.make(worker, self.cost(cost), key))

    @rule(worker=WORKER, pick=PICK)
    def repeat(self, worker: int, pick: int) -> None:
        """Send a request again, whatever became of it."""
        if self.asked:
            self.check_reserve(worker, self.asked[pick % len(self.asked)])

    @rule(worker=WORKER, cost=COST, key=KEY)
    def wonder(self, worker: int, cost: int, key: str | None) -> None:
        """Ask what the answer would be; nothing is kept of it."""
        made, before = self.make(worker, self.cost(cost), key), self.accounts()
        self.asked.pop()
        answer = self.workers[worker].would_answer(made)
        assert name_of(answer) == self.expected(made, deepcopy(self.model))
        assert before == self.accounts()
        assert self.state(made.reservation) is None
        self.counts["wondered"] += 1

    @rule(worker=WORKER, pick=PICK)
    def again(self, worker: int, pick: int) -> None:
        """Ask for what somebody asked for before, under the same key."""
        kept = [made for made in self.asked if made.key_text in self.model.releases]
        pool = kept or self.asked
        if pool:
            old: Any = pool[pick % len(pool)]
            cost = int(old.cost.epsilon / QUANTUM)
            self.check_reserve(worker, self.make(worker, cost, old.key_text or None))

    @rule(worker=WORKER, pick=PICK, cost=st.integers(1, LIMIT))
    def reuse(self, worker: int, pick: int, cost: int) -> None:
        """Use an id for another request."""
        made = self.make(worker, cost, None)
        self.asked.pop()
        name, charges = self.any_name(pick), self.model.charges
        mine = [
            n for n, c in charges.items() if (c.owner, c.state) == (made.owner, "open")
        ]
        if pick % 3 and mine:
            name = mine[pick % len(mine)]
        if name in charges:
            values = {field: getattr(made, field) for field in self.fields}
            self.check_reserve(worker, Request(**{**values, "reservation": name}))

    @rule(worker=WORKER, how=END, pick=PICK)
    def finish(self, worker: int, how: str, pick: int) -> None:
        """Settle, void or forfeit what may or may not be so ended."""
        name, mine = self.any_name(pick), self.workers[worker].owners.mine()
        own = [made.reservation for made in self.asked if made.owner == mine]
        if how == "void" and pick % 3 and own:
            name = own[pick % len(own)]
        self.check_end(worker, how, name)

    def check_end(self, worker: int, how: str, name: str) -> None:
        """End a charge with both and compare."""
        told, answer = outcome(self.end(worker, how, name))
        assert self.expected_end(worker, how, name) == told, answer
        self.counts[f"{how} {told}"] += 1

    @rule(worker=WORKER, pick=PICK, fails=st.booleans())
    def settle_without_a_release(self, worker: int, pick: int, fails: bool) -> None:
        """Post a charge as failed, or with an output that cannot be kept."""
        name, how = self.any_name(pick), "failed" if fails else "completed"
        told, _ = outcome(lambda: self.workers[worker].settle(name, outcome=how))
        assert self.model.end(name, "settled", "") == told

    @rule(worker=WORKER, cost=COST, key=st.sampled_from(["k1", "k2"]))
    def release(self, worker: int, cost: int, key: str) -> None:
        """Make a release, and ask for it again."""
        amount = self.cost(cost)
        made = self.make(worker, amount, key)
        self.check_reserve(worker, made)
        self.check_end(worker, "settle", made.reservation)
        self.check_reserve(worker, self.make(worker, amount, key))

    @rule(worker=WORKER, key=KEY)
    def bury(self, worker: int, key: str | None) -> None:
        """Die with a charge that somebody else closes."""
        made = self.make(worker, 1, key)
        self.check_reserve(worker, made)
        self.kill(worker)
        self.check_end(worker, "forfeit", made.reservation)

    @rule(worker=WORKER)
    def kill(self, worker: int) -> None:
        """End a worker; another one takes its place."""
        ledger = self.workers[worker]
        self.model.dead.add(ledger.owners.mine())
        ledger.close()
        self.workers[worker] = self.worker()

    @rule(worker=WORKER, cost=COST, key=KEY, fault=FAULT)
    def break_reserve(
        self, worker: int, cost: int, key: str | None, fault: tuple[int, str, str]
    ) -> None:
        """Let a reservation end at any call, before or after it ran."""
        made = self.make(worker, self.cost(cost), key)
        told = self.broken(worker, lambda: self.workers[worker].reserve(made), fault)
        kept = self.state(made.reservation) is not None
        if kept or told not in {"Crash", LedgerUnavailable.__name__}:
            assert self.expected(made) == ("Granted" if kept else told)
        if told == "Crash":
            self.kill(worker)

    @rule(worker=WORKER, act=END, pick=PICK, fault=FAULT)
    def break_end(
        self, worker: int, act: str, pick: int, fault: tuple[int, str, str]
    ) -> None:
        """Let the end of a charge break at any call."""
        name = self.any_name(pick)
        old = self.state(name)
        told = self.broken(worker, self.end(worker, act, name), fault)
        if (act, old) == ("void", "void") and told == "none":
            # Sent again after a failure, it cannot know that it was void before.
            mine = self.workers[worker].owners.mine()
            assert (fault[2], self.state(name)) == ("fails once", "void")
            assert self.model.charges[name].owner == mine
            return
        if self.state(name) != old or told not in {"Crash", "LedgerUnavailable"}:
            expected = self.expected_end(worker, act, name)
            assert expected == ("none" if self.state(name) != old else told)
        if told == "Crash":
            self.kill(worker)

    def broken(
        self, worker: int, call: Callable[[], object], fault: tuple[int, str, str]
    ) -> str:
        """Run an operation that breaks at its n-th call; return what it told."""
        at, when, how = fault
        broken = Crash() if how == "crash" else LedgerUnavailable("the disk failed")
        hooks = self.hooks(worker)
        setattr(hooks, when, nth(at, broken, once=how != "fails for ever"))
        try:
            told, _ = outcome(call)
        except Crash:
            told = "Crash"
        hooks.quiet()
        self.counts[told if told in {"Crash", "LedgerUnavailable"} else how] += 1
        return told

    @rule(worker=WORKER, name=st.sampled_from(sorted(TAMPERS)))
    def tamper(self, worker: int, name: str) -> None:
        """An edit by hand is seen before anything is granted, or by an auditor."""
        tamper, before = TAMPERS[name], self.content()
        with edited(self.raw, tamper.table):
            self.raw.execute(tamper.statement)
            now = self.content()
            if now == before:
                return
            with pytest.raises((AssertionError, KeyError)):
                audit(self.ask())
            assert verify(self.workers[worker]).bad, f"not verified: {name}"
            if tamper.met:
                told, answer = outcome(lambda: ask(self.workers[worker]))
                assert told == "LedgerCorrupt", (name, answer)
                assert now == self.content()
            self.counts["tampers"] += 1
            self.counts[name] += 1

    @rule(worker=WORKER, pick=PICK, whole=st.booleans())
    def reopen(self, worker: int, pick: int, whole: bool) -> None:
        """A charge that was reopened by hand cannot be given back."""
        name = self.any_name(pick)
        if self.state(name) in {None, "open"}:
            return
        ledger = self.workers[worker]
        with edited(self.raw, "charge"):
            self.reopened(name, ledger.owners.mine(), whole=whole)
            before = self.content()
            told, answer = outcome(self.end(worker, "void", name))
            assert told == "LedgerCorrupt", answer
            assert before == self.content()
        self.counts["reopened"] += 1

    def reopened(self, name: str, owner: str, *, whole: bool) -> None:
        """Make a charge look as if it had not ended: its state, or all of it."""
        sql = "UPDATE charge SET state = 'open', owner = ? WHERE id = ?"
        self.raw.execute(sql, (owner, name))
        if whole:
            held = f"""{{"a#1":[{self.model.charges[name].cost * QUANTUM * UNIT},0]}}"""
            places = "json_set(places, '$.a[1]', 0)"
            sql = f"UPDATE charge SET held = ?, places = {places} WHERE id = ?"
            self.raw.execute(sql, (held, name))

    def content(self) -> list[Sequence[Any]]:
        """Return all that the ledger holds."""
        ask = self.ask()
        return [row for table in TABLES for row in ask(f"SELECT * FROM {table}")]

    def accounts(self) -> list[Any]:
        """Return what the ledger's accounts say."""
        return list(self.ask()("SELECT id, settled, held, entry FROM account"))

    @invariant()
    def sums_agree(self) -> None:
        """What is spent and held is what the model says, and never too much."""
        spent = int(self.model.total("settled", "forfeited") * QUANTUM * UNIT)
        held = int(self.model.total("open") * QUANTUM * UNIT)
        for _, settled, kept, _ in self.accounts():
            assert (spent, held) == (first(settled), first(kept))
        assert spent + held <= LIMIT * QUANTUM * UNIT
        self.counts["steps"] += 1

    def teardown(self) -> None:
        """Audit the journal."""
        assert verify(self.workers[0]).bad == []
        states = audit(self.ask(), LIMIT * QUANTUM).states
        assert {n: c.state for n, c in self.model.charges.items()} == states
