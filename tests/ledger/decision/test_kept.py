"""Runs that are kept for a flow: nobody else's charge refuses one of them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow import Gaussian, PureDP
from dpflow.exceptions import BudgetRefused, PolicyNotApplied
from dpflow.ledger import office
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.decision import gates
from dpflow.ledger.decision.kept import announced_holds, of_flow
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.office_records import Wish
from dpflow.ledger.records import Granted
from dpflow.ledger.views.accounts import accounts
from dpflow.policy import Policy
from tests.ledger.preflights import whole
from tests.ledger.support import granted, make_policy, new_ledger, request
from tests.sizes import scaled

REPORT = "weekly-report"
#: Each filter with the cost of a run's step, and what others may ask for.
WORLDS = {
    "basic": ("basic", PureDP(epsilon="0.04"), [PureDP(epsilon="0.1")]),
    "gaussian": (
        "gaussian",
        Gaussian(sensitivity=1, sigma=20),
        [Gaussian(sensitivity=1, sigma=s) for s in (3, 8, 30)],
    ),
    "whitehouse": (
        "whitehouse",
        PureDP(epsilon="0.05"),
        [PureDP(epsilon="0.2"), Gaussian(sensitivity=1, sigma=25)],
    ),
    "renyi, three orders": (
        "{theorem: renyi, orders: [4, 16, 64]}",
        Gaussian(sensitivity=1, sigma=25),
        [PureDP(epsilon="0.1"), Gaussian(sensitivity=1, sigma=10)],
    ),
}


def kept_policy(theorem: str = "basic", run: Any = None, keep: int = 3) -> Policy:
    """Make a policy that keeps runs for the report, and two of another one."""
    cost = run or PureDP(epsilon="0.1")
    flows = ", ".join(
        f"{name}: {{keep: {runs}, costs: ['{cost!r}']}}"
        for name, runs in ((REPORT, keep), ("monthly", 2))
    )
    return make_policy(
        budget="{epsilon: 1, delta: 1e-6}" if theorem != "basic" else "{epsilon: 1}",
        filter=theorem,
        other_flows="allow",
        flows=f"{{{flows}}}",
    )


# The law, of the pure decision


@dataclass
class History:
    """Charges against the gate of a dataset, as the ledger's own decision meets it."""

    policy: Policy
    run: Any
    others: list[Any]
    holds: bool = True
    open: list[tuple[str | None, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        pinned = self.policy.pinned()
        self.rule = self.policy.dataset_filter()
        self.kept = announced_holds(pinned)
        self.used = self.rule.zero()
        self.drawn = {hold.flow: self.rule.zero() for hold in self.kept}
        self.left = {hold.flow: hold.runs for hold in self.kept}

    def gate(self, flow: str | None) -> gates.Gate:
        """Return the dataset's gate as a step of a flow meets it."""
        rows = {
            name: gates.Account(id="", book="", entry=0, settled=t.amounts, held=z)
            for name, t in self.drawn.items()
            for z in [self.rule.zero().amounts]
        }
        now = tuple(hold.after(rows[hold.flow]) for hold in self.kept)
        held = of_flow(now, flow) if self.holds else ()
        return gates.Gate(
            "", "", "dataset", "", "", self.rule, None, self.used, holds=held
        )

    def ask(self, flow: str | None, cost: Any) -> bool:
        """Reserve a step if it is admitted."""
        asked = self.rule.price(cost)
        if not self.gate(flow).admits(asked):
            return False
        self.post(flow, asked)
        self.open.append((flow, asked))
        assert self.rule.admits(self.used)
        return True

    def post(self, flow: str | None, amount: Any) -> None:
        """Charge an amount."""
        self.used = self.used + amount
        if flow in self.drawn:
            self.drawn[flow] = self.drawn[flow] + amount

    def end(self, place: int, share: int) -> None:
        """Settle an open charge at some quarters of it; four is in full."""
        flow, asked = self.open.pop(place % len(self.open))
        back = type(asked)(tuple(a * (4 - share) // 4 for a in asked.amounts))
        self.used = self.used - back
        if flow in self.drawn:
            self.drawn[flow] = self.drawn[flow] - back

    def play(self, draw: random.Random, steps: int) -> str | None:
        """Play a random history; return the kept flow that was refused, if one was."""
        for _ in range(steps):
            kind = draw.randrange(4)
            if kind == 0 and self.open:
                self.end(draw.randrange(99), draw.randrange(5))
            elif kind == 1:
                flow = draw.choice(sorted(self.left))
                fits = self.ask(flow, self.run)
                if not fits and self.left[flow] > 0:
                    return flow
                self.left[flow] -= fits
            else:
                self.ask(draw.choice([None, "ad hoc"]), draw.choice(self.others))
        return None


def world(name: str) -> tuple[Policy, Any, list[Any]]:
    """Return the policy of a world, its run and what others ask."""
    theorem, run, others = WORLDS[name]
    return kept_policy(theorem, run, keep=6), run, others


@pytest.mark.parametrize("name", WORLDS)
def test_no_history_of_others_refuses_a_kept_run(name: str) -> None:
    """Random histories; without the hold the same histories refuse one."""
    policy, run, others = world(name)
    broken = 0
    for seed in range(scaled(100, push=25)):
        held = History(policy, run, others)
        assert held.play(random.Random(seed), 40) is None, seed
        bare = History(policy, run, others, holds=False)
        broken += bare.play(random.Random(seed), 40) is not None
    assert broken > 0


@settings(max_examples=scaled(40, push=15))
@given(st.data())
def test_what_a_flow_overdraws_is_not_taken_from_another(data: st.DataObject) -> None:
    """A dear step of a kept flow goes beyond its hold, and leaves others theirs."""
    policy, run, others = world("renyi, three orders")
    history = History(policy, run, others)
    for _ in range(data.draw(st.integers(1, 12))):
        flow = data.draw(st.sampled_from([REPORT, "ad hoc", None]))
        history.ask(flow, data.draw(st.sampled_from([*others, run])))
    for _ in range(2):
        assert history.ask("monthly", run)


# On a ledger


POLICY = kept_policy()


@pytest.fixture
def ledger(tmp_path):
    """Return a ledger on a file."""
    return new_ledger(tmp_path)


def ask(ledger: Ledger, cost: str, flow: str | None, **fields: Any) -> str:
    """Reserve a step."""
    fields = {"policies": [POLICY], **fields}
    return granted(ledger, cost, flow=flow, **fields)


def test_others_get_the_rest_and_are_told_what_is_kept_and_for_whom(ledger) -> None:
    """Half of the budget is kept; a settled run frees nothing for others."""
    ask(ledger, "0.5", "ad hoc")
    with pytest.raises(BudgetRefused, match="3 runs of flow 'weekly-report'") as told:
        ask(ledger, "0.01", "ad hoc")
    assert "2 runs of flow 'monthly' (epsilon 0.2)" in str(told.value)
    assert told.value.details["left"]["epsilon"] == "0"
    assert "the rest is kept for others" in str(told.value)
    for _ in range(3):
        ledger.settle(ask(ledger, "0.1", REPORT))
    with pytest.raises(BudgetRefused):
        ask(ledger, "0.1", REPORT)
    (view,) = [v for v in accounts(ledger, "a") if v.kind == "dataset"]
    assert [(each.flow, each.runs_left) for each in view.kept] == [
        ("monthly", 2),
        (REPORT, 0),
    ]
    assert verify(ledger).bad == []


def test_a_voided_run_returns_to_its_hold_and_a_failed_one_does_not(ledger) -> None:
    """What nobody started is kept on; what may have drawn is a run that was used."""
    ask(ledger, "0.5", None)
    ledger.void(ask(ledger, "0.1", REPORT), reason="a test")
    ledger.settle(ask(ledger, "0.1", REPORT), outcome="failed")
    for _ in range(2):
        ask(ledger, "0.1", REPORT)
    with pytest.raises(BudgetRefused):
        ask(ledger, "0.1", REPORT)


def test_a_preflight_of_a_kept_flow_draws_from_the_hold(ledger) -> None:
    """And a preflight of others is refused what is kept."""
    ask(ledger, "0.4", None)
    run = whole(ledger, ["0.1"] * 3, policies=[POLICY], flow=REPORT)
    assert isinstance(ledger.reserve(run), Granted)
    with pytest.raises(BudgetRefused, match="2 runs of flow 'monthly'"):
        ledger.reserve(whole(ledger, ["0.1"] * 2, run="run/2", policies=[POLICY]))
    step = request(ledger, "0.1", policies=[POLICY], flow=REPORT, preflights=("run/1",))
    assert isinstance(ledger.reserve(step), Granted)


def test_a_change_that_keeps_too_much_says_how_many_runs_fit(ledger) -> None:
    """It is refused, and the term stays as it was; fewer are kept in place."""
    ask(ledger, "0.3", None)
    ledger.settle(ask(ledger, "0.1", REPORT))
    with pytest.raises(PolicyNotApplied, match="at most keep: 5 fits"):
        apply(ledger, kept_policy(keep=6))
    assert apply(ledger, kept_policy(keep=5)).action == "tighten"
    with pytest.raises(BudgetRefused, match="4 runs of flow 'weekly-report'"):
        ask(ledger, "0.01", None, policies=[kept_policy(keep=5)])
    apply(ledger, kept_policy(keep=1))
    ask(ledger, "0.4", None, policies=[kept_policy(keep=1)])
    assert verify(ledger).bad == []


def apply(ledger: Ledger, policy: Policy) -> Any:
    """Apply a policy to a term that was charged."""
    return office.apply_policy(ledger, policy, Wish(reason="a test"))


def test_verify_finds_a_grant_out_of_what_was_kept(
    ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ledger that forgot the hold granted it; `verify` tells."""
    monkeypatch.setattr(gates, "held_against", lambda _, asked: asked - asked)
    ask(ledger, "0.6", None)
    monkeypatch.undo()
    (finding,) = verify(ledger).bad
    assert "kept for the runs of a flow" in finding.problem
