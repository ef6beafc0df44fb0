"""A threshold that was solved when an account was opened is never raised later."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import pytest

from dpflow import EarlyStopping, Gaussian, PureDP
from dpflow.accounting import FILTERS, Filter, make_filter
from dpflow.accounting.curves import conversions
from dpflow.accounting.rules import gdp, residue, residue_charge
from dpflow.accounting.rules.basic import BasicFilter
from dpflow.accounting.rules.rule import ThresholdFilter, list_thresholds
from dpflow.accounting.rules.zcdp import ZcdpFilter
from dpflow.exceptions import BudgetRefused
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.decisions import gates, pinned_rules, suggestions
from dpflow.ledger.decisions.gates import gates_text
from dpflow.ledger.decisions.pinned_rules import rule_of
from dpflow.ledger.ledger import Ledger
from tests.ledger.support import granted, ledger_on, make_policy, request

STEP = Gaussian(sensitivity=1, sigma=1)


@pytest.fixture(autouse=True)
def _nothing_solved() -> Iterator[None]:
    """Let each test solve its rules and numbers itself."""
    remembered = (gates._solve_price, suggestions.fitting_factor, rule_of)
    for cache in (residue_charge.residue_charge, *remembered):
        cache.cache_clear()
    yield
    rule_of.cache_clear()


def solve_times(monkeypatch: pytest.MonkeyPatch, factor: Fraction) -> None:
    """Let the solver of the Gaussian budget find `factor` times as much."""

    def other(epsilon: Fraction, delta: Fraction) -> Fraction:
        return conversions.gdp_budget(epsilon, delta) * factor

    for solved_by in (gdp, residue):
        monkeypatch.setattr(solved_by, "gdp_budget", other)
    rule_of.cache_clear()


def rule_to_text(rule: Filter) -> str:
    """Write a rule as a term pins it."""
    pinned = {"filter": rule.parameters(), "odometer": None, "flows": {}}
    return str(gates_text(pinned)["dataset"]["rule"])


def gdp_rule() -> Filter:
    """Make the filter anew, by whatever solver there is."""
    return make_filter("gdp", epsilon=5, delta="1e-6")


@pytest.mark.parametrize(
    ("factor", "kept"), [("2", "1"), ("1", "1"), ("0.5", "0.5"), ("1.000001", "1")]
)
def test_the_lower_of_two_solutions_counts(monkeypatch, factor, kept):
    """A solver that finds more changes nothing; one that finds less is believed."""
    rule = gdp_rule()
    assert isinstance(rule, ThresholdFilter)
    text = rule_to_text(rule)
    solve_times(monkeypatch, Fraction(factor))
    made = rule_of(text)
    assert isinstance(made, ThresholdFilter)
    assert made == rule
    assert made.thresholds[0] == int(Fraction(kept) * rule.thresholds[0])


def test_members_keep_their_thresholds_too(monkeypatch):
    """The union of several filters is pinned filter by filter."""
    rule = make_filter("auto", epsilon=5, delta="1e-6")
    pinned, text = list_thresholds(rule), rule_to_text(rule)
    solve_times(monkeypatch, Fraction(9))
    larger = make_filter("auto", epsilon=5, delta="1e-6")
    assert list_thresholds(larger) != pinned == list_thresholds(rule_of(text))


OPTIONS: dict[str, dict[str, Any]] = {
    "sequence": {"steps": [Gaussian(sensitivity=1, sigma=9)]}
}


@pytest.mark.parametrize("theorem", FILTERS)
def test_the_text_of_every_filter_is_stable(theorem):
    """Made from its text, a filter decides as before and writes the same text."""
    rule = make_filter(theorem, epsilon=5, delta="1e-6", **OPTIONS.get(theorem, {}))
    made = rule_of(rule_to_text(rule))
    assert made == rule
    assert list_thresholds(made) == list_thresholds(rule)
    assert rule_to_text(made) == rule_to_text(rule)


def test_thresholds_of_another_rule_are_refused():
    """A text that was edited makes no rule, rather than one with fewer thresholds."""
    pinned = json.loads(rule_to_text(gdp_rule()))
    pinned["thresholds"].append(7)
    with pytest.raises(ValueError, match="longer"):
        rule_of(json.dumps(pinned))


@pytest.mark.parametrize("factor", ["9", "0.5"])
def test_a_ledger_admits_no_more_after_an_upgrade(ledger, monkeypatch, factor):
    """One Gaussian fits, and no second one, whatever room the new solver finds."""
    policy = make_policy(budget="{epsilon: 5, delta: 1e-6}", filter="gdp")
    granted(ledger, STEP, policies=[policy])
    solve_times(monkeypatch, Fraction(factor))
    anew = gdp_rule()
    assert anew.admits(anew.price(STEP) + anew.price(STEP)) == (factor == "9")
    assert verify(ledger).bad == []
    with pytest.raises(BudgetRefused):
        ledger_on(ledger.database).reserve(request(ledger, STEP, policies=[policy]))


SMALL = PureDP(epsilon="0.01")
#: What solves a number, by filter.
SOLVERS: dict[str, list[tuple[Any, str]]] = {
    "basic": [(BasicFilter, "step_price")],
    "zcdp": [(ZcdpFilter, "step_price")],
    "residue": [(residue_charge, "pure_mu_squared")],
    "auto": [
        (residue_charge, "pure_mu_squared"),
        (BasicFilter, "step_price"),
        (ZcdpFilter, "step_price"),
    ],
}


def solved(ledger: Ledger, theorem: str, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that says of each solved number whether a transaction was open."""
    flags: list[bool] = []
    inside = [False]

    def watched(open_one: Any) -> Any:
        @contextmanager
        def opened() -> Iterator[Any]:
            with open_one() as transaction:
                inside[0] = True
                try:
                    yield transaction
                finally:
                    inside[0] = False

        return opened

    def recording(solver: Any) -> Any:
        def recorded(*arguments: Any, **options: Any) -> Any:
            flags.append(inside[0])
            return solver(*arguments, **options)

        return recorded

    for name in ("snapshot", "transaction"):
        monkeypatch.setattr(
            ledger.database, name, watched(getattr(ledger.database, name))
        )
    for owner, name in [*SOLVERS[theorem], (pinned_rules, "make_filter")]:
        monkeypatch.setattr(owner, name, recording(getattr(owner, name)))
    return flags


