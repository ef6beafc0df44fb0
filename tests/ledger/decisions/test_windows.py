"""Windows: any few consecutive parts together stay within the budget."""

from __future__ import annotations

import random
from collections import Counter
from datetime import date, timedelta
from fractions import Fraction
from itertools import pairwise

import pytest

from dpflow import ApproxDP, Gaussian, PureDP
from dpflow.accounting.rules.windows import most_in_window
from dpflow.exceptions import (
    BudgetRefused,
    PolicyNotApplied,
    UnsupportedCost,
)
from dpflow.forecast.counting import WorkloadStep, loads_of, runs_left
from dpflow.forecast.outlook import outlooks
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.views.accounts import accounts, standing_gates
from dpflow.periods import name_at, position_of
from dpflow.policy import Policy
from tests.accounting.oracle import MP, gaussian_delta, real
from tests.ledger.support import granted, make_policy

WEEKS = [
    "{}-W{:02}".format(*(date(2026, 1, 1) + timedelta(weeks=n)).isocalendar()[:2])
    for n in range(3 * 52 + 1)
]
BY_WEEK = {"unit": "customer-week", "partition": "{by: week}"}
GDP = {"budget": "{epsilon: 3, delta: 1e-6}", "filter": "gdp"}


def by_week(length: int = 2, **fields: str) -> Policy:
    """Make a policy with windows of some weeks, by default two."""
    return make_policy(**{**BY_WEEK, "window": f"{{length: {length}}}", **fields})


PAIRS, GAUSSIAN = by_week(), by_week(**GDP)
PLAN = "{report: {plan: {runs: 52, steps: {buyers: 1}}}}"
YEAR = by_week(52, **GDP, flows=PLAN)


def charge(ledger: Ledger, *weeks: int, policy=PAIRS, cost="0.5", **more) -> str:
    """Reserve a step that reads some weeks, counted from 0, and settle it."""
    parts = tuple(WEEKS[week] for week in weeks)
    reservation = granted(ledger, cost, policies=(policy,), partitions=parts, **more)
    ledger.settle(reservation)
    return reservation


