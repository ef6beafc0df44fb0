"""Random histories of runs that are held whole, against a model of them."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from dpflow import PureDP
from dpflow.exceptions import DpflowError, LedgerCorrupt
from dpflow.ledger import journal
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.decision import admit
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.records import Granted
from tests.hunts.machinery.hooks import Crash, nth
from tests.hunts.machinery.memory import MemoryStorage, tables_in_memory
from tests.hunts.machinery.support import SimulatedOwners, asked
from tests.ledger.auditor import audit, first
from tests.ledger.preflights import whole
from tests.ledger.support import UNIT, make_policy, request
from tests.sizes import SCALE, scaled

QUANTUM = Fraction(1, 10**12)
POLICY = make_policy(budget="{epsilon: 1e-9}")
LIMIT = 1000
MOST = 30

WORKER = st.integers(0, 2)
RUN = st.sampled_from(["run/1", "run/2"])
COST = st.integers(1, 400)
PICK = st.integers(0, 10**6)
#: A call of a rule of the machine: its name and values.
Call = tuple[Any, ...]


@dataclass
class Run:
    """What the model knows of a run's preflight: its newest."""

    owner: str
    declared: list[int]
    rest: int
    open: bool = True


@dataclass
class Model:
    """The promises of preflights, in integers."""

    runs: dict[str, Run] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    settled: int = 0
    #: Runs that hold nothing, for they did not fit when they were declared last.
    unheld: set[str] = field(default_factory=set)

    def held(self) -> int:
        """Return what is reserved: by steps, and by runs for steps to come."""
        rests = (run.rest for run in self.runs.values() if run.open)
        return sum(self.steps.values()) + sum(rests)

    def hold(self, name: str, owner: str, alive: bool, costs: list[int]) -> str:
        """Open a run's preflight, or go on with the one that is open."""
        run = self.runs.get(name)
        if run is not None and run.open:
            mine = run.owner == owner or not alive
            if run.declared == costs:
                run.owner = owner if mine else run.owner
                return "Granted"
            if not mine:
                return "ReservationConflict"
            run.owner, run.open = owner, False
        if self.settled + self.held() + sum(costs) > LIMIT:
            self.unheld.add(name)
            return "refused"
        self.unheld.discard(name)
        self.runs[name] = Run(owner, costs, sum(costs))
        return "Granted"

    def draw(self, step: str, name: str, cost: int) -> str:
        """Reserve a step of a run."""
        run = self.runs.get(name)
        if name in self.unheld or (run is not None and not run.open):
            return "refused"
        if run is not None and cost <= run.rest:
            run.rest -= cost
        elif self.settled + self.held() + cost > LIMIT:
            return "refused"
        self.steps[step] = cost
        return "Granted"

    def seal(self, name: str, owner: str) -> str:
        """End a run: only now does its rest return."""
        run = self.runs.get(name)
        if run is None or not run.open:
            return "False"
        if run.owner != owner:
            return "ReservationConflict"
        run.open = False
        return "True"

    def close(self, name: str, alive: bool) -> str:
        """Post a dead run's rest in full."""
        run = self.runs[name]
        if not run.open or alive:
            return "ReservationConflict"
        run.open = False
        self.settled += run.rest
        return "None"


def told(answer: object) -> str:
    """Return the name of an answer or error, as the model says it."""
    if isinstance(answer, bool | None):
        return str(answer)
    name = type(answer).__name__
    return {"BudgetExhausted": "refused", "BudgetRefused": "refused"}.get(name, name)


