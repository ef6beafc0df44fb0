"""A filter made smaller under its tally admits nothing that the old one did not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpflow import Gaussian, PureDP
from dpflow.accounting import make_filter
from dpflow.accounting.rules.tally import Tally
from dpflow.accounting.rules.tightening import admits_less, tightened_filter
from dpflow.exceptions import InvalidCost

OPTIONS = [
    ("basic", {}),
    ("output-dp", {}),
    ("gdp", {}),
    ("zcdp", {}),
    ("zcdp", {"delta_loss": "5e-7"}),
    ("whitehouse", {}),
    ("rdp", {}),
    ("rdp", {"orders": ["2", "8", "32"]}),
    ("individual", {}),
    ("auto", {}),
]


def made(theorem: str, options: dict, epsilon: str = "3", delta: str = "1e-6"):
    """Make a filter with a usual budget."""
    return make_filter(theorem, epsilon=epsilon, delta=delta, **options)


@pytest.mark.parametrize(("theorem", "options"), OPTIONS)
@pytest.mark.parametrize(
    ("epsilon", "delta"), [("2.5", "0.000001"), ("3", "9e-7"), ("2", "8e-7")]
)
def test_a_lower_budget_keeps_what_prices_a_step(theorem, options, epsilon, delta):
    """Tallies go on; the derived order is not tuned again."""
    before = made(theorem, options)
    after = tightened_filter(before.parameters(), epsilon=epsilon, delta=delta)
    assert admits_less(after, before)
    assert not admits_less(before, after)
    assert (after.parameters()["epsilon"], after.components) == (
        epsilon,
        before.components,
    )
    assert make_filter(**after.parameters()) == after
    if theorem != "individual":  # it prices its own bound only
        cost = PureDP(epsilon="0.1")
        then, now = before.price(cost), after.price(cost)
        # Where less is left, a step may take more of it.
        assert then == now if before.steady else then.fits_within(now)


@given(
    st.sampled_from(OPTIONS),
    st.integers(1, 100),
    st.integers(1, 100),
    st.lists(st.tuples(st.integers(2, 40), st.integers(1, 60)), max_size=6),
)
def test_what_the_smaller_filter_admits_the_larger_admits(form, epsilon, delta, steps):
    """Whatever was charged, in whatever mixture."""
    theorem, options = form
    if theorem == "individual":
        return
    before = made(theorem, options)
    try:
        after = tightened_filter(
            before.parameters(), epsilon=f"{3 * epsilon / 100:.2f}", delta=f"{delta}e-8"
        )
    except InvalidCost:
        return
    cost = PureDP(epsilon="0.01")
    if theorem not in ("basic", "output-dp"):
        cost = Gaussian(sensitivity=1, noise_multiplier=40)
    total = before.zero()
    for factor, times in steps:
        amounts = before.price(cost.noisier(factor)).amounts
        total = total + Tally(tuple(times * amount for amount in amounts))
    assert before.admits(total) or not after.admits(total)


def test_what_cannot_be_lowered_is_refused() -> None:
    """The error says what was asked and why it is not possible."""
    for theorem, words in (
        ("rogers", "cannot be shown to admit less"),
        ("rdp", "order 9 allows nothing at epsilon 0.1"),
        ("auto", "orders 8, 10 allow nothing"),
    ):
        with pytest.raises(InvalidCost, match=words) as caught:
            tightened_filter(
                made(theorem, {}).parameters(), epsilon="0.1", delta="0.000001"
            )
        text = "cannot be lowered to (epsilon 0.1, delta 0.000001)"
        assert text in str(caught.value)


def test_filters_that_admit_more_or_count_otherwise_are_told_apart() -> None:
    """A larger budget, another theorem, order, weight or tuned member."""
    basic, orders = made("basic", {}), {"orders": ["2", "32"]}
    weights = [{**orders, "weights": [a, b]} for a, b in ((".5", ".5"), (".9", ".1"))]
    for before, after in (
        (basic, made("basic", {}, "4")),
        (basic, made("basic", {}, "2", "2e-6")),
        (basic, made("output-dp", {}, "2")),
        (made("rdp", {"order": 9}), made("rdp", {"order": 10}, "2")),
        (made("rdp", orders), made("rdp", {"orders": ["2", "33"]}, "2")),
        (made("rdp", weights[0]), made("rdp", weights[1], "2")),
        (made("auto", {}), made("auto", {}, "2")),
        (made("whitehouse", {}), made("whitehouse", {"drift": "tanh"}, "2")),
    ):
        assert not admits_less(after, before)
