"""Counted steps and added flows agree with each other step by step."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import date
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from docs._site.prices import EXAMPLES
from dpflow import DiscreteGaussian, DiscreteLaplace, Gaussian, Laplace
from dpflow.accounting.costs.composed import Repeated
from dpflow.accounting.costs.early_stopping import EarlyStopping
from dpflow.accounting.costs.notions import ApproxDP, PureDP, RenyiCurve
from dpflow.accounting.costs.outcomes import OutputDP
from dpflow.accounting.rules.individual import PersonBudgets
from dpflow.accounting.searches import NO_END, least_noise, most_steps
from dpflow.exceptions import InvalidCost
from dpflow.forecast import Every, Outlook, budget_line
from dpflow.forecast.cadence import Schedule
from dpflow.forecast.counting import reach_of_shares, steps_that_fit
from dpflow.forecast.noise import scale_noise
from dpflow.ledger.decisions.gates import preview_gates
from dpflow.noise.accuracy import half_width
from dpflow.policy import Policy, parse_policy
from tests.cli.support import ADULT, CDNOW

pytestmark = pytest.mark.quick

GATES = {gate.kind: gate for gate in preview_gates(parse_policy(CDNOW).to_pinned())}
(BASIC,) = preview_gates(parse_policy(ADULT).to_pinned())


def test_decimals_are_counted_exactly() -> None:
    """A billion steps take no longer to count than ten."""
    for epsilon, steps in (("0.1", 10), ("0.3", 3), ("1.1", 0), ("1e-9", 10**9)):
        assert steps_that_fit(BASIC, PureDP(epsilon=epsilon)) == (True, steps)


def test_the_largest_count_is_found():
    """By doubling and halving, whatever the first number is."""
    for limit in (0, 1, 2, 3, 7, 8, 9, 1000, 123_456_789):
        for start in (1, 5000):
            assert most_steps(lambda n, most=limit: n <= most, start) == limit


def test_the_least_noise_may_be_the_most():
    """The largest one is tried before the search gives up."""
    limits = {"low": 1, "high": 2, "most": 10, "close": Fraction(101, 100)}
    assert 9 <= least_noise(lambda noise: noise >= 9, **limits) <= Fraction(91, 10)
    assert least_noise(lambda noise: noise > 10, **limits) is None


def test_a_gate_that_never_refuses_has_no_end():
    """The search is bounded; a gate without a price is not counted as free."""
    numbers = []
    assert most_steps(lambda n: numbers.append(n) or True) is None
    assert len(numbers) < 50
    assert max(numbers) > NO_END / 2
    for cost, supported in (
        (Gaussian(sensitivity=1, noise_multiplier=10**8), True),
        (ApproxDP(epsilon="0.1", delta="1e-9"), False),
    ):
        assert steps_that_fit(GATES["dataset"], cost) == (supported, None)


def test_thresholds_of_shares_add_up():
    """Epsilons do under the sum rule; gdp has mu squared; auto has no one threshold."""
    for theorem, delta, shares, part in (
        ("basic", "0", ["1", "1", "1"], 1.0),
        ("basic", "0", ["2", "2.5"], 1.5),
        ("gdp", "1e-6", ["2.5", "0.5"], 0.7559),
        ("auto", "1e-6", ["2.5", "0.5"], None),
        ("basic", "0", [], None),
    ):
        flows = {f"f{n}": {"epsilon": e, "delta": delta} for n, e in enumerate(shares)}
        account = {"dataset": "d", "unit": "person", "relation": "add-or-remove"}
        budget = {"epsilon": 3, "delta": delta}
        flows = {**flows, "none": {}}
        policy = Policy(**account, budget=budget, filter=theorem, flows=flows)
        assert reach_of_shares(policy.to_pinned()) == pytest.approx(part, abs=1e-3)


SCHEDULE = Schedule(Every(seconds=604_800), date(2026, 1, 5), "schedule")


def made(flow: str, *ahead: tuple[date, float, int], **fields: object) -> Outlook:
    """Return an outlook on the same account, a tenth of which is used."""
    forecast = {
        "flow": flow,
        "runs_left": len(ahead),
        "per_run": "",
        "limited_by": None,
    }
    account = {"dataset": "d", "account": "d#1", "used": 0.1, "schedule": SCHEDULE}
    return Outlook(**{**forecast, **account, "ahead": ahead, "steps": 2, **fields})


WEEKLY = made("w", (date(2026, 1, 5), 0.3, 1), (date(2026, 1, 12), 0.5, 2))
MONTHLY = made("m", (date(2026, 1, 8), 0.2, 1), (date(2026, 2, 8), 0.9, 3), steps=1)


def test_flows_add_up():
    """Each flow's runs come off the same budget, in the order of their days."""
    line = budget_line([WEEKLY, MONTHLY])
    days = [day.isoformat() for day, _, _ in line.points]
    assert days == ["2026-01-05", "2026-01-08", "2026-01-12", "2026-02-08"]
    used = [used for _, used, _ in line.points]
    assert used == pytest.approx([0.3, 0.4, 0.6, 1.0])
    # A step is two entries; the last point stands for two runs of one step.
    assert [grown for _, _, grown in line.points] == [4, 6, 10, 14]
    assert (line.account, line.clock) == ("d#1", True)