class PreflightMachine(RuleBasedStateMachine):
    """Three workers, who die and are cut off, and two runs that they may execute."""

    #: How often each answer was given, over all examples.
    counts: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.raw = tables_in_memory()
        self.model, self.living = Model(), set[str]()
        self.preflights: dict[str, str] = {}
        self.workers = [self.worker() for _ in range(3)]

    def worker(self) -> Ledger:
        """Start a worker."""
        owners: Any = SimulatedOwners(self.living)
        return Ledger(MemoryStorage(self.raw), owners)

    def sums(self) -> tuple[int, int]:
        """Return what the ledger has settled and holds."""
        sql = "SELECT settled, held FROM account WHERE id = 'a#1'"
        row = self.raw.execute(sql).fetchone() or ("[0]", "[0]")
        settled, held = (first(text) // (UNIT // QUANTUM.denominator) for text in row)
        return settled, held

    def alive(self, name: str) -> bool:
        """Say whether the process that runs a run lives."""
        run = self.model.runs.get(name)
        return run is not None and run.owner in self.living

    def check(self, what: str, wanted: str, call: Any) -> object:
        """Compare an answer with the model's."""
        answer: object
        try:
            answer = call()
        except DpflowError as error:
            answer = error
        assert told(answer) == wanted, (what, answer)
        self.counts[f"{what}: {wanted}"] += 1
        return answer

    @rule(worker=WORKER, name=RUN, costs=st.lists(COST, min_size=1, max_size=4))
    def hold(self, worker: int, name: str, costs: list[int]) -> None:
        """A flow run begins, or is executed again with what it declared or anew."""
        ledger = self.workers[worker]
        wanted = self.model.hold(name, ledger.owners.mine(), self.alive(name), costs)
        answer = self.check("hold", wanted, lambda: self.asked(ledger, name, costs))
        if isinstance(answer, Granted):
            self.preflights[name] = answer.reservation

    def asked(self, ledger: Ledger, name: str, costs: list[int]) -> object:
        """Ask for a run."""
        priced = [PureDP(epsilon=cost * QUANTUM) for cost in costs]
        made = whole(ledger, priced, run=name, policies=[POLICY])
        return ledger.reserve(made)

    @rule(worker=WORKER, name=RUN)
    def hold_again(self, worker: int, name: str) -> None:
        """A retry declares what the run declared before."""
        if name in self.model.runs:
            self.hold(worker, name, self.model.runs[name].declared)

    @rule(worker=WORKER, name=RUN, cost=COST)
    def draw(self, worker: int, name: str, cost: int) -> None:
        """A step of a run asks, in whatever process."""
        self.step(worker, name, cost)

    @rule(worker=WORKER, name=RUN)
    def draw_all(self, worker: int, name: str) -> None:
        """A step asks for exactly what is left."""
        run = self.model.runs.get(name)
        if run is not None and run.rest:
            self.step(worker, name, run.rest)

    @rule(worker=WORKER, cost=COST)
    def reserve(self, worker: int, cost: int) -> None:
        """A step of no run asks."""
        self.step(worker, "none", cost)

    def step(self, worker: int, name: str, cost: int) -> None:
        """Ask for a step with both."""
        ledger, amount = self.workers[worker], PureDP(epsilon=cost * QUANTUM)
        made = request(ledger, amount, policies=[POLICY], preflights=(name,))
        wanted = self.model.draw(made.reservation, name, cost)
        self.check("draw", wanted, lambda: ledger.reserve(made))

    @rule(worker=WORKER, pick=PICK)
    def settle(self, worker: int, pick: int) -> None:
        """A step ends."""
        if self.model.steps:
            step = sorted(self.model.steps)[pick % len(self.model.steps)]
            self.workers[worker].settle(step)
            self.model.settled += self.model.steps.pop(step)

    @rule(worker=WORKER, name=RUN)
    def seal(self, worker: int, name: str) -> None:
        """A flow run ends."""
        ledger = self.workers[worker]
        wanted = self.model.seal(name, ledger.owners.mine())
        self.check("seal", wanted, lambda: ledger.seal(name, outcome="completed"))

    @rule(worker=WORKER, name=RUN)
    def close(self, worker: int, name: str) -> None:
        """An operator gives a dead run up."""
        if name in self.preflights:
            wanted = self.model.close(name, self.alive(name))
            preflight = self.preflights[name]
            ledger = self.workers[worker]
            self.check(
                "close", wanted, lambda: ledger.forfeit(preflight, reason="test")
            )

    @rule(worker=WORKER, name=RUN)
    def give_up(self, worker: int, name: str) -> None:
        """The process of a run dies, and its rest is posted."""
        for number, each in enumerate(self.workers):
            run = self.model.runs.get(name)
            if run is not None and run.owner == each.owners.mine():
                self.die(number)
        self.close(worker, name)

    @rule(worker=WORKER)
    def die(self, worker: int) -> None:
        """A process dies, and another takes its place."""
        self.workers[worker].owners.close()
        self.workers[worker] = self.worker()

    @rule(
        worker=WORKER, name=RUN, cost=COST, at=st.integers(0, MOST), ends=st.booleans()
    )
    def crash(self, worker: int, name: str, cost: int, at: int, ends: bool) -> None:
        """A process dies at its n-th call of a draw or a seal: all or nothing of it."""
        ledger = self.workers[worker]
        storage: Any = ledger.storage
        before, after = deepcopy(self.model), deepcopy(self.model)
        amount = PureDP(epsilon=cost * QUANTUM)
        made = request(ledger, amount, policies=[POLICY], preflights=(name,))
        if ends:
            after.seal(name, ledger.owners.mine())
        else:
            after.draw(made.reservation, name, cost)
        storage.hooks.after = nth(at, Crash(), once=True)
        crashed = False
        try:
            if ends:
                ledger.seal(name, outcome="completed")
            else:
                ledger.reserve(made)
        except Crash:
            crashed = True
        except DpflowError:
            pass
        storage.hooks.quiet()
        self.die(worker)
        sql = "SELECT state FROM charge WHERE id = ?"
        if ends:
            sql = "SELECT state FROM run JOIN charge ON charge.id = preflight"
            sql = f"{sql} WHERE run.id = ?"
        found = self.raw.execute(sql, (name if ends else made.reservation,)).fetchone()
        done = found == ("sealed",) if ends else found is not None
        same = before == after
        assert crashed or same or done
        self.model = after if done else before
        self.counts[f"crash: {crashed}, {done}"] += 1

    @invariant()
    def agrees(self) -> None:
        """The sums are the model's, within the budget."""
        settled, held = self.sums()
        assert (settled, held) == (self.model.settled, self.model.held())
        assert settled + held <= LIMIT

    def teardown(self) -> None:
        """The whole journal implies what the ledger says."""
        audit(asked(self.raw))
        assert verify(self.workers[0]).bad == []


def play(examples: int) -> None:
    """Play random histories."""
    # A small hunt asks only whether there is anything to find.
    chosen = tuple(Phase) if SCALE >= 1 else (Phase.generate,)
    run_state_machine_as_test(
        PreflightMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=25,
            deadline=None,
            phases=chosen,
            report_multiple_bugs=False,
            derandomize=True,
        ),
    )


