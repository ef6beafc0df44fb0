"""The zcdp filter: rhos add up to the rho that the target allows."""

from __future__ import annotations

import pytest

from dpflow import ZCDP, Gaussian, PureDP
from dpflow.accounting import Filter, make_filter
from dpflow.accounting.costs.base import Cost
from dpflow.accounting.curves.conversions import zcdp_budget
from dpflow.exceptions import InvalidCost
from dpflow.rounding import UNITS

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