def test_a_weekly_report_of_three_years_is_never_refused(ledger: Ledger) -> None:
    """For a user in all weeks of any window, the exact delta is below the promise."""
    noise = Fraction(YEAR.to_pinned()["flows"]["report"]["noise"]["buyers"])
    cost = Gaussian(sensitivity=1, noise_multiplier=noise)
    for week in range(len(WEEKS)):
        charge(ledger, week, policy=YEAR, cost=cost, flow="report")
    assert verify(ledger).fine
    gates = standing_gates(ledger, "a")
    parts = [gates[f"a#/partition/{week}"].used.amounts[0] for week in WEEKS]
    unit = gates[f"a#/partition/{WEEKS[0]}"].rule.price(cost).amounts[0]
    assert parts == [unit] * len(WEEKS)
    assert [position_of(b) - position_of(a) for a, b in pairwise(WEEKS)] == [1] * 156
    promised = real("1e-6")
    for first in range(len(WEEKS) - 51):
        together = (parts[first + n] // unit for n in range(52))
        delta = gaussian_delta(MP.mpf(3), real(sum(together) / noise**2))
        assert promised * (1 - MP.mpf("1e-6")) < delta <= promised
    # A window of 53 weeks would lose more.
    assert gaussian_delta(MP.mpf(3), real(53 / noise**2)) > promised


def test_the_gate_is_that_of_every_window_that_shares_a_part(ledger: Ledger) -> None:
    """Compared with all windows in turn, for steps with parts at random."""
    policy = by_week(3, budget="{epsilon: 12}")
    rng, used, refused = random.Random(1), Counter[int](), 0
    for _ in range(120):
        weeks = sorted(rng.sample(range(12), rng.choice([1, 1, 2, 3, 5])))
        after = used + Counter(dict.fromkeys(weeks, 1))
        windows = [range(w + s, w + s + 3) for w in weeks for s in (-2, -1, 0)]
        fits = all(sum(after[w] for w in window) <= 12 for window in windows)
        try:
            charge(ledger, *weeks, policy=policy, cost="1")
        except BudgetRefused:
            refused += 1
            assert not fits
        else:
            assert fits
            used = after
    assert refused > 20
    assert verify(ledger).fine


def test_a_part_is_charged_for_the_most_parts_that_a_window_shares(ledger: Ledger):
    """Two neighbours cost each part two squares; parts far apart cost one each."""
    cost = Gaussian(sensitivity=1, noise_multiplier=10)
    charge(ledger, 0, 1, 9, policy=GAUSSIAN, cost=cost)
    gates = standing_gates(ledger, "a")
    mus = [gates[f"a#/partition/{WEEKS[n]}"].used for n in (0, 1, 9)]
    one = gates[f"a#/partition/{WEEKS[0]}"].rule.price(cost)
    assert mus == [one.times(2), one.times(2), one]
    assert most_in_window([0, 1, 9], 1, 2) == 2


def test_a_refusal_names_the_first_part_that_fits_again(ledger: Ledger) -> None:
    """Late reports count in the windows of their own part."""
    for week in (0, 1, 2, 3, 5):
        charge(ledger, week)
    for week, again in ((5, 7), (3, None), (2, None), (4, None)):
        with pytest.raises(BudgetRefused) as caught:
            charge(ledger, week, cost="0.6")
        message = str(caught.value)
        assert f"2 parts around '{WEEKS[week]}'" in message
        assert ("fits again for data from" in message) == (again is not None)
        assert again is None or f"data from {WEEKS[again]}." in message
    # What needs more than the whole budget fits nowhere.
    with pytest.raises(BudgetRefused) as caught:
        charge(ledger, 20, cost="1.1")
    assert "again" not in str(caught.value)


def test_a_share_is_a_window_too_and_starts_again_in_a_new_term(ledger: Ledger):
    """The windows of the dataset go on; only a budget that does not rise may follow."""
    first, more = (
        by_week(flows=f"{{report: {{epsilon: {share}}}}}") for share in ("0.5", "0.6")
    )
    charge(ledger, 0, policy=first, flow="report")
    with pytest.raises(BudgetRefused, match="share of flow"):
        charge(ledger, 1, policy=first, cost="0.1", flow="report")
    ledger.apply(more, reason="a larger share", new_term=True)
    with pytest.raises(BudgetRefused, match="basic filter of 2 parts"):
        charge(ledger, 1, policy=more, cost="0.6", flow="report")
    charge(ledger, 1, policy=more, flow="report")
    assert verify(ledger).fine
    for other in (
        by_week(3),
        by_week(budget="{epsilon: 2}"),
        by_week(lifetime="{epsilon: 9}"),
        by_week(relation="replace-one", partition="{by: week, replace: within}"),
        by_week(filter="zcdp", budget="{epsilon: 1, delta: 0.1}"),
        make_policy(**BY_WEEK),
    ):
        with pytest.raises(PolicyNotApplied, match="share the accounts of windows"):
            ledger.apply(other, reason="else", new_term=True)
    lower = by_week(budget="{epsilon: 0.5}")
    ledger.apply(lower, reason="less", new_term=True)
    with pytest.raises(BudgetRefused):
        charge(ledger, 2, policy=lower, cost="0.1")
    charge(ledger, 3, policy=lower)
    closed = ledger.apply(by_week(budget="{epsilon: 0.4}")).closed
    assert closed == tuple(f"a#/partition/{WEEKS[n]}" for n in (0, 1, 3))
    assert verify(ledger).fine


def test_windows_neither_begin_nor_change_after_a_charge(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums would lack what was charged, even where only the witness knows of it."""
    charge(ledger, 0, policy=make_policy("b", **BY_WEEK))
    ledger.apply(PAIRS)
    monkeypatch.setattr(ledger.watch, "forgotten", lambda *_: ["a#1"])
    for other in (by_week(dataset="b"), GAUSSIAN):
        with pytest.raises(PolicyNotApplied, match="share the accounts of windows"):
            ledger.apply(other, reason="r", new_term=True)


def test_an_overdraft_by_hand_closes_its_windows(ledger: Ledger) -> None:
    """Prior spending counts in all windows of its parts, and is noted there."""
    charge(ledger, 1)
    cost, parts = PureDP(epsilon="0.6"), (WEEKS[0],)
    spending = ledger.charge_prior(PAIRS, cost, reason="r", partitions=parts)
    posted = {each.account: each.overdrawn for each in spending}
    assert posted == {"a#1": False, f"a#/partition/{WEEKS[0]}": True}
    for week in (0, 1):
        with pytest.raises(BudgetRefused):
            charge(ledger, week, cost="0.1")
    charge(ledger, 2, cost="0.5")
    assert verify(ledger).fine


def test_a_refusal_names_no_part_that_is_overdrawn(ledger: Ledger) -> None:
    """A part stays so although a void makes room in its windows again."""
    held = granted(ledger, policies=(PAIRS,), partitions=WEEKS[1:2], cost="1")
    over, parts = PureDP(epsilon="0.1"), (WEEKS[2],)
    ledger.charge_prior(PAIRS, over, reason="r", partitions=parts)
    ledger.void(held, reason="it did not start")
    charge(ledger, 0)
    with pytest.raises(BudgetRefused, match=f"again for data from {WEEKS[3]}"):
        charge(ledger, 1, cost="0.9")


def test_a_grant_above_a_window_is_detected(ledger: Ledger, monkeypatch) -> None:
    """A process that compares only the part's own account is found by `verify`."""
    charge(ledger, 0)
    charge(ledger, 1)
    with monkeypatch.context() as patch:
        alone = lambda pairs, **_: list(pairs)
        patch.setattr("dpflow.ledger.decisions.reserve.in_windows", alone)
        charge(ledger, 2, cost="0.6")
    found = f"account 'a#/partition/{WEEKS[2]}' is above its gate"
    assert found in [finding.problem for finding in verify(ledger).bad]


def test_costs_that_windows_cannot_price_are_refused(ledger: Ledger) -> None:
    """Before anything is charged: a delta over several parts needs `basic`."""
    policy = by_week(budget="{epsilon: 9, delta: 0.1}", filter="zcdp")
    loss = ApproxDP(epsilon="0.1", delta="1e-6")
    with pytest.raises(UnsupportedCost):
        charge(ledger, 0, policy=policy, cost=loss)
    assert not accounts(ledger)


def test_parts_are_consecutive_in_the_calendar() -> None:
    """Week 53, leap days and midnights count like all others."""
    for part, later in (
        ("2026-W53", "2027-W01"),
        ("2026-12", "2027-01"),
        ("2028-02-29", "2028-03-01"),
        ("2026-12-31T23", "2027-01-01T00"),
    ):
        assert name_at(part, position_of(part) + 1) == later
        assert name_at(later, position_of(later)) == later
        assert name_at(part, -10) is name_at(part, 10**9) is None


def test_runs_of_a_window_are_counted_until_the_first_refusal(ledger: Ledger):
    """A steady report fits permanently; a dearer one until its window is full."""
    pinned = YEAR.to_pinned()
    noise = pinned["flows"]["report"]["noise"]["buyers"]
    fits, less = (
        Gaussian(sensitivity=1, noise_multiplier=each) for each in (noise, "11")
    )
    runs = lambda cost, **accounts: runs_left(
        loads_of(pinned, "report", (WorkloadStep(cost),), **accounts)
    )[0]
    assert (runs(fits), runs(less)) == (None, 50)
    for week in range(60):
        charge(ledger, week, policy=YEAR, cost=fits, flow="report")
    gates = standing_gates(ledger, "a")
    assert (runs(fits, accounts=gates), runs(less, accounts=gates)) == (None, 0)
    (outlook,) = outlooks(ledger, "a")
    assert outlook.remaining(52) == "steps fit permanently"
