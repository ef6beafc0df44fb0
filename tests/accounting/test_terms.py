"""Thresholds of terms add up to thresholds of a lifetime, compared with 120 digits."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest

from dpflow.accounting import make_filter
from dpflow.accounting.rules.rule import list_thresholds
from dpflow.accounting.rules.tally import Tally
from dpflow.accounting.terms import TermSum, add_thresholds
from dpflow.rounding import from_units, number_text, short_up
from tests.accounting.oracle import MP, gaussian_delta, real, zcdp_log_delta
from tests.sizes import spread
from tests.tables import read_tables


def pinned(
    theorem: str, epsilon: str = "3", delta: str = "1e-6", **options: Any
) -> str:
    """Return a filter as a term pins it."""
    rule = make_filter(theorem, epsilon=epsilon, delta=delta, **options)
    data = {"role": "filter", **rule.parameters()}
    return json.dumps(data | {"thresholds": list_thresholds(rule)})


def equal_terms(count: int, theorem: str, **options: Any) -> TermSum:
    """Return the sum of terms of (3, 1e-6)."""
    total = add_thresholds([pinned(theorem, **options)] * count)
    assert total is not None
    return total


def least(total: TermSum, delta: Fraction | str) -> Fraction:
    """Return the epsilon that terms lose at a delta."""
    return total.least_epsilon(Fraction(delta), Fraction(15))


@pytest.mark.parametrize(
    ("count", "epsilon"), spread(read_tables(__file__)["gaussian"], 2)
)
def test_gaussian_terms_lose_what_the_gaussian_of_their_sum_loses(
    count: int, epsilon: str
) -> None:
    """At the epsilon the true delta is at most the promise, and just below it more."""
    total, delta = equal_terms(count, "gdp"), Fraction(count, 10**6)
    mu_squared = real(from_units(total.total.amounts[0]))
    assert abs(mu_squared / count - MP.mpf("0.41955")) < 1e-5
    found = least(total, delta)
    assert short_up(found, len(epsilon.replace(".", ""))) == epsilon
    assert gaussian_delta(real(found), mu_squared) <= real(delta)
    below = real(found * (1 - Fraction("2e-6")))
    assert gaussian_delta(below, mu_squared) > real(delta)


def test_concentrated_terms_lose_what_their_best_order_proves() -> None:
    """Five terms lose 6.97, and the order of 120 digits agrees."""
    total = equal_terms(5, "zcdp")
    found, rho = least(total, "5e-6"), from_units(total.total.amounts[0])
    assert short_up(found, 3) == "6.97"
    log_delta = MP.log(real(Fraction("5e-6")))
    assert zcdp_log_delta(found, rho) <= log_delta
    assert zcdp_log_delta(found * (1 - Fraction("2e-6")), rho) > log_delta


@pytest.mark.parametrize(("order", "epsilon"), [("9", "9.461"), ("8.934", "9.411")])
def test_renyi_terms_lose_what_their_order_proves(order: str, epsilon: str) -> None:
    """The derived order is 9; the order that admits most is 8.934."""
    total = equal_terms(5, "rdp", order=order)
    found, alpha = least(total, "5e-6"), real(Fraction(order))
    assert short_up(found) == epsilon
    slope = (MP.log(real(Fraction("5e-6"))) + MP.log(alpha)) / (alpha - 1)
    allowed = real(found) - MP.log1p(-1 / alpha) + slope
    spent = real(from_units(total.total.amounts[0]))
    assert spent <= allowed <= spent * (1 + MP.mpf("1e-5"))


def test_the_least_epsilon_is_a_lifetime_that_fits() -> None:
    """Thresholds decide, never the printed number; equal budgets fit exactly."""
    for theorem, options in (("gdp", {}), ("zcdp", {}), ("rdp", {"order": "9"})):
        total, delta = equal_terms(5, theorem, **options), Fraction("5e-6")
        found = least(total, delta)
        assert total.total.fits_within(total.limit(found, delta))
        lower = total.limit(found * (1 - Fraction("2e-6")), delta)
        assert not total.total.fits_within(lower)
        one = equal_terms(1, theorem, **options)
        assert one.limit(Fraction(3), Fraction("1e-6")) == one.total
    total = equal_terms(5, "gdp")
    for epsilon, fits in (("6.99", False), ("6.991", True)):
        limit = total.limit(Fraction(epsilon), Fraction("5e-6"))
        assert total.total.fits_within(limit) == fits
    # Deltas of Gaussian terms need not add up.
    assert short_up(least(total, "1e-6")) == "7.493"


def test_deltas_of_steps_add_up_apart_in_the_proportion_of_the_split() -> None:
    """With half of delta for steps, four terms need four times that half."""
    total = equal_terms(4, "gdp", delta_loss="5e-7")
    loss, steps = total.limit(Fraction(20), Fraction("4e-6")).amounts
    assert total.total.amounts[0] < loss
    assert total.total.amounts[1] == steps
    less = total.limit(Fraction(20), Fraction("3.9e-6"))
    assert not total.total.fits_within(less)
    found = least(total, "4e-6")
    mu_squared = real(from_units(total.total.amounts[0]))
    assert gaussian_delta(real(found), mu_squared) <= real("2e-6")
    assert short_up(found) == "6.184"


def test_terms_of_other_constants_have_no_sum() -> None:
    """Neither in this order nor in the other one; other budgets of one rule have."""
    first, split = pinned("gdp"), pinned("gdp", delta_loss="5e-7")
    others = pinned("zcdp"), pinned("rdp", order="9"), pinned("basic"), None
    for other in (split, *others):
        assert add_thresholds([first, other]) is None
        assert add_thresholds([other, first]) is None
    assert add_thresholds([first, pinned("gdp", "0.5", "1e-9")]) is not None
    half = pinned("gdp", "1", "1e-7", delta_loss="5e-8")
    assert add_thresholds([split, half]) is not None


def event_delta(epsilon: Fraction, size: Fraction, chance: Any, times: int) -> Any:
    """Return the exact delta of rare events, each with a loss of `size`.

    Each of the mechanisms has an event of probability `chance` on one dataset and
    e^-size times that on the other.
    """
    other = chance * MP.exp(-real(size))
    rest = MP.log((1 - chance) / (1 - other))
    return MP.fsum(
        MP.binomial(times, count)
        * chance**count
        * (1 - chance) ** (times - count)
        * max(0, -MP.expm1(real(epsilon) - count * real(size) - (times - count) * rest))
        for count in range(times + 1)
    )


def test_unequal_orders_that_are_added_up_are_caught() -> None:
    """Control: seven terms of order 3 fit a lifetime at order 9, and lose too much."""
    epsilon, delta, size = Fraction(6), Fraction("2e-6"), Fraction("6.5")
    first = equal_terms(1, "rdp", order="9")
    low = make_filter("rdp", epsilon=epsilon, delta=delta, order=3)
    (each,) = low.limit.amounts
    chance = MP.mpf("2.7e-6")
    other = chance * MP.exp(-real(size))
    moment = chance**3 / other**2 + (1 - chance) ** 3 / (1 - other) ** 2
    assert MP.log(moment) / 2 <= real(from_units(each))
    true = event_delta(epsilon, size, chance, 7)
    assert true > 3 * real(delta)
    # The wrong sum: units of one order added to those of another.
    wrong = Tally((first.total.amounts[0] + 7 * each,))
    assert wrong.fits_within(first.limit(epsilon, delta))
    texts = [pinned("rdp", order="9")]
    texts += [pinned("rdp", number_text(epsilon), number_text(delta), order="3")] * 7
    assert add_thresholds(texts) is None
