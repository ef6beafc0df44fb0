"""The zcdp filter: rhos add up to the rho that the target allows."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import pytest

from dpflow import ZCDP, ApproxDP, Gaussian, PureDP
from dpflow.accounting import Filter, make_filter
from dpflow.accounting.costs.base import Cost
from dpflow.accounting.curves.conversions import zcdp_budget
from dpflow.exceptions import InvalidCost, UnsupportedCost
from dpflow.rounding import UNITS, units_down

SPLIT = make_filter("zcdp", epsilon=1, delta="1e-6", delta_loss="6e-7")
WHOLE = make_filter("zcdp", epsilon=1, delta="1e-6")
TWENTY = Gaussian(sensitivity=1, sigma=20)


def admitted(rule: Filter, cost: Cost) -> int:
    """Count identical steps until the rule refuses one, or give up."""
    tally, count = rule.zero(), 0
    while count < 1000 and rule.admits(tally + rule.price(cost)):
        tally, count = tally + rule.price(cost), count + 1
    return count


@pytest.mark.parametrize(
    ("epsilon", "conversion", "cost", "count"),
    [
        (1, "tight", TWENTY, 19),
        (5, "tight", TWENTY, 370),
        (1, "classic", TWENTY, 13),
        (5, "classic", TWENTY, 308),
        (1, "tight", PureDP(epsilon=0.1), 4),
        (5, "tight", PureDP(epsilon=0.1), 92),
        (1, "tight", ZCDP(rho="0.00125"), 19),
        (1, "tight", ZCDP(rho="0.0243559703595383"), 1),
        (1, "tight", ZCDP(rho="0.0243559703595384"), 0),
    ],
)
def test_known_numbers_of_steps(epsilon, conversion, cost, count):
    """The rule admits as many identical steps as theory says, and no more."""
    rule = make_filter("zcdp", epsilon=epsilon, delta="1e-6", conversion=conversion)
    assert admitted(rule, cost) == count


@pytest.mark.parametrize("conversion", ["tight", "classic"])
def test_the_split_is_paid_for_by_the_conversion(conversion):
    """With part of delta kept for steps, rho is that of the rest of delta."""
    options = {"epsilon": 1, "conversion": conversion}
    split = make_filter("zcdp", delta="1e-6", delta_loss="6e-7", **options)
    whole = make_filter("zcdp", delta="6e-7", **options)
    assert split.limit.amounts[0] == whole.limit.amounts[0]
    assert split.limit.amounts[1] == units_down(Fraction("4e-7"))
    assert whole.limit.amounts[1] == 0


def test_the_limit_is_rounded_down_from_fifty_digits():
    """The classic limit is the whole number of units below its closed form."""
    with mpmath.workdps(60):
        log = mpmath.log(10**6)
        root = (mpmath.sqrt(1 + log) - mpmath.sqrt(log)) ** 2
        units = int(mpmath.floor(root * UNITS))
    rule = make_filter("zcdp", epsilon=1, delta="1e-6", conversion="classic")
    assert 0 < units - rule.limit.amounts[0] <= units // 10**29


def test_the_deltas_of_steps_have_their_own_limit():
    """Deltas add up to what the split keeps for them, exactly, and no further."""
    assert admitted(SPLIT, ApproxDP(epsilon="1e-6", delta="1e-7")) == 4
    assert admitted(SPLIT, ApproxDP(epsilon="1e-6", delta="4e-7")) == 1
    assert admitted(SPLIT, ApproxDP(epsilon="1e-6", delta="4.0000001e-7")) == 0


def test_without_a_split_a_step_with_a_delta_is_refused():
    """A filter that keeps no delta for steps says so; delta zero is no delta."""
    with pytest.raises(UnsupportedCost, match="delta_loss"):
        WHOLE.price(ApproxDP(epsilon=0.1, delta="1e-35"))
    pure = WHOLE.price(PureDP(epsilon=0.1))
    assert WHOLE.price(ApproxDP(epsilon=0.1, delta=0)) == pure


def test_the_limit_is_the_budget_in_whole_units_rounded_down():
    """A limit is what the conversion allows, rounded down to 36 decimals."""
    budget = zcdp_budget(WHOLE.epsilon, WHOLE.delta)
    limit = WHOLE.limit.amounts[0]
    assert limit <= budget * UNITS < limit + UNITS // 10**36


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("epsilon", {"epsilon": 0}),
        ("epsilon", {"epsilon": float("nan")}),
        ("delta", {"delta": 0}),
        ("delta", {"delta": 1}),
        ("delta", {"delta": float("nan")}),
        ("delta_loss", {"delta_loss": 0}),
        ("delta_loss", {"delta_loss": -1}),
        ("delta_loss", {"delta_loss": "1.0000001e-6"}),
        ("delta_loss", {"delta_loss": float("nan")}),
        ("delta_loss", {"delta_loss": True}),
        ("delta_loss", {"delta_loss": "half"}),
        ("conversion", {"conversion": "best"}),
        ("conversion", {"conversion": "Tight"}),
        ("conversion", {"conversion": None}),
        ("conversion", {"conversion": True}),
        ("conversion", {"conversion": ["tight"]}),
    ],
    ids=repr,
)
def test_a_bad_option_is_refused_by_name(name, options):
    """Each option that is no number, out of range or no known word names itself."""
    with pytest.raises(InvalidCost, match=name) as caught:
        make_filter("zcdp", **{"epsilon": 1, "delta": "1e-6", **options})
    assert caught.value.name == name