def use(ledger: Ledger, theorem: str) -> None:
    """Open a term, run steps, settle one for less, have one refused."""
    policy = make_policy(
        budget="{epsilon: 1, delta: 1e-6}", filter=theorem, flows="{f: {}}"
    )
    given = {"policies": (policy,), "flow": "f"}
    ledger.settle(granted(ledger, SMALL, **given))
    stopping = EarlyStopping(SMALL, stops=(5, 20))
    ledger.settle(granted(ledger, stopping, **given), reported=5)
    with pytest.raises(BudgetRefused, match="times its noise"):
        granted(ledger, PureDP(epsilon="1.5"), **given)


@pytest.mark.promise("slow-price")
@pytest.mark.parametrize("theorem", SOLVERS)
def test_nothing_is_solved_inside_a_transaction(ledger, monkeypatch, theorem):
    """Thresholds, prices of steady and unsteady rules, outcomes and suggestions."""
    flags = solved(ledger, theorem, monkeypatch)
    use(ledger, theorem)
    assert len(flags) > len(SOLVERS[theorem])
    assert not any(flags)


@pytest.mark.promise("slow-price")
def test_what_changes_all_the_time_is_solved_inside_at_last(ledger, monkeypatch):
    """Three transactions end for a number; the fourth solves it (negative control)."""
    policy = make_policy(budget="{epsilon: 1, delta: 1e-6}", filter="residue")
    granted(ledger, SMALL, policies=(policy,))
    begun: list[None] = []
    load = ledger.database.transaction

    def forgetting() -> Any:
        begun.append(None)
        residue_charge.residue_charge.cache_clear()
        return load()

    monkeypatch.setattr(ledger.database, "transaction", forgetting)
    flags = solved(ledger, "residue", monkeypatch)
    granted(ledger, SMALL, policies=(policy,))
    assert len(begun) == 4
    assert flags.count(True) == 1