def test_random_runs_are_held_drawn_and_sealed_as_the_model_says() -> None:
    """Whoever dies, asks twice or comes late."""
    play(scaled(60))


HELD: Call = ("hold", 0, "run/1", [100, 100])
TOO_MUCH: Call = ("hold", 0, "run/1", [400, 400, 400])
DRAW: Call = ("draw", 0, "run/1", 50)
#: What every hunt is about, by the name that the machine counts.
EVENTS: dict[str, list[Call]] = {
    "hold: Granted": [HELD],
    "hold: refused": [TOO_MUCH],
    "hold: ReservationConflict": [HELD, ("hold", 1, "run/1", [200])],
    "draw: Granted": [HELD, DRAW],
    "draw: refused": [TOO_MUCH, DRAW],
    "seal: True": [HELD, DRAW, ("seal", 0, "run/1")],
    "close: None": [HELD, DRAW, ("give_up", 1, "run/1")],
    "crash: True, False": [HELD, ("crash", 0, "run/1", 50, 0, False)],
}


def perform(calls: list[Call]) -> None:
    """Play a written history."""
    PreflightMachine.counts.clear()
    machine = PreflightMachine()
    for name, *values in calls:
        getattr(machine, name)(*values)
        machine.agrees()
    machine.teardown()


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_agrees_with_the_model(event: str) -> None:
    """The search above asserts nothing about events that it may not meet."""
    perform(EVENTS[event])
    assert PreflightMachine.counts[event] > 0


def test_a_seal_that_returns_too_much_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: it returns what was reserved, as if nothing had been drawn."""
    monkeypatch.setattr(journal, "_draw", lambda *_: None)
    with pytest.raises((AssertionError, LedgerCorrupt)):
        perform(EVENTS["seal: True"])


def test_a_draw_after_the_seal_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a step does not ask whether its run has ended."""
    calls = [HELD, ("seal", 0, "run/1"), DRAW]
    perform(calls)
    real = admit.cover_of

    def never_ended(state: Any, *rest: Any) -> Any:
        found = real(state, *rest)
        return None if found is not None and found.ended else found

    monkeypatch.setattr(admit, "cover_of", never_ended)
    with pytest.raises(AssertionError):
        perform(calls)
