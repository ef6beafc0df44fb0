"""Partitions have the budget to themselves, and windows of parts stay within it."""

from __future__ import annotations

import random
from collections import Counter
from datetime import date, datetime, timedelta
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dpflow import Gaussian, PureDP
from dpflow.accounting.rules.windows import most_in_window
from dpflow.exceptions import (
    BudgetExhausted,
    BudgetRefused,
    ConfigurationError,
    PolicyChanged,
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
from dpflow.rounding import number_from_text
from tests.accounting.oracle import MP, gaussian_delta, real
from tests.ledger.support import charged, granted, make_policy, request

pytestmark = pytest.mark.quick

BY_WEEK = {"unit": "user-week", "partition": "{by: week}"}
WEEKS = make_policy(**BY_WEEK)
CAPPED = make_policy(**BY_WEEK, lifetime="{epsilon: 2}")
DAYS = make_policy(unit="user-day", partition="{by: day}")
BY_HOUR = {"unit": "user-hour", "partition": "{by: hour}"}
HOURS = make_policy(**BY_HOUR, zone="Europe/Berlin")
REGIONS = make_policy(partition="{by: region}")


def charge(ledger: Ledger, policy: Policy, *weeks: str, cost: str = "0.5") -> str:
    """Reserve a step that touches some partitions, and settle it."""
    return charged(ledger, cost, policies=(policy,), partitions=weeks)


def spent(ledger: Ledger, kind: str = "partition") -> dict[str, Fraction]:
    """Return what is settled, by the name of the account."""
    return {
        view.name: number_from_text(view.spent["epsilon"])
        for view in accounts(ledger)
        if view.kind == kind
    }


@pytest.mark.parametrize(
    ("policy", "first", "second", "said"),
    [
        (DAYS, "2028-02-29", "2028-03-01", "Each day (UTC) has"),
        (HOURS, "2026-02-01T00", "2026-02-01T23", "Each hour (UTC) has"),
        (WEEKS, "2026-W05", "2026-W06", "Each week has"),
    ],
)
def test_each_part_has_the_budget_to_itself(ledger, policy, first, second, said):
    """A full one refuses its own steps only; the sentence says in which zone it is."""
    for part in (first, second):
        charge(ledger, policy, part, cost="1")
    assert set(spent(ledger).values()) == {Fraction(1)}
    with pytest.raises(BudgetExhausted, match=f"partition '{first}'"):
        charge(ledger, policy, first)
    assert said in policy.guarantee_sentence()


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


def test_flows_have_shares_and_odometers_in_each_partition(ledger):
    """A share is a share of a week's budget."""
    flows = "{report: {epsilon: 0.5, halt_at_epsilon: 2}}"
    policy = make_policy(**BY_WEEK, odometer="basic", flows=flows)
    here: dict[str, Any] = {"policies": (policy,), "flow": "report"}
    for week in ("2026-W01", "2026-W02"):
        ledger.settle(granted(ledger, "0.5", partitions=(week,), **here))
    with pytest.raises(BudgetExhausted, match=r"share of flow 'report' in partition"):
        granted(ledger, "0.5", partitions=("2026-W01",), **here)
    ids = {view.id for view in accounts(ledger)}
    assert "a#1/partition/2026-W01/flow/report" in ids
    assert "a#1/partition/2026-W02/odometer/report" in ids


# Further terms


@pytest.mark.parametrize("lifetime", [None, "2", "1.5", "100"])
def test_no_further_term_fits_after_parts_by_time(ledger, lifetime):
    """A person may be in all of them; no advice is given that would be refused, too."""
    before = CAPPED if lifetime else WEEKS
    charge(ledger, before, "2026-W05")
    fields = {"lifetime": f"{{epsilon: {lifetime}}}"} if lifetime else {}
    after = make_policy(budget="{epsilon: 0.25}", **BY_WEEK, **fields)
    wished = {"reason": "less", "new_term": True, "raise_lifetime": True}
    errors = (PolicyChanged, PolicyNotApplied)
    for wish in ({}, wished):
        with pytest.raises(errors, match="no further term fits") as caught:
            ledger.apply(after, **wish)
        for advice in ("lower the budget", "or open a new term", "Write `lifetime"):
            assert advice not in str(caught.value)


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


# ---- populations

PEOPLE = """
population: people
unit: customer
relation: add-or-remove
budget: {epsilon: 1}
filter: basic
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a folder with two datasets of one population."""
    result = tmp_path / "policies"
    result.mkdir()
    (result / "people.yaml").write_text(PEOPLE)
    for name in ("shop", "web"):
        text = PEOPLE.replace("population: people", f"dataset: {name}")
        (result / f"{name}.yaml").write_text(f"{text}population: people\n")
    return result


def step_on(folder: Path, *names: str) -> dict[str, Any]:
    """Return what a request on some datasets names."""
    policies = load_policies(folder)
    used = [policies[name] for name in names]
    return {"policies": used, "populations": policies.populations_of(used)}


@pytest.mark.parametrize(
    ("by", "unit", "population"),
    [("week", "customer-week", "0.6"), ("region", "customer", "0.3")],
)
def test_a_population_sees_a_person_in_every_week(ledger, folder, by, unit, population):
    """Two weeks of one person are a group of two; of two regions a person is in one."""
    shop = folder / "shop.yaml"
    text = shop.read_text().replace("unit: customer", f"unit: {unit}")
    shop.write_text(f"{text}partition: {{by: {by}}}\n")
    step = {**step_on(folder, "shop"), "partitions": ("2026-W05", "2026-W06")}
    charged(ledger, "0.3", **step)
    (view,) = [v for v in accounts(ledger) if v.dataset == "population/people"]
    assert view.spent["epsilon"] == population
    ledger.freeze("population/people", reason="wrong sigma")
    with pytest.raises(BudgetRefused, match="Population 'people' is frozen by"):
        granted(ledger, "0.1", **step)


def test_a_member_must_fit_its_population(folder):
    """Or the cap would protect somebody else."""
    shop = folder / "shop.yaml"
    text = shop.read_text()
    for old, new, message in (
        ("population: people", "population: persons", "no file of the population"),
        ("unit: customer", "unit: household", "the same unit and relation"),
        ("add-or-remove", "replace-one", "the same unit and relation"),
    ):
        shop.write_text(text.replace(old, new))
        with pytest.raises(PolicyError, match=message):
            load_policies(folder)


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
    """For a user in all weeks of any window, the exact delta is below the promise."""
    noise = Fraction(YEAR.to_pinned()["flows"]["report"]["noise"]["buyers"])
    cost = Gaussian(sensitivity=1, noise_multiplier=noise)
    for week in range(len(CALENDAR)):
        charge_weeks(ledger, week, policy=YEAR, cost=cost, flow="report")
    assert verify(ledger).fine
    gates = standing_gates(ledger, "a")
    parts = [gates[f"a#/partition/{week}"].used.amounts[0] for week in CALENDAR]
    unit = gates[f"a#/partition/{CALENDAR[0]}"].rule.price(cost).amounts[0]
    assert parts == [unit] * len(CALENDAR)
    assert [position_of(b) - position_of(a) for a, b in pairwise(CALENDAR)] == [1] * 156
    promised = real("1e-6")
    for first in range(len(CALENDAR) - 51):
        together = (parts[first + n] // unit for n in range(52))
        delta = gaussian_delta(MP.mpf(3), real(sum(together) / noise**2))
        assert promised * (1 - MP.mpf("1e-6")) < delta <= promised
    # A window of 53 weeks would lose more.
    assert gaussian_delta(MP.mpf(3), real(53 / noise**2)) > promised


@pytest.mark.promise("window-above")
def test_the_gate_is_that_of_every_window_that_shares_a_part(ledger):
    """Compared with all windows in turn, for steps with parts at random."""
    policy = by_week(3, budget="{epsilon: 12}")
    rng, used, refused = random.Random(1), Counter[int](), 0
    for _ in range(120):
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


def test_a_refusal_names_the_first_part_that_fits_again(ledger):
    """Late reports count in the windows of their own part."""
    for week in (0, 1, 2, 3, 5):
        charge_weeks(ledger, week)
    for week, again in ((5, 7), (3, None), (2, None), (4, None)):
        with pytest.raises(BudgetRefused) as caught:
            charge_weeks(ledger, week, cost="0.6")
        message = str(caught.value)
        assert f"2 parts around '{CALENDAR[week]}'" in message
        assert ("fits again for data from" in message) == (again is not None)
        assert again is None or f"data from {CALENDAR[again]}." in message
    # What needs more than the whole budget fits nowhere.
    with pytest.raises(BudgetRefused) as caught:
        charge_weeks(ledger, 20, cost="1.1")
    assert "again" not in str(caught.value)


def test_a_share_is_a_window_too_and_starts_again_in_a_new_term(ledger):
    """The windows of the dataset go on; only a budget that does not rise may follow."""
    first, more = (
        by_week(flows=f"{{report: {{epsilon: {share}}}}}") for share in ("0.5", "0.6")
    )
    charge_weeks(ledger, 0, policy=first, flow="report")
    with pytest.raises(BudgetRefused, match="share of flow"):
        charge_weeks(ledger, 1, policy=first, cost="0.1", flow="report")
    ledger.apply(more, reason="a larger share", new_term=True)
    with pytest.raises(BudgetRefused, match="basic filter of 2 parts"):
        charge_weeks(ledger, 1, policy=more, cost="0.6", flow="report")
    charge_weeks(ledger, 1, policy=more, flow="report")
    assert verify(ledger).fine
    for other in (
        by_week(3),
        by_week(budget="{epsilon: 2}"),
        by_week(lifetime="{epsilon: 9}"),
        by_week(relation="replace-one", partition="{by: week, replace: within}"),
        by_week(filter="zcdp", budget="{epsilon: 1, delta: 0.1}"),
        make_policy(**CUSTOMER_WEEKS),
    ):
        with pytest.raises(PolicyNotApplied, match="share the accounts of windows"):
            ledger.apply(other, reason="else", new_term=True)
    lower = by_week(budget="{epsilon: 0.5}")
    ledger.apply(lower, reason="less", new_term=True)
    with pytest.raises(BudgetRefused):
        charge_weeks(ledger, 2, policy=lower, cost="0.1")
    charge_weeks(ledger, 3, policy=lower)
    closed = ledger.apply(by_week(budget="{epsilon: 0.4}")).closed
    assert closed == tuple(f"a#/partition/{CALENDAR[n]}" for n in (0, 1, 3))
    assert verify(ledger).fine


def test_windows_neither_begin_nor_change_after_a_charge(ledger, monkeypatch):
    """Sums would lack what was charged, even where only the witness knows of it."""
    charge_weeks(ledger, 0, policy=make_policy("b", **CUSTOMER_WEEKS))
    ledger.apply(PAIRS)
    monkeypatch.setattr(ledger.watch, "forgotten", lambda *_: ["a#1"])
    for other in (by_week(dataset="b"), GAUSSIAN):
        with pytest.raises(PolicyNotApplied, match="share the accounts of windows"):
            ledger.apply(other, reason="r", new_term=True)


def test_an_overdraft_by_hand_closes_its_windows(ledger):
    """Prior spending counts in all windows of its parts, and is noted there."""
    charge_weeks(ledger, 1)
    cost, parts = PureDP(epsilon="0.6"), (CALENDAR[0],)
    spending = ledger.charge_prior(PAIRS, cost, reason="r", partitions=parts)
    posted = {each.account: each.overdrawn for each in spending}
    assert posted == {"a#1": False, f"a#/partition/{CALENDAR[0]}": True}
    for week in (0, 1):
        with pytest.raises(BudgetRefused):
            charge_weeks(ledger, week, cost="0.1")
    charge_weeks(ledger, 2, cost="0.5")
    assert verify(ledger).fine


def test_a_refusal_names_no_part_that_is_overdrawn(ledger):
    """A part stays so although a void makes room in its windows again."""
    held = granted(ledger, policies=(PAIRS,), partitions=CALENDAR[1:2], cost="1")
    over, parts = PureDP(epsilon="0.1"), (CALENDAR[2],)
    ledger.charge_prior(PAIRS, over, reason="r", partitions=parts)
    ledger.void(held, reason="it did not start")
    charge_weeks(ledger, 0)
    with pytest.raises(BudgetRefused, match=f"again for data from {CALENDAR[3]}"):
        charge_weeks(ledger, 1, cost="0.9")


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


def test_runs_of_a_window_are_counted_until_the_first_refusal(ledger):
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
        charge_weeks(ledger, week, policy=YEAR, cost=fits, flow="report")
    gates = standing_gates(ledger, "a")
    assert (runs(fits, accounts=gates), runs(less, accounts=gates)) == (None, 0)
    (outlook,) = outlooks(ledger, "a")
    assert outlook.remaining(52) == "steps fit permanently"
