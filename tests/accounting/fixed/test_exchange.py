"""What an unplanned step takes out of a plan dominates it, and no less does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow import guarded
from dpflow.accounting import make_filter
from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.composed import Composed, Repeated
from dpflow.accounting.costs.noise import (
    DiscreteGaussian,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    PoissonSampledGaussian,
)
from dpflow.accounting.costs.notions import ZCDP, ApproxDP, GaussianDP, PureDP
from dpflow.accounting.costs.outcomes import OutputDP
from dpflow.accounting.costs.sparse_vector import SparseVector
from dpflow.accounting.fixed.exchange import MOST_RESPONSES, exchanged, worth
from dpflow.accounting.fixed.optimal import fixed_delta, least_delta
from dpflow.accounting.fixed.plan import PlanFilter
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import BudgetRefused, InvalidCost, UnsupportedCost
from tests.projects import account, make_project
from tests.sizes import scaled


def pure(epsilon: str) -> PureDP:
    """Return an (epsilon, 0)-DP step."""
    return PureDP(epsilon=epsilon)


def gaussian(sigma: int) -> Gaussian:
    """Return a count with Gaussian noise."""
    return Gaussian(sensitivity=1, sigma=sigma)


def laplace(epsilon: str) -> Laplace:
    """Return a count with Laplace noise."""
    return Laplace(sensitivity=1, epsilon=epsilon)


def sampled(rate: str, noise: str = "1") -> PoissonSampledGaussian:
    """Return a step of DP-SGD."""
    return PoissonSampledGaussian(sampling_rate=rate, noise_multiplier=noise)


COIN = gaussian(1000)
SGD = sampled("0.01")


@pytest.mark.parametrize(
    ("cost", "planned", "count"),
    [
        (gaussian(100), COIN, 100),
        (gaussian(101), COIN, 99),
        (gaussian(2000), COIN, 1),
        (GaussianDP(mu="0.01"), COIN, 100),
        (gaussian(100), GaussianDP(mu="0.001"), 100),
        # pi / 2 times epsilon^2 / mu^2, nearly.
        (pure("0.01"), COIN, 158),
        (laplace("0.01"), COIN, 157),
        # Two randomized responses tell no more apart than one: a tie says nothing.
        (pure("0.3"), pure("0.2"), 3),
        (pure("0.2"), pure("0.2"), 1),
        (pure("0.2"), laplace("0.2"), 3),
        (laplace("0.2"), pure("0.2"), 1),
        (laplace("0.1"), laplace("0.2"), 1),
        (pure("0.05"), ExponentialMechanism(epsilon="0.1"), 1),
        (ExponentialMechanism(epsilon="0.05"), ExponentialMechanism(epsilon="0.1"), 1),
        (OutputDP({"none": 0, "some": "0.3"}), pure("0.2"), 3),
        (SparseVector(positives=2, epsilon="0.1"), pure("0.1"), 1),
        (sampled("0.005"), SGD, 1),
        (sampled("0.01", "2"), SGD, 1),
        (sampled("0.01", "5"), gaussian(10), 4),
        (
            ApproxDP(epsilon="0.1", delta="3e-9"),
            ApproxDP(epsilon="0.1", delta="1e-9"),
            4,  # three lose a little less than 3e-9 together
        ),
    ],
)
def test_what_steps_are_worth(cost: Cost, planned: Cost, count: int) -> None:
    """By hand, or by the tests below."""
    assert worth(cost, planned) == count


@pytest.mark.parametrize(
    ("cost", "planned"),
    [
        # A Gaussian's loss has no bound, and theirs have, at least in one order.
        (gaussian(1000), pure("3")),
        (gaussian(100), SGD),
        (gaussian(100), laplace("1")),
        (pure("0.001"), SGD),
        (sampled("0.02"), SGD),
        (sampled("0.01", "0.9"), SGD),
        # What reveals with some probability is dominated by nothing that never does.
        (ApproxDP(epsilon="0.1", delta="1e-9"), pure("1")),
        (ApproxDP(epsilon="0.1", delta="1e-9"), gaussian(1)),
        # Notions without a worst pair, or with another one.
        (ZCDP(rho="0.001"), gaussian(1)),
        (gaussian(100), ZCDP(rho=1)),
        (pure("0.001"), DiscreteGaussian(sensitivity=1, sigma=1)),
        # There would be some, but too many.
        (pure("3"), pure("0.001")),
    ],
)
def test_what_is_not_known_to_dominate_is_worth_nothing(
    cost: Cost, planned: Cost
) -> None:
    """None, and never a guess."""
    assert worth(cost, planned) is None


# Domination at all epsilons, by other means


def responses(epsilon: Fraction, delta: Fraction, count: int) -> list[tuple[Any, Any]]:
    """Return (P, Q) of some randomized responses that reveal with probability delta."""
    mp = mpmath.mp
    eps, lost = (mp.mpf(x.numerator) / x.denominator for x in (epsilon, delta))
    top = 1 / (1 + mp.exp(-eps))
    kept = (1 - lost) ** count
    pairs = [(1 - kept, mp.mpf(0)), (mp.mpf(0), 1 - kept)]
    for low in range(count + 1):
        ways = kept * math.comb(count, low)
        p = ways * top ** (count - low) * (1 - top) ** low
        pairs.append((p, ways * top**low * (1 - top) ** (count - low)))
    return pairs


def divergence(pairs: Sequence[tuple[Any, Any]], factor: Any) -> Any:
    """Return sum (P - factor Q)+."""
    return sum(max(p - factor * q, 0) for p, q in pairs)


def dominates(above: list[tuple[Any, Any]], below: list[tuple[Any, Any]]) -> bool:
    """Compare two symmetric pairs at every knot: between them both are lines."""
    knots = {p / q for p, q in [*above, *below] if q}
    slack = mpmath.mpf(10) ** -40
    return all(divergence(below, x) <= divergence(above, x) + slack for x in knots)


EPSILONS = st.integers(1, 120).map(lambda n: Fraction(n, 100))
DELTAS = st.sampled_from(["0", "0.001", "0.02"]).map(Fraction)


@settings(max_examples=scaled(8), deadline=None)
@given(EPSILONS, DELTAS, EPSILONS, DELTAS)
def test_no_fewer_responses_dominate(
    epsilon: Fraction, delta: Fraction, own: Fraction, own_delta: Fraction
) -> None:
    """So many executions dominate at every epsilon; with fewer one epsilon fails."""
    planned = ApproxDP(epsilon=own, delta=own_delta)
    count = worth(ApproxDP(epsilon=epsilon, delta=delta), planned)
    with mpmath.workdps(50):
        step = responses(epsilon, delta, 1)
        if count is None:
            most = responses(own, own_delta, MOST_RESPONSES)
            far = divergence(step, 1) > divergence(most, 1)
            assert far or delta > own_delta == 0
            return
        assert dominates(responses(own, own_delta, count), step)
        fewer = range(max(1, count - 3), count)
        assert not any(dominates(responses(own, own_delta, n), step) for n in fewer)


def gaussian_divergence(mu: Any, epsilon: Any) -> Any:
    """Return the divergence of N(mu, 1) from N(0, 1)."""
    mp = mpmath.mp
    upper = mp.ncdf(mu / 2 - epsilon / mu)
    return upper - mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize("epsilon", ["0.01", "0.1", "1", "3"])
def test_gaussians_dominate_pure_steps(epsilon: str) -> None:
    """At every epsilon with 50 digits; with one coin less not at epsilon 0."""
    planned = gaussian(200)
    count = worth(pure(epsilon), planned)
    assert count is not None
    with mpmath.workdps(50):
        eps, mp = mpmath.mpf(epsilon), mpmath.mp
        top = 1 / (1 + mp.exp(-eps))
        pair = [(top, 1 - top), (1 - top, top)]

        def holds(n: int, at: Any) -> bool:
            mu = mp.sqrt(n) / 200
            return bool(divergence(pair, mp.exp(at)) <= gaussian_divergence(mu, at))

        grid = [eps * mp.mpf(k) / 40 for k in range(-60, 61)]
        assert all(holds(count, at) for at in grid)
        assert not holds(count - 1, mp.mpf(0))


@pytest.mark.parametrize("epsilon", ["0.1", "1"])
def test_a_laplace_step_holds_the_response_it_is_taken_for(epsilon: str) -> None:
    """Its own divergence is above that of three of the responses it is worth."""
    bound = Fraction(epsilon)
    planned = Laplace(sensitivity=1, epsilon=bound)
    with mpmath.workdps(50):
        mp = mpmath.mp
        b = mp.mpf(epsilon)
        top = 1 - mp.exp(-b / 2) / 2
        pair = [(top, 1 - top), (1 - top, top)]
        for k in range(-40, 41):
            at = b * k / 40
            own = 1 - mp.exp((at - b) / 2)
            assert divergence(pair, mp.exp(at)) <= own + mp.mpf(10) ** -45
        # The least pure step that one Laplace execution is not enough for.
        inside = Fraction(str(mp.nstr(mp.log(top / (1 - top)), 12)))
    near = inside * Fraction(1, 10**9)
    assert worth(PureDP(epsilon=inside - near), planned) == 1
    assert worth(PureDP(epsilon=inside + near), planned) == 3


@pytest.mark.parametrize("epsilon", ["0", "0.3", "1"])
def test_what_is_attained_is_rounded_down(epsilon: str) -> None:
    """It is the delta of the optimum, from below."""
    parts = ((ApproxDP(epsilon="0.3", delta="0.01"), 5), (gaussian(2), 1))
    low = least_delta(parts, Fraction(epsilon))
    high = fixed_delta(parts, Fraction(epsilon))
    assert low < high < low * (1 + Fraction(1, 10**25))


SHOP_PLAN = """\
dataset: shop
unit: customer
relation: add-or-remove
budget: {epsilon: 3, delta: 1e-6}
filter:
  theorem: plan
  exchange: true
  steps:
    - {cost: {mechanism: PureDP, epsilon: 0.1}, times: 2}
    - {cost: {mechanism: PureDP, epsilon: 0.2}, times: 5}