def test_other_accounts_are_no_part_of_it():
    """Shares of different budgets do not add up; without points there is no line.

    A backfill of 1997, which release keys date, is not drawn among charges of today.
    """
    assert budget_line([WEEKLY, replace(MONTHLY, account="d#1/flow/m")]) is None
    assert budget_line([replace(WEEKLY, ahead=())]) is None
    assert budget_line([]) is None
    keyed = replace(WEEKLY, schedule=replace(SCHEDULE, source="release keys"))
    assert not budget_line([keyed]).clock
    assert budget_line([keyed, MONTHLY]) is None


def test_the_interval_holds_95_of_100_releases():
    """By the laws of the noise: 95 of 100 draws are within the half-width."""
    gaussian = half_width(Gaussian(sensitivity=1, sigma=40))
    laplace = half_width(Laplace(sensitivity=1, scale=10))
    inside = math.erf(gaussian / 40 / math.sqrt(2)), 1 - math.exp(-laplace / 10)
    assert inside == pytest.approx((0.95, 0.95), rel=1e-6)


def test_whole_numbers_are_covered_by_the_least_that_does():
    """One less covers less than 95 of 100."""
    x = np.arange(-40_000, 40_001)
    for kind, field, power in (
        (DiscreteGaussian, "sigma", 2),
        (DiscreteLaplace, "scale", 1),
    ):
        for spread in ("0.3", "1", "30", "900"):
            width = half_width(kind(sensitivity=1, **{field: spread}))
            assert width.denominator == 1
            weights = np.exp(-(np.abs(x / float(spread)) ** power) / power)
            shares = np.cumsum(weights[40_000:]) * 2 - weights[40_000]
            shares /= weights.sum()
            assert shares[int(width)] >= 0.95
            assert width == 0 or shares[int(width) - 1] < 0.95


def test_a_repeated_step_has_the_half_width_each_time():
    """And a step that only states its epsilon has none that is known."""
    once = Gaussian(sensitivity=1, sigma=40)
    assert half_width(Repeated(once, 5)) == half_width(once)
    assert half_width(EarlyStopping(once, stops=(5,))) == half_width(once)
    assert half_width(PureDP(epsilon=1)) is None


def test_less_noise_is_more_noise_backwards():
    """What a quarter of the noise gives, four times that gives back, or is unknown."""
    for cost, factor in product(EXAMPLES, (Fraction(1, 2), Fraction(1, 4))):
        if isinstance(cost, OutputDP | PersonBudgets | RenyiCurve):
            with pytest.raises(InvalidCost, match="cannot be scaled"):
                scale_noise(cost, factor)
            continue
        quieter = scale_noise(cost, factor)
        assert quieter != cost
        assert quieter.noisier(1 / factor) == cost
        assert scale_noise(cost, Fraction(3)) == cost.noisier(3)
