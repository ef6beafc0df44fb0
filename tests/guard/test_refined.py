"""Asking for an error: coarse noise first, and no finer noise than the target needs."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from dpflow import Estimate, Gaussian, Laplace, Refined, guarded, release
from dpflow.accounting import make_filter
from dpflow.accounting.costs.base import Cost
from dpflow.noise import draws
from tests.projects import POLICY, account, caught, journal, make_project

COST = Refined(Gaussian(sensitivity=1, noise_multiplier=12), coarsest=40)
PURE = Refined(Laplace(sensitivity=1, epsilon="0.1"), coarsest=40)
BUDGET = "budget: {epsilon: 1, delta: 1e-6}"
CURVES = POLICY.replace("budget: {epsilon: 1}", BUDGET)


def project(folder: Path, monkeypatch: pytest.MonkeyPatch, theorem: str) -> None:
    """Make a project under a theorem."""
    text = POLICY if theorem == "output-dp" else CURVES
    make_project(folder, monkeypatch, text.replace("basic", theorem))


def customers(cost: Cost, number: Any, **options: Any) -> Any:
    """Run a step that releases a number, kept under its key."""
    words = {"release_key": "customers", "ignore": ("options", "number"), "name": "n"}
    length = len(number) if isinstance(number, list) else None
    step = guarded(dataset="shop", cost=cost, length=length, **words)
    return step(lambda: release(number, **options))()


@pytest.mark.parametrize("theorem", ["gdp", "zcdp", "rdp", "auto", "output-dp"])
def test_the_charge_is_that_of_the_last_precision(theorem, tmp_path, monkeypatch):
    """Exactly, and less than what was reserved; of Laplace noise it is a cell."""
    project(tmp_path, monkeypatch, theorem)
    pure = theorem == "output-dp"
    cost = PURE if pure else COST
    estimate = customers(cost, 528, within="10%")
    draw = int(journal()[-1].body["reported"])
    assert 1 < draw < len(cost.spreads)
    rule = make_filter(theorem, epsilon=1, delta=0 if pure else "1e-6")
    spread = cost.spreads[draw - 1]
    last = Gaussian(sensitivity=1, sigma=spread)
    if pure:
        last = Laplace(sensitivity=1, scale=spread)
    assert account().spent == rule.label(rule.price(last))
    assert set(account().reserved.values()) == {"0"}
    low, high = estimate.interval
    assert low <= estimate <= high <= 1.3 * estimate


CHOSEN = {
    "output-dp": Refined(Laplace(sensitivity=2, epsilon="0.4"), spreads=[20, 10]),
    "gdp": Refined(Gaussian(sensitivity=2, sigma=20), spreads=[80, 40]),
}


@pytest.mark.parametrize("theorem", CHOSEN)
@pytest.mark.parametrize("enough", [1, 2, 4])
def test_whole_numbers_are_refined_until_an_answer_will_do(
    theorem: str, enough: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All answers come back, no finer one is shown, and the last one is paid."""
    project(tmp_path, monkeypatch, theorem)
    cost, seen = CHOSEN[theorem], []

    def until(answers: tuple[tuple[int, ...], ...]) -> bool:
        # The cost pays for this one draw alone.
        assert "twice" in str(caught(lambda: release([1], until=len)))
        seen.append(answers)
        return len(answers) == enough

    taken = customers(cost, [2970, 528], until=until)
    draws = min(enough, 3)
    assert seen == [taken[: n + 1] for n in range(draws)]
    assert [len(answer) for answer in taken] == [2] * draws
    assert {type(number) for answer in taken for number in answer} == {int}
    assert journal()[-1].body["reported"] in (draws, str(draws))
    rule = make_filter(theorem, epsilon=1, delta="1e-6")
    assert account().spent == rule.label(rule.price_realised(cost, draws))
    assert customers(cost, [2970, 528], until=until) == taken


def test_whole_numbers_get_noise_in_fine_steps(tmp_path, monkeypatch):
    """Noise in steps of 1 would cost more than the price of continuous noise."""
    project(tmp_path, monkeypatch, "gdp")
    sample = Mock(wraps=draws.whole_laplace)
    monkeypatch.setattr(draws, "whole_laplace", sample)
    cost = Refined(Laplace(sensitivity=1, epsilon="0.1"), spreads=[20])
    assert len(customers(cost, [2970, 528], until=lambda _: False)) == 2
    assert min(call.args[0] for call in sample.call_args_list) > 10 * 2**18


def test_the_interval_is_kept_in_the_release(tmp_path, monkeypatch):
    """A replay costs nothing and says the same; so do copies."""
    project(tmp_path, monkeypatch, "gdp")
    first = customers(COST, 528, within=60, confidence="90%")
    spent = account().spent
    again = customers(COST, 528, within=60, confidence="90%")
    assert account().spent == spent
    for each in (again, copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
        assert type(each) is Estimate
        assert each == first
        assert (each.interval, each.confidence) == (first.interval, 0.9)
    assert json.dumps(first) == json.dumps(float(first))
    assert first.interval[1] - first.interval[0] <= 120.001
