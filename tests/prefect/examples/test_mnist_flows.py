"""Noise that follows progress, and the paper's table, on made-up digits."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from dpflow import PoissonSampledGaussian, Repeated, load_policy
from dpflow.accounting import make_filter
from flows import adaptive_noise, adult, fine_tuning, individual_table, mnist
from flows.adaptive_noise import (
    ADAPTIVE_GOAL,
    COUNT,
    FIXED,
    SHARE,
    STEPS,
    course,
    noise_at,
)
from flows.rounds import Strategy
from tests import adult_people, mnist_images
from tests.projects import ROOT, account

PEOPLE = 500


CACHED = (mnist._table, fine_tuning.halves, fine_tuning.pretrained)


@pytest.fixture(params=[mnist.MNIST], ids=["mnist"])
def digits(request, examples, tmp_path, monkeypatch):
    """Give the flows digits, or clothes that are made-up digits."""
    folder = tmp_path / "data"
    folder.mkdir()
    mnist_images.write(folder, monkeypatch, request.param)
    yield folder
    for each in CACHED:
        each.cache_clear()


def test_the_numbers_of_the_policy_are_those_of_the_meter():
    """A share and a halt that the flow's arithmetic would otherwise get wrong."""
    policy = load_policy(ROOT / "policies" / "mnist.yaml")
    for name in ("adaptive-noise", "stop-at-goal"):
        share = policy.flows[name]
        assert str(share.epsilon) == SHARE.epsilon
        assert float(share.delta) == float(SHARE.delta)
    assert float(policy.flows["stop-at-goal"].halt_at_epsilon) == float(SHARE.halt)
    fashion = load_policy(ROOT / "policies" / "fashion.yaml").flows["fine-tuning"]
    expected = fine_tuning.SHARE
    assert [fashion.epsilon, fashion.delta, fashion.halt_at_epsilon] == [
        Fraction(each) for each in (expected.epsilon, expected.delta, expected.halt)
    ]


def test_a_strategy_follows_significant_progress_only():
    """A notch more after it while there is room, one less after none, never below 0."""
    adaptive = Strategy("a", saves=True, spends=True, most=3)
    assert adaptive.after(1, gained=True, room=True) == 2
    assert adaptive.after(1, gained=True, room=False) == 1
    assert adaptive.after(3, gained=True, room=True) == 3
    assert adaptive.after(3, gained=False, room=True) == 2
    assert adaptive.after(0, gained=False, room=True) == 0
    assert FIXED.after(0, gained=True, room=True) == 0
    assert ADAPTIVE_GOAL.after(10, gained=True, room=True) == 10
    assert [noise_at(each) for each in (0, 1, 10)] == [80, 88, 160]
    # Of counts that did not change, so many are significant.
    chance = math.erfc(course(1).significant / float(COUNT.sigma) / 2) / 2
    assert 1 / chance > 700


@pytest.mark.slow
def test_the_study_compares_all_strategies_and_draws(digits):
    """A run of each, the same for the same seed."""
    results = adaptive_noise.study(PEOPLE, runs=2)
    assert list(results) == [each.name for each in adaptive_noise.STRATEGIES]
    again = adaptive_noise.simulated(FIXED, PEOPLE, 1)
    assert again == results["fixed"][1] != results["fixed"][0]
    assert len(again) * STEPS == 50
    lines = adaptive_noise.table(results)
    assert len(lines) == 1 + len(results)
    path = adaptive_noise.draw({name: runs[0] for name, runs in results.items()})
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("digits", [mnist.FASHION], indirect=True, ids=["fashion"])
def test_fine_tuning_is_charged_what_the_theorem_says(digits):
    """Sampled steps and counts: the ledger agrees with the filter, and with Meter."""
    rounds = fine_tuning.fine_tuning(300, hidden=2, most=2)
    share = account("fashion", "flow")
    rule = make_filter("rdp", epsilon="6", delta="1e-5")
    steps = [
        PoissonSampledGaussian(
            sampling_rate=Fraction(1, 4), noise_multiplier=1 + Fraction(each.notch, 10)
        )
        for each in rounds
    ]
    costs = [*(Repeated(each, 4) for each in steps), *len(rounds) * [fine_tuning.COUNT]]
    spent = sum(map(rule.price, costs), rule.zero())
    expected = float(spent.amounts[0] / rule.thresholds[0])
    assert share.used_fraction == pytest.approx(expected, rel=1e-9)
    assert rounds[-1].used == pytest.approx(expected, rel=1e-9)
    assert fine_tuning.fine_tuning(300, hidden=2, most=2)[-1] == rounds[-1]


def test_the_papers_table_has_a_line_for_each_budget(digits, monkeypatch, capsys):
    """With the published figures next to the computed ones; on both data sets."""
    adult_people.write(digits, monkeypatch, people=1000)
    for name in individual_table.PROBLEMS:
        individual_table.show(name, quick=True)
        lines = capsys.readouterr().out.splitlines()
        assert [line.split(" | ")[0] for line in lines[2:5]] == ["0.3", "0.5", "1.2"]
        for line in lines[2:5]:
            epsilon, *scores = line.split(" | ")
            assert scores[3:] == list(
                individual_table.PUBLISHED[name.partition("-")[0], epsilon]
            )
            for each in scores[:3]:
                mean, spread = map(float, each.split(" +- "))
                assert 0 < mean <= 100
                assert spread >= 0
    adult._table.cache_clear()
