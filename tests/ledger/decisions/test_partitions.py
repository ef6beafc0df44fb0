"""Partitions have the budget to themselves, and windows of parts stay within it."""

from __future__ import annotations

import random
from collections import Counter
from datetime import date, datetime, timedelta
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest

from dpflow import Gaussian
from dpflow.accounting.costs.base import Cost
from dpflow.accounting.rules.windows import most_in_window
from dpflow.exceptions import (
    BudgetRefused,
    ConfigurationError,
    PolicyError,
    PolicyNotApplied,
)
from dpflow.forecast.counting import WorkloadStep, loads_of, runs_left
from dpflow.forecast.outlook import outlooks
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.tables.loading import find_scope, load_rows
from dpflow.ledger.views import accounts
from dpflow.ledger.views.accounts import standing_gates
from dpflow.periods import name_at, period_of, position_of
from dpflow.policy import Policy, load_policies
from tests.accounting.oracle import MP, gaussian_delta, real
from tests.ledger.support import charged, make_policy, policy_text, request
from tests.sizes import scaled

pytestmark = pytest.mark.quick

BY_HOUR = {"unit": "user-hour", "partition": "{by: hour}"}
HOURS = make_policy(**BY_HOUR, zone="Europe/Berlin")
REGIONS = make_policy(partition="{by: region}")


def charge(ledger: Ledger, policy: Policy, *weeks: str, cost: str = "0.5") -> str:
    """Reserve a step that touches some partitions, and settle it."""
    return charged(ledger, cost, policies=(policy,), partitions=weeks)


def test_a_parser_that_reads_more_names_opens_no_second_budget(ledger, monkeypatch):
    """Python 3.14 reads hour 24 as the next day's hour 0, and 3.11 refuses it."""

    class Lenient(datetime):
        @classmethod
        def fromisoformat(cls, text: str) -> Lenient:
            day, _, hour = text.partition("T24")
            later = timedelta(days=not hour and day != text)
            return super().fromisoformat(day) + later

    monkeypatch.setattr("dpflow.periods.datetime", Lenient)
    period_of.cache_clear()
    window = {"window": "{length: 2}", "budget": "{epsilon: 1, delta: 1e-6}"}
    windows = make_policy("w", **BY_HOUR, **window)
    for policy in (HOURS, windows):
        with pytest.raises(ConfigurationError, match=r"as in 2026-01-31T09\."):
            charge(ledger, policy, "2026-02-01T24")
    with pytest.raises(ValueError, match="2026-02-01T24"):
        position_of("2026-02-01T24")
    assert accounts(ledger) == []
    charge(ledger, HOURS, "2026-02-02T00")


def test_a_step_reads_its_own_parts_only(ledger):
    """However many others the dataset has."""
    for number in range(20):
        charge(ledger, REGIONS, f"r{number}", cost="0.1")
    step = request(ledger, "0.1", policies=(REGIONS,), partitions=("r1", "r2"))
    with ledger.reading() as transaction:
        rows = load_rows(transaction, find_scope(step), ledger.terms, lock=False)
    parts = {f"a#1/partition/{name}" for name in ("r1", "r2")}
    assert rows.account_rows.keys() == {"a#1", *parts}


def test_a_step_of_too_many_parts_is_refused_before_it_is_charged(ledger, monkeypatch):
    """An entry has its room; the error says how many parts fit."""
    monkeypatch.setattr("dpflow.ledger.decisions.reserve.MOST_TEXT", 2000)
    monkeypatch.setattr("dpflow.ledger.decisions.reserve._MANY", 10)
    with pytest.raises(ConfigurationError, match=r"Read at most 18 parts"):
        charge(ledger, REGIONS, *(f"r{number}" for number in range(40)), cost="0.1")
    assert accounts(ledger) == []
    charge(ledger, REGIONS, "r1", cost="0.1")


def test_a_member_must_fit_its_population(tmp_path):
    """Or the cap would protect somebody else."""
    text = policy_text("shop", population="people")
    people = policy_text().replace("dataset: a", "population: people")
    (tmp_path / "people.yaml").write_text(people)
    for old, new, message in (
        ("population: people", "population: persons", "no file of the population"),
        ("unit: customer", "unit: household", "the same unit and relation"),
        ("add-or-remove", "replace-one", "the same unit and relation"),
    ):
        (tmp_path / "shop.yaml").write_text(text.replace(old, new))
        with pytest.raises(PolicyError, match=message):
            load_policies(tmp_path)
    (tmp_path / "shop.yaml").write_text(text)
    policies = load_policies(tmp_path)
    (population,) = policies.populations_of([policies["shop"]])
    assert population.dataset == "population/people"


CALENDAR = [
    "{}-W{:02}".format(*(date(2026, 1, 1) + timedelta(weeks=n)).isocalendar()[:2])
    for n in range(3 * 52 + 1)
]
CUSTOMER_WEEKS = {"unit": "customer-week", "partition": "{by: week}"}
GDP = {"budget": "{epsilon: 3, delta: 1e-6}", "filter": "gdp"}


def by_week(length: int = 2, **fields: str) -> Policy:
    """Make a policy with windows of some weeks, by default two."""
    return make_policy(
        **{**CUSTOMER_WEEKS, "window": f"{{length: {length}}}", **fields}
    )