"""


# What a plan takes out


def plan(*steps: Any, epsilon: int = 3, **options: Any) -> PlanFilter:
    """Return a plan with exchange at (epsilon, 1e-6)."""
    return PlanFilter(
        epsilon=epsilon, delta="1e-6", steps=steps, exchange=True, **options
    )


def times(cost: Cost, count: int) -> dict[str, Any]:
    """Return one line of a plan."""
    return {"cost": cost, "times": count}


def test_own_executions_go_first() -> None:
    """Then what is the smallest share of the plan, if so much is left."""
    lines = times(pure("0.1"), 2), times(pure("0.2"), 9), times(laplace("0.2"), 3)
    rule = plan(*lines, accountant="basic")
    assert rule.price(pure("0.1")) == Tally((1, 0, 0))
    assert rule.price(pure("0.1"), Tally((2, 0, 0))) == Tally((0, 1, 0))
    assert rule.price(pure("0.1"), Tally((2, 9, 0))) == Tally((0, 0, 1))
    # Nothing is left of anything: it asks for what it may not have.
    full = Tally((2, 9, 3))
    assert not rule.admits(full + rule.price(pure("0.1"), full))
    assert rule.admits(full)


def test_a_step_worth_nothing_is_refused() -> None:
    """With a hint at what would help."""
    rule = plan(times(pure("0.1"), 3))
    with pytest.raises(UnsupportedCost, match="small Gaussians"):
        rule.price(gaussian(100))
    strict = PlanFilter(epsilon=3, delta="1e-6", steps=[times(pure("0.1"), 3)])
    with pytest.raises(UnsupportedCost, match="exchange: true"):
        strict.price(pure("0.01"))


def test_gaussians_of_several_sizes_pay_together() -> None:
    """Small ones first, where no kind alone has enough left."""
    rule = plan(times(COIN, 60), times(gaussian(200), 3))
    # 1e-4 of mu squared: 60 coins of 1e-6, and two of the three of 2.5e-5.
    assert rule.price(gaussian(100)) == Tally((60, 2))
    short = Tally((0, 2))
    assert not rule.admits(short + rule.price(gaussian(100), short))
    assert rule.price(gaussian(200)) == Tally((0, 1))


def test_composed_steps_take_the_sum_of_their_parts() -> None:
    """An epoch of planned steps takes as many; other parts are exchanged."""
    rule = plan(times(pure("0.1"), 10), times(COIN, 300), epsilon=5)
    assert rule.price(Repeated(pure("0.1"), 4)) == Tally((4, 0))
    both = Composed(pure("0.05"), gaussian(100))
    assert rule.price(both) == Tally((0, 0)) + rule.price(pure("0.05")) + Tally(
        (0, 100)
    )
    assert exchanged(both, rule.kinds, rule.thresholds, (10, 300)) == (1, 100)
    # Nine of 0.444 coins each are four coins together.
    assert rule.price(Repeated(gaussian(1500), 9)) == Tally((0, 4))


def test_settlements_post_what_was_reserved() -> None:
    """The price at the same use is the same, whatever came back since."""
    rule = plan(times(pure("0.1"), 2), times(pure("0.2"), 9))
    used = Tally((2, 0))
    assert rule.price_realised(pure("0.1"), "x", used) == rule.price(pure("0.1"), used)


@pytest.mark.parametrize(
    "options", [{"exchange": "yes"}, {"exchange": 1}, {"exchange": True}]
)
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    """Exchange is on or off, and no order of a plan survives it."""
    order = "planned" if options["exchange"] is True else "free"
    with pytest.raises(InvalidCost, match="exchange is true or false"):
        PlanFilter(epsilon=3, steps=[pure("0.1")], order=order, **options)


def test_exchange_is_pinned() -> None:
    """What a policy pins makes an equal rule."""
    rule = plan(times(pure("0.1"), 2))
    assert make_filter(**rule.parameters()) == rule
    assert rule.parameters()["exchange"] is True


def test_training_leaves_room_for_counts() -> None:
    """At (1, 1e-6) 118 steps of DP-SGD, with change for ten counts in between."""
    rule = plan(times(SGD, 118), times(COIN, 1000), epsilon=1)
    used = rule.zero()
    for cost in [*[SGD] * 60, gaussian(100), *[SGD] * 58, gaussian(100)]:
        used += rule.price(cost, used)
        assert rule.admits(used)
    assert used == Tally((118, 200))
    assert not rule.admits(used + rule.price(SGD, used))
    # The oracle composes what ran: 118 steps and two counts.
    ran = dp_accounting_epsilon(1e-6, [(SGD, 118), (gaussian(100), 2)])
    assert ran == pytest.approx(0.9953, abs=2e-3)
    assert ran < rule.epsilons[0] <= 1


@pytest.mark.slow
def test_longer_training_leaves_room_for_counts() -> None:
    """At (5, 1e-6) 5,500 steps of the 5,536 that fit alone, and five counts."""
    rule = plan(times(SGD, 5500), times(COIN, 500), epsilon=5)
    used = Tally((2500, 0))
    for cost in [gaussian(100), *[SGD] * 3000, *[gaussian(100)] * 4]:
        used += rule.price(cost, used)
        assert rule.admits(used)
    assert used == Tally(rule.thresholds)
    ran = dp_accounting_epsilon(1e-6, [(SGD, 5500), (gaussian(100), 5)])
    assert 4.97 < ran <= rule.epsilons[0] * (1 + 1e-3)
    assert rule.epsilons[0] <= 5


def dp_accounting_epsilon(
    delta: float, parts: Sequence[tuple[Cost, int]], grid: float = 1e-4
) -> float:
    """Compose by dp-accounting."""
    accounting = pytest.importorskip("dp_accounting")
    pld = pytest.importorskip("dp_accounting.pld")
    oracle = pld.PLDAccountant(value_discretization_interval=grid)
    for cost, count in parts:
        if isinstance(cost, PoissonSampledGaussian):
            inner = accounting.GaussianDpEvent(float(cost.noise_multiplier))
            event = accounting.PoissonSampledDpEvent(float(cost.sampling_rate), inner)
        else:
            assert isinstance(cost, Gaussian)
            event = accounting.GaussianDpEvent(float(cost.sigma / cost.sensitivity))
        oracle.compose(accounting.SelfComposedDpEvent(event, count))
    return float(oracle.get_epsilon(delta))


def test_a_ledger_exchanges(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that the policy's plan does not have are charged in its counts."""
    make_project(tmp_path, monkeypatch, SHOP_PLAN)

    def spent(cost: Cost) -> list[str]:
        def body() -> int:
            return 1

        guarded(dataset="shop", cost=cost, noise="own", fresh=True)(body)()
        return [*account().spent.values()]

    assert spent(pure("0.1")) == ["1", "0"]
    assert spent(pure("0.1")) == ["2", "0"]
    assert spent(pure("0.1")) == ["2", "1"]
    assert spent(pure("0.3")) == ["2", "4"]
    with pytest.raises(BudgetRefused):
        spent(pure("0.3"))
