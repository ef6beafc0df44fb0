"""Partitions have the budget to themselves; a person in many pays for the whole."""

from __future__ import annotations

from datetime import datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dpflow.exceptions import (
    BudgetExhausted,
    BudgetRefused,
    ConfigurationError,
    PolicyChanged,
    PolicyError,
    PolicyNotApplied,
)
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.tables.loading import find_scope, load_rows
from dpflow.ledger.views import accounts
from dpflow.periods import period_of, position_of
from dpflow.policy import Policy, load_policies
from dpflow.rounding import number_from_text
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