PAIRS, GAUSSIAN = by_week(), by_week(**GDP)
PLAN = "{report: {plan: {runs: 52, steps: {buyers: 1}}}}"
YEAR = by_week(52, **GDP, flows=PLAN)


def charge_weeks(ledger: Ledger, *weeks: int, policy=PAIRS, cost="0.5", **more) -> str:
    """Reserve a step that reads some weeks, counted from 0, and settle it."""
    parts = tuple(CALENDAR[week] for week in weeks)
    return charged(ledger, cost, policies=(policy,), partitions=parts, **more)


def test_a_weekly_report_of_three_years_is_never_refused(ledger):
    """For a user in all weeks of any window, the exact delta is below the promise.

    Its runs fit permanently, as counted before and after; those of a dearer report fit
    until its window is full.
    """
    pinned = YEAR.to_pinned()
    noise = Fraction(pinned["flows"]["report"]["noise"]["buyers"])
    cost, dearer = (
        Gaussian(sensitivity=1, noise_multiplier=multiplier)
        for multiplier in (noise, "11")
    )

    def count_runs(cost: Cost, **accounts: Any) -> int | None:
        loads = loads_of(pinned, "report", (WorkloadStep(cost),), **accounts)
        return runs_left(loads)[0]

    assert (count_runs(cost), count_runs(dearer)) == (None, 50)
    for week in range(len(CALENDAR)):
        charge_weeks(ledger, week, policy=YEAR, cost=cost, flow="report")
    assert verify(ledger).fine
    gates = standing_gates(ledger, "a")
    assert count_runs(cost, accounts=gates) is None
    assert count_runs(dearer, accounts=gates) == 0
    (outlook,) = outlooks(ledger, "a")
    assert outlook.remaining(52) == "steps fit permanently"
    parts = [gates[f"a#/partition/{week}"].used.amounts[0] for week in CALENDAR]
    unit = gates[f"a#/partition/{CALENDAR[0]}"].rule.price(cost).amounts[0]
    assert parts == [unit] * len(CALENDAR)
    assert [position_of(b) - position_of(a) for a, b in pairwise(CALENDAR)] == [1] * 156
    promised = real("1e-6")
    for together in {sum(parts[n : n + 52]) // unit for n in range(len(parts) - 51)}:
        delta = gaussian_delta(MP.mpf(3), real(together / noise**2))
        assert promised * (1 - MP.mpf("1e-6")) < delta <= promised
    # A window of 53 weeks would lose more.
    assert gaussian_delta(MP.mpf(3), real(53 / noise**2)) > promised


@pytest.mark.promise("window-above")
def test_the_gate_is_that_of_every_window_that_shares_a_part(ledger):
    """Compared with all windows in turn, for steps with parts at random."""
    policy = by_week(3, budget="{epsilon: 12}")
    rng, used, refused = random.Random(1), Counter[int](), 0
    for _ in range(scaled(120, push=60)):
        weeks = sorted(rng.sample(range(12), rng.choice([1, 1, 2, 3, 5])))
        after = used + Counter(dict.fromkeys(weeks, 1))
        windows = [range(w + s, w + s + 3) for w in weeks for s in (-2, -1, 0)]
        fits = all(sum(after[w] for w in window) <= 12 for window in windows)
        try:
            charge_weeks(ledger, *weeks, policy=policy, cost="1")
        except BudgetRefused:
            refused += 1
            assert not fits
        else:
            assert fits
            used = after
    assert refused > 20
    assert verify(ledger).fine


def test_a_part_is_charged_for_the_most_parts_that_a_window_shares(ledger):
    """Two neighbours cost each part two squares; parts far apart cost one each."""
    cost = Gaussian(sensitivity=1, noise_multiplier=10)
    charge_weeks(ledger, 0, 1, 9, policy=GAUSSIAN, cost=cost)
    gates = standing_gates(ledger, "a")
    mus = [gates[f"a#/partition/{CALENDAR[n]}"].used for n in (0, 1, 9)]
    one = gates[f"a#/partition/{CALENDAR[0]}"].rule.price(cost)
    assert mus == [one.times(2), one.times(2), one]
    assert most_in_window([0, 1, 9], 1, 2) == 2


def test_windows_neither_begin_nor_change_after_a_charge(ledger, monkeypatch):
    """Sums would lack what was charged, even where only the witness knows of it."""
    charge_weeks(ledger, 0, policy=make_policy("b", **CUSTOMER_WEEKS))
    ledger.apply(PAIRS)
    monkeypatch.setattr(ledger.watch, "forgotten", lambda *_: ["a#1"])
    for other in (by_week(dataset="b"), GAUSSIAN):
        with pytest.raises(PolicyNotApplied, match="share the accounts of windows"):
            ledger.apply(other, reason="r", new_term=True)


@pytest.mark.promise("window-above")
def test_a_grant_above_a_window_is_detected(ledger, monkeypatch):
    """A process that compares only the part's own account is found by `verify`."""
    charge_weeks(ledger, 0)
    charge_weeks(ledger, 1)
    with monkeypatch.context() as patch:
        alone = lambda pairs, **_: list(pairs)
        patch.setattr("dpflow.ledger.decisions.reserve.in_windows", alone)
        charge_weeks(ledger, 2, cost="0.6")
    found = f"account 'a#/partition/{CALENDAR[2]}' is above its gate"
    assert found in [finding.problem for finding in verify(ledger).bad]


def test_parts_are_consecutive_in_the_calendar():
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
